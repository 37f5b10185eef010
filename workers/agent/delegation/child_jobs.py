"""The jobs that an agent's tasks become: who may do them, under which limits, on which files.

They start from the job's files as they are. A task whose changes did not land goes back to its own
agent, as a new job that continues the task's: on its parent's files as they are now, with what the
task changed merged in as far as it fits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import IO, Any

from pydantic import ValidationError

from fanout.orchestrator.approvals import merge_policies
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import ModelUsage
from fanout.orchestrator.delegation.calls import JobTask, job_id_of_call
from fanout.orchestrator.delegation.continuation import Continuations
from fanout.orchestrator.delegation.inherited_conversation import check_heir
from fanout.orchestrator.delegation.submission_check import check_commands, check_script_policy
from fanout.orchestrator.jobs.ceilings import no_more_than
from fanout.orchestrator.jobs.failures import (
    BlobMissing,
    InvalidJob,
    LeaseLost,
    LimitReached,
    UnknownJob,
)
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, Limits, StartFiles, TreeBounds
from fanout.orchestrator.jobs.store.stored import submission
from fanout.orchestrator.scripts.agents import callable_agents, script_agents
from fanout.orchestrator.tracing import spans
from fanout.orchestrator.workspace import layers
from fanout.orchestrator.workspace.blobs import BlobStore

from ...heartbeat import HeldLease, elapsed_clock
from ...sandbox import Sandbox
from ..services import JobServices
from .inherited_conversation import CallersConversation

SHORTEST_CHILD_SECONDS = 0.001
"""The time limit of a child whose parent's time is over: a limit has to be above zero."""

Child = JobSpec | Exception
"""The job that a task becomes, or the reason why it cannot become one."""


class ChildJobs:
    """Makes and submits the children of one job, during one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        definition: The definition of its agent.
        sandbox: The job's sandbox.
        lease: The attempt's lease.
        ends_at: When the job's time is over, on `elapsed_clock`.
        used: Returns what the job and its children have used.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        definition: AgentDefinition,
        *,
        sandbox: Sandbox,
        lease: HeldLease,
        ends_at: float,
        used: Callable[[], ModelUsage],
    ) -> None:
        self._services = services
        self._spec = spec
        self._definition = definition
        self._ends_at = ends_at
        self._used = used
        self._lease = lease
        self._tree_model: str | None = None
        self.snapshots = ChildSnapshots(sandbox, services.blobs, spec.start)
        self.agents = (
            script_agents(spec, services.definitions)
            if spec.script is not None
            else callable_agents(definition, services.definitions)
        )
        """The agents that may be called, with their descriptions."""

    async def load_tree_model(self) -> None:
        """Read the model of the tree's root job, for the children of an agent that has its own.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        spec = self._spec
        if spec.model is None and self._definition.model is not None and spec.parent_id:
            with suppress(UnknownJob):  # its record has expired
                root = await self._services.ledger.specification(spec.root_id)
                self._tree_model = root.model

    def check_room(self, count: int) -> None:
        """Reject tasks that could not start.

        Args:
            count: The number of tasks of a call.

        Raises:
            LimitReached: The depth, the number of children or a budget; the text is for the agent.
        """
        bounds = self._services.bounds
        if self._spec.depth >= bounds.max_depth:
            raise LimitReached(
                f"Agents delegate {bounds.max_depth} deep at the most (FANOUT_LIMITS__MAX_DEPTH), "
                "and you are at that depth: do it yourself."
            )
        if count > bounds.max_children:
            raise LimitReached(
                f"A job may have {bounds.max_children} children (FANOUT_LIMITS__MAX_CHILDREN): "
                "give fewer tasks."
            )
        for name, left in self.left().items():
            if left <= 0:
                raise LimitReached(
                    f"Nothing is left of your limit {name} for a task: finish without one."
                )

    def child(
        self,
        call_id: str,
        number: int,
        item: Mapping[str, Any],
        conversation: CallersConversation | None = None,
        traceparent: str | None = None,
    ) -> Child:
        """Return the job that a task becomes, without its snapshot.

        Every call returns the same job, except that its limits depend on what is left.

        Args:
            call_id: The tool call, unique within the job.
            number: The task's index among those of the call.
            item: The task, as the model wrote it.
            conversation: The job's, up to the call; None: a script has none.
            traceparent: The span of the tool call; None: the one that is open.
        """
        try:
            task = JobTask.of_item(item, number, self.agents, caller=self._definition.name)
            definition = self._services.definitions[task.subagent_type]
            check_commands(definition, self._policies(), verify=task.verify)
            if task.inherit:
                check_heir(definition)
            inherited = self._inherited(task.subagent_type, task.timeout_seconds, traceparent)
            inherited |= self._shared_with_copy(task)
            child = task.job_spec(f"{call_id}.{number}", **inherited)
            if conversation is not None:
                child = conversation.given_to(child)
            submission(child)  # raises InvalidJob if it cannot be stored
        except (InvalidJob, ValidationError) as failure:
            return failure
        return child

    def check_scripts(self) -> None:
        """Reject scripts that could not start.

        Raises:
            LimitReached: As `check_room`.
            InvalidJob: A person approves each task of the agent.
        """
        self.check_room(1)
        check_script_policy(self._definition, self._policies())

    def script_child(
        self, call_id: str, call: Mapping[str, Any], traceparent: str | None = None
    ) -> Child:
        """Return the job that a script of the agent becomes, without its snapshot.

        It runs under the agent's own definition.

        Args:
            call_id: The tool call, unique within the job.
            call: The `script`, which is the id of its blob, its `title` and its `inputs`.
            traceparent: As of `child`.
        """
        agent = self._spec.agent
        try:
            child = JobSpec(
                id=job_id_of_call(self._spec.id, f"{call_id}.0"),
                agent=agent,
                description=call["title"],
                script=call["script"],
                script_inputs=call["inputs"],
                **self._inherited(agent, None, traceparent),
            )
            submission(child)  # raises InvalidJob if it cannot be stored
        except (InvalidJob, ValidationError) as failure:
            return failure
        return child

    def _policies(self) -> dict[str, Any]:
        return merge_policies(self._spec.interrupt_on, self._definition.interrupt_on)

    def _inherited(
        self, agent: str, timeout_seconds: float | None, traceparent: str | None
    ) -> dict[str, Any]:
        """Return the fields of a child that come from the job."""
        parent = self._spec
        return {
            "root_id": parent.root_id,
            "parent_id": parent.id,
            "depth": parent.depth + 1,
            "tenant": parent.tenant,
            "owner": parent.owner,
            "caller_policy": parent.caller_policy,
            "limits": self._child_limits(agent, timeout_seconds),
            "interrupt_on": self._policies(),
            "priority": parent.priority,
            "max_attempts": parent.max_attempts,
            "labels": parent.labels,
            "traceparent": traceparent or open_traceparent() or parent.traceparent,
            "model": self._choose_model(agent),
        }

    def _shared_with_copy(self, task: JobTask) -> dict[str, Any]:
        """Return what a copy of the agent has from its parent if it inherits the conversation.

        With another system instruction or model, no cache of the parent's requests would serve it.
        """
        if not task.inherit or task.subagent_type != self._definition.name:
            return {}
        model = self._spec.model or self._choose_model(task.subagent_type)
        return {"model": model, "verify_merges": self._spec.verify_merges}

    def _choose_model(self, agent: str) -> str | None:
        """Return the model that a child has from its tree; None: that of its own definition.

        The model that a run was given holds for all agents below it that name none themselves.
        """
        definition = self._services.definitions[agent]
        if definition.model is not None or definition.has_own_model:
            return None
        return self._spec.model or self._tree_model

    async def store(self, conversations: Iterable[bytes]) -> None:
        """Store what children inherit, before they are submitted.

        Raises:
            JobFailure: It cannot be stored.
        """
        for conversation in conversations:
            await self._services.blobs.put(conversation)

    async def submit(self, child: JobSpec, bounds: TreeBounds | None = None) -> str:
        """Submit a child of the running job and return its id; the same one for every call.

        Args:
            child: The child, with the files that it starts from.
            bounds: The limits of its tree; None: those of the installation.

        Raises:
            LimitReached: The job or its tree has all the children that it may have.
            InvalidJob: The child cannot be stored.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        self._lease.check()
        claim, ledger = self._lease.claim, self._services.ledger
        if not await ledger.start(
            claim.spec.id, claim.token, child, bounds or self._services.bounds
        ):
            raise LeaseLost("Another attempt holds the job.")
        return child.id

    async def send_back(self, result: JobResult, message: str) -> str:
        """Submit the rework of a task, and return its id; the same one for every call.

        Args:
            result: The result of the task, or of its last rework.
            message: Tells its agent what is wrong.

        Raises:
            LimitReached: The job may have no more children, or nothing is left for them.
            InvalidJob: The task cannot be continued; the text says why.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
            SandboxFailure: The sandbox failed.
        """
        self.check_room(1)
        services = self._services
        continuations = Continuations(
            services.ledger, services.journal, services.blobs, services.definitions
        )
        try:
            earlier = await services.ledger.specification(result.job_id)
            rework = JobSpec(
                id=job_id_of_call(self._spec.id, f"rework/{result.job_id}"),
                root_id=self._spec.root_id,
                parent_id=self._spec.id,
                depth=self._spec.depth + 1,
                caller_policy=self._spec.caller_policy,
                priority=self._spec.priority,
                max_attempts=self._spec.max_attempts,
                traceparent=earlier.traceparent,
                limits=self._child_limits(earlier.agent, earlier.limits.timeout_seconds),
                description=message,
                continues=result.job_id,
                changes=result.changes,
                **(await self.snapshots.now()).update(),
            )
            completed = await continuations.completed(rework)
        except (UnknownJob, BlobMissing) as failure:
            raise InvalidJob(str(failure)) from failure
        return await self.submit(completed)

    def _child_limits(self, agent: str, timeout_seconds: float | None) -> Limits:
        """Return a child's limits: those of its agent, but no more than its parent has or has left.

        A call can give a child less time than its agent's definition does, and never more.
        """
        services = self._services
        definition = services.definitions[agent]
        agent_limits = no_more_than(
            services.ceilings.within(definition.job_limits().over(services.defaults)),
            services.limits_of(self._spec),
        )
        budgets: dict[str, Any] = {}
        for name, left in self.left().items():
            agent_limit = getattr(agent_limits, name)
            budgets[name] = max(left, 1e-6 if name == "max_cost_usd" else 1)
            if agent_limit is not None:
                budgets[name] = min(agent_limit, budgets[name])
        left_seconds = max(self._ends_at - elapsed_clock(), SHORTEST_CHILD_SECONDS)
        given = (timeout_seconds, agent_limits.timeout_seconds, left_seconds)
        timeout_seconds = min(seconds or math.inf for seconds in given)
        resources = agent_limits.model_dump(
            include={"cpus", "memory_bytes", "pids", "disk_bytes", "network", "network_bytes"}
        )
        waits = services.given_limits(self._spec).max_wait_seconds
        if waits is not None:  # else those of its agent hold
            budgets["max_wait_seconds"] = min(waits, agent_limits.max_wait_seconds or 0)
        return Limits(timeout_seconds=timeout_seconds, **resources, **budgets)

    def left(self) -> dict[str, Any]:
        """Return what is left of each budget that was set for the job."""
        used = self._used()
        spent = {
            "max_model_calls": used.model_calls,
            "max_tokens": used.tokens,
            "max_cost_usd": used.cost_usd or 0.0,
            "max_tool_calls": used.tool_calls,
        }
        given = self._services.given_limits(self._spec)
        limits = {name: getattr(given, name) for name in spent}
        return {name: limit - spent[name] for name, limit in limits.items() if limit is not None}


def open_traceparent() -> str | None:
    """Return the context of the span that is open, for the jobs that are submitted in it."""
    here = spans.current()
    return None if here is None else str(here)


class ChildSnapshots:
    """The snapshots of one attempt's files.

    Args:
        sandbox: The job's sandbox.
        blobs: Where snapshots are stored.
        own: What the job itself started from.
    """

    def __init__(self, sandbox: Sandbox, blobs: BlobStore, own: StartFiles) -> None:
        self._sandbox = sandbox
        self._blobs = blobs
        self._own = own
        self._lock = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        """The number of the last call that the newest snapshot answers."""
        self._newest = own

    async def now(self) -> StartFiles:
        """Store the job's files as they are, and return what a child starts from.

        Calls that wait at the same time share one answer, which is begun after the last of them.

        Raises:
            BlobMissing: A blob of the job's own start is missing.
            SandboxFailure: The sandbox failed.
            JobFailure: What the job changed cannot be stored.
        """
        self._asked += 1
        number = self._asked
        async with self._lock:
            if self._answered < number:
                answered = self._asked
                with await self._sandbox.changes() as bundle:
                    self._newest = await self.of(bundle)
                self._answered = answered
            return self._newest

    async def of(self, bundle: IO[bytes]) -> StartFiles:
        """Store these changes as a layer on the job's own start; return what a child starts from.

        Args:
            bundle: The job's changes.

        Raises:
            BlobMissing: A blob of the job's own start is missing.
            JobFailure: The layer cannot be stored.
        """
        return await layers.start_after(self._blobs, self._own, bundle)
