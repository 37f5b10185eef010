"""The children of a job: what an agent on a worker delegates, as jobs of their own.

A call of `task` or `tasks` only says that its result comes later, and the agent's run ends there.
The job is parked, and its children are stored in the same step (`specs`, `Ledger.park`). When all
have ended it goes on: their changes are merged into the agent's own files and its calls are
answered (`results`). Both may be done again after a crash: a child's id is that of the call, and
merging again changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import IO, Any

from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import ValidationError

from orchestrator.approvals import merge_policies
from orchestrator.configuration.agent_definitions import (
    GENERAL_PURPOSE,
    AgentDefinition,
    AgentDefinitions,
)
from orchestrator.deep_agent import (
    DeferredCall,
    MethodTool,
    ModelUsage,
    deferred_calls,
    deferred_result,
    tabular,
)
from orchestrator.delegation.answers import Answer, delivered, refused
from orchestrator.delegation.calls import (
    DEFAULT_SUBAGENT,
    TaskCall,
    agent_list,
    check_agent,
    job_id_of_call,
)
from orchestrator.jobs.changes import ChangeBundle, MalformedBundle, NewerBundle
from orchestrator.jobs.failures import (
    BlobMissing,
    InvalidJob,
    LimitReached,
    NotUnderstood,
    UnknownJob,
)
from orchestrator.jobs.spec import JobSpec, Limits
from orchestrator.jobs.store.stored import submission
from orchestrator.workspace import changed_snapshot
from workers.agent.past import Past
from workers.agent.services import JobServices
from workers.heartbeat import elapsed_clock
from workers.sandbox import Sandbox, merge_into

SHORTEST_CHILD_SECONDS = 0.001
"""Of a child whose parent's time is just over: a limit has to be above nothing."""
Child = JobSpec | Exception
"""What a task becomes, or why it cannot become a job."""


class Children:
    """The children of one job, during one attempt.

    Args:
        services: what all jobs of this worker share.
        spec: the job.
        definition: the definition of its agent.
        ends_at: when the job's time is over, on `elapsed_clock`.
        used: returns what the job and its children have used.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        definition: AgentDefinition,
        *,
        ends_at: float,
        used: Callable[[], ModelUsage],
    ) -> None:
        self._services = services
        self._spec = spec
        self._definition = definition
        self._ends_at = ends_at
        self._used = used
        self._agents = _callable(definition, services.definitions)

    def tools(self) -> list[BaseTool]:
        """`task` and `tasks`, for an agent that may call others."""
        return [MethodTool(self.task), MethodTool(self.tasks)] if self._agents else []

    def words(self) -> str:
        """What the agent's instruction says of them."""
        return f"\n\n{agent_list(self._agents)}" if self._agents else ""

    async def task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: str = DEFAULT_SUBAGENT,
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Delegate one self-contained task to a sub-agent and wait for its result.

        The sub-agent works in its own sandbox on a copy of your workspace, which it sees at
        /workspace. When it succeeds, its changes are merged into your workspace. Call `task`
        several times in one reply to run sub-agents at the same time. Processes that you left
        running end when you delegate.

        Args:
            description: What to do, complete in itself: the sub-agent sees nothing of this
                conversation.
            subagent_type: Which agent does it.
            context: What it should know besides: findings, constraints, file paths.
            timeout_seconds: How long it may take; leave it out for the agent's own limit.

        Returns:
            status, job_id, summary, files_modified, merge (applied, conflicts), execution_seconds,
            usage, and output or error.
        """
        task = {
            "description": description,
            "subagent_type": subagent_type,
            "context": context,
            "timeout_seconds": timeout_seconds,
        }
        return self._begun([task], "task", task, tool_context)

    @tabular
    async def tasks(self, tasks: list[dict[str, Any]], tool_context: ToolContext) -> dict[str, Any]:
        """Delegate many tasks at once and wait for all of them.

        One that fails does not stop the others.

        Args:
            tasks: Objects with `description` and, if wanted, `subagent_type`, `context`,
                `timeout_seconds`, as for `task`.

        Returns:
            status, and `results`: one answer as of `task` for each, in order.
        """
        return self._begun(tasks, "tasks", {"tasks": tasks}, tool_context)

    def _begun(
        self,
        tasks: list[dict[str, Any]],
        tool: str,
        arguments: dict[str, Any],
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """The call's answer for now.

        That its result comes later, unless nothing of it can begin.
        """
        try:
            self._check_room(len(tasks))
        except LimitReached as failure:
            return refused(failure)
        children = [self._child("", number, item) for number, item in enumerate(tasks)]
        refusals = [refused(child) for child in children if isinstance(child, Exception)]
        if len(refusals) == len(tasks):
            return _answer_of(tool, refusals)
        return deferred_result(tool_context, arguments)

    def specs(self, events: Sequence[Event]) -> tuple[JobSpec, ...] | None:
        """The jobs for which a run that ended waits, without their snapshot.

        None when it waits for none.
        """
        calls = deferred_calls(events)
        children = [child for waiting in calls for child in self._children_of(waiting)]
        return tuple(child for child in children if isinstance(child, JobSpec)) if calls else None

    async def on_files_of(
        self, bundle: IO[bytes], children: Sequence[JobSpec] | None
    ) -> tuple[JobSpec, ...] | None:
        """The same jobs, starting from the job's files as a bundle of its changes has them."""
        if not children:
            return None if children is None else ()
        snapshot = await self._snapshot(bundle)
        return tuple(child.model_copy(update={"snapshot": snapshot}) for child in children)

    async def results(
        self, past: Past, sandbox: Sandbox
    ) -> list[tuple[DeferredCall, Answer]] | None:
        """The answers to the calls that wait, their changes merged.

        None while a child has not ended.
        """
        calls = [(waiting, self._children_of(waiting)) for waiting in deferred_calls(past.events)]
        jobs = [child for _, children in calls for child in children if isinstance(child, JobSpec)]
        if any(job.id not in past.children for job in jobs):
            return None
        results = []
        for waiting, children in calls:
            answers = [await self._delivered(child, past, sandbox) for child in children]
            results.append((waiting, _answer_of(str(waiting.made.call.name), answers)))
        return results

    async def _delivered(self, child: Child, past: Past, sandbox: Sandbox) -> Answer:
        """A child's result, its changes merged when it succeeded."""
        if isinstance(child, Exception):
            return refused(child)
        refusal = past.children[child.id]
        if refusal:
            return refused(LimitReached(f"The task was not begun: {refusal}."))
        merged = None
        try:
            result = await self._services.ledger.result(child.id)
            if result is None:
                return refused(InvalidJob("The task has not ended."), child.id)
            if result.success and result.changes:
                merged = await merge_into(sandbox, await self._services.blobs.fetch(result.changes))
        except (UnknownJob, BlobMissing) as failure:
            return refused(failure, child.id)
        except NewerBundle as newer:
            raise NotUnderstood(str(newer)) from newer
        except MalformedBundle:
            return refused(InvalidJob("What the task changed cannot be read."), child.id)
        return delivered(result, merged)

    def _check_room(self, count: int) -> None:
        """Refuse what could not begin.

        Raises:
            LimitReached: in words for the agent.
        """
        bounds = self._services.bounds
        if self._spec.depth >= bounds.max_depth:
            raise LimitReached(
                f"Agents delegate {bounds.max_depth} deep at the most (FANOUT_LIMITS__MAX_DEPTH), and you "
                "are at that depth: do it yourself."
            )
        if count > bounds.max_children:
            raise LimitReached(
                f"A job may have {bounds.max_children} children (FANOUT_LIMITS__MAX_CHILDREN): give fewer "
                "tasks."
            )
        for name, left in self._left().items():
            if left <= 0:
                raise LimitReached(
                    f"Nothing is left of your limit {name} for a task: finish without one."
                )

    def _children_of(self, waiting: DeferredCall) -> list[Child]:
        """What a call's tasks become, in order."""
        call, event = waiting.made.call, waiting.made.event
        place = f"{event.id}/{call.id}"  # a provider may use a call's id twice
        tasks = [waiting.arguments] if call.name == "task" else waiting.arguments["tasks"]
        return [self._child(place, number, item) for number, item in enumerate(tasks)]

    def _child(self, place: str, number: int, item: dict[str, Any]) -> Child:
        """The job that a task becomes, the same whenever it is asked for, but for what is left to it."""
        parent = self._spec
        try:
            task = TaskCall.of_item(item, number)
            check_agent(task.subagent_type, self._agents)
            child = JobSpec(
                id=job_id_of_call(parent.id, f"{place}.{number}"),
                root_id=parent.root_id,
                parent_id=parent.id,
                depth=parent.depth + 1,
                tenant=parent.tenant,
                agent=task.subagent_type,
                description=task.description,
                context=task.context or None,
                limits=self._limits_of(task),
                interrupt_on=merge_policies(parent.interrupt_on, self._definition.interrupt_on),
                priority=parent.priority,
                max_attempts=parent.max_attempts,
                labels=parent.labels,
                traceparent=parent.traceparent,
            )
            submission(child)  # whether it can be stored
        except (InvalidJob, ValidationError) as failure:
            return failure
        return child

    def _limits_of(self, task: TaskCall) -> Limits:
        """Of time and of each budget what was given or its agent may have, or what is left if less."""
        theirs = (
            self._services.definitions[task.subagent_type]
            .job_limits()
            .over(self._services.defaults)
        )
        budgets = {}
        for name, left in self._left().items():
            own = getattr(theirs, name)
            budgets[name] = max(left, 1e-6 if name == "max_cost_usd" else 1)
            if own is not None:
                budgets[name] = min(own, budgets[name])
        wanted = task.timeout_seconds or theirs.timeout_seconds
        return Limits(timeout_seconds=self._in_time(wanted), **budgets)

    def _in_time(self, wanted_seconds: float | None) -> float | None:
        """A child's time: what was wanted for it, or what is left of the job's own if that is less."""
        left_seconds = max(self._ends_at - elapsed_clock(), SHORTEST_CHILD_SECONDS)
        return (
            wanted_seconds
            if left_seconds == math.inf
            else min(wanted_seconds or math.inf, left_seconds)
        )

    def _left(self) -> dict[str, Any]:
        """What is left of each budget that was set for the job."""
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

    async def _snapshot(self, bundle: IO[bytes]) -> str | None:
        """The job's own snapshot with what it has changed since, as a blob."""
        blobs, own = self._services.blobs, self._spec.snapshot
        base = await blobs.fetch(own) if own else None
        is_unchanged = await asyncio.to_thread(_is_empty, bundle)
        if own and is_unchanged:
            await blobs.keep(own)
            return own

        def write(sink: IO[bytes]) -> None:
            bundle.seek(0)
            with ChangeBundle.open(bundle) as opened:
                changed_snapshot.write(sink, base, opened)

        snapshot, _ = await blobs.put_written(write)
        return snapshot


def _answer_of(tool: str, answers: Sequence[Answer]) -> Answer:
    """What a call of `task` or `tasks` answers."""
    return answers[0] if tool == "task" else {"status": "success", "results": [*answers]}


def _is_empty(bundle: IO[bytes]) -> bool:
    bundle.seek(0)
    with ChangeBundle.open(bundle) as opened:
        return not opened.changes.files


def _callable(definition: AgentDefinition, definitions: AgentDefinitions) -> dict[str, str]:
    """The agents that one may call, with their descriptions; none where it names none.

    One whose own tools are limited may call the general-purpose agent, which has all tools, only by
    name: who may not run commands must not have them run.
    """
    agents = definitions.callable_by(definition) if definition.subagents else {}
    if definition.tools is not None and GENERAL_PURPOSE not in definition.subagents:
        agents.pop(GENERAL_PURPOSE, None)
    return agents
