"""The children of a job: the tasks that an agent on a worker delegates, as jobs of their own.

The result of a call of `task` or `tasks` is deferred, and the agent's run ends with it. The job is
parked, and its children are stored in the same step (`specs`, `Ledger.park`). When all have ended,
the job is resumed: their changes are merged into the agent's files and the calls get their results
(`results`). Both may be repeated after a crash: a child's id is derived from the call, and merging
again changes nothing.
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
from orchestrator.delegation.answers import TaskResult, task_error, task_result, task_results
from orchestrator.delegation.calls import (
    DEFAULT_SUBAGENT,
    TaskCall,
    agent_list,
    check_agent,
    check_verify,
)
from orchestrator.delegation.tool_texts import TASK_OF_JOB, TASKS, described
from orchestrator.jobs.ceilings import no_more_than
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
from workers.agent.history import History
from workers.agent.services import JobServices
from workers.heartbeat import elapsed_clock
from workers.sandbox import Sandbox, merge_into

SHORTEST_CHILD_SECONDS = 0.001
"""The time limit of a child whose parent's time is over: a limit has to be above zero."""
Child = JobSpec | Exception
"""The job that a task becomes, or the reason why it cannot become one."""


class Children:
    """The children of one job, during one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        definition: The definition of its agent.
        ends_at: When the job's time is over, on `elapsed_clock`.
        used: Returns what the job and its children have used.
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
        """Return `task` and `tasks`; nothing for an agent that may not call others."""
        if not self._agents:
            return []
        task, tasks = MethodTool(self.task), MethodTool(self.tasks)
        return [described(task, TASK_OF_JOB), described(tasks, TASKS)]

    def instruction(self) -> str:
        """Return the text about callable agents for the agent's instruction."""
        return f"\n\n{agent_list(self._agents)}" if self._agents else ""

    async def task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: str = DEFAULT_SUBAGENT,
        context: str = "",
        timeout_seconds: float | None = None,
        verify: str = "",
    ) -> dict[str, Any]:
        """Delegate a task; its result is deferred. The model reads `TASK_OF_JOB`."""
        task = {
            "description": description,
            "subagent_type": subagent_type,
            "context": context,
            "timeout_seconds": timeout_seconds,
            "verify": verify,
        }
        return self._defer([task], "task", task, tool_context)

    @tabular
    async def tasks(self, tasks: list[dict[str, Any]], tool_context: ToolContext) -> dict[str, Any]:
        """Delegate tasks; their results are deferred. The model reads `TASKS`."""
        return self._defer(tasks, "tasks", {"tasks": tasks}, tool_context)

    def _defer(
        self,
        tasks: list[dict[str, Any]],
        tool: str,
        arguments: dict[str, Any],
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Return the deferred result of a call, or an error if none of its tasks can start.

        Args:
            tasks: The tasks, as the model wrote them.
            tool: `task` or `tasks`.
            arguments: The call's arguments, from which the jobs are made later.
            tool_context: The call.
        """
        try:
            self._check_room(len(tasks))
        except LimitReached as failure:
            return task_error(failure)
        children = [self._child("", number, item) for number, item in enumerate(tasks)]
        refusals = [task_error(child) for child in children if isinstance(child, Exception)]
        if len(refusals) == len(tasks):
            return _combined_result(tool, refusals)
        return deferred_result(tool_context, arguments)

    def specs(self, events: Sequence[Event]) -> tuple[JobSpec, ...] | None:
        """Return the jobs for which a run that ended waits, without their snapshot.

        None when no call is deferred; empty when none of the deferred tasks can become a job.
        """
        calls = deferred_calls(events)
        children = [child for waiting in calls for child in self._children_of_call(waiting)]
        return tuple(child for child in children if isinstance(child, JobSpec)) if calls else None

    async def with_snapshot(
        self, bundle: IO[bytes], children: Sequence[JobSpec] | None
    ) -> tuple[JobSpec, ...] | None:
        """Return the children with a snapshot of this job's files, which is stored as a blob.

        Args:
            bundle: This job's changes.
            children: As of `specs`.

        Raises:
            BlobMissing: This job's own snapshot is missing.
            JobFailure: The snapshot cannot be stored.
        """
        if not children:
            return None if children is None else ()
        snapshot = await self._snapshot(bundle)
        return tuple(child.model_copy(update={"snapshot": snapshot}) for child in children)

    async def results(
        self, history: History, sandbox: Sandbox
    ) -> list[tuple[DeferredCall, TaskResult]] | None:
        """Merge the children's changes and return the results of the deferred calls.

        None while a child has not ended.

        Args:
            history: The job's conversation, which names the children that have ended.
            sandbox: The job's sandbox, into which the changes are merged.

        Raises:
            NotUnderstood: A newer release wrote a child's changes.
            SandboxFailure: The sandbox failed.
        """
        calls = [(call, self._children_of_call(call)) for call in deferred_calls(history.events)]
        jobs = [child for _, children in calls for child in children if isinstance(child, JobSpec)]
        if any(job.id not in history.children for job in jobs):
            return None
        results = []
        for call, children in calls:
            collected = [await self._collect(child, history, sandbox) for child in children]
            results.append((call, _combined_result(str(call.made.call.name), collected)))
        return results

    async def _collect(self, child: Child, history: History, sandbox: Sandbox) -> TaskResult:
        """Return a child's result; merge its changes if it succeeded."""
        if isinstance(child, Exception):
            return task_error(child)
        refusal = history.children[child.id]
        if refusal:
            return task_error(LimitReached(f"The task was not begun: {refusal}."))
        merged = None
        try:
            result = await self._services.ledger.result(child.id)
            if result is None:
                return task_error(InvalidJob("The task has not ended."), child.id)
            if result.success and result.changes:
                merged = await merge_into(sandbox, await self._services.blobs.fetch(result.changes))
        except (UnknownJob, BlobMissing) as failure:
            return task_error(failure, child.id)
        except NewerBundle as newer:
            raise NotUnderstood(str(newer)) from newer
        except MalformedBundle:
            return task_error(InvalidJob("What the task changed cannot be read."), child.id)
        return task_result(result, merged)

    def _check_room(self, count: int) -> None:
        """Reject tasks that could not start.

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
        for name, left in self._left().items():
            if left <= 0:
                raise LimitReached(
                    f"Nothing is left of your limit {name} for a task: finish without one."
                )

    def _children_of_call(self, deferred: DeferredCall) -> list[Child]:
        """Return the jobs that a call's tasks become, in order."""
        call, event = deferred.made.call, deferred.made.event
        call_id = f"{event.id}/{call.id}"  # a provider may use a call's id twice
        tasks = [deferred.arguments] if call.name == "task" else deferred.arguments["tasks"]
        return [self._child(call_id, number, item) for number, item in enumerate(tasks)]

    def _child(self, call_id: str, number: int, item: dict[str, Any]) -> Child:
        """Return the job that a task becomes.

        Every call returns the same job, except that its limits depend on what is left.
        """
        parent = self._spec
        try:
            task = TaskCall.of_item(item, number)
            check_agent(task.subagent_type, self._agents)
            policies = merge_policies(parent.interrupt_on, self._definition.interrupt_on)
            check_verify(task, self._services.definitions[task.subagent_type], policies)
            child = task.job_spec(
                f"{call_id}.{number}",
                root_id=parent.root_id,
                parent_id=parent.id,
                depth=parent.depth + 1,
                tenant=parent.tenant,
                limits=self._limits_of(task),
                interrupt_on=policies,
                priority=parent.priority,
                max_attempts=parent.max_attempts,
                labels=parent.labels,
                traceparent=parent.traceparent,
            )
            submission(child)  # raises InvalidJob if it cannot be stored
        except (InvalidJob, ValidationError) as failure:
            return failure
        return child

    def _limits_of(self, task: TaskCall) -> Limits:
        """Return a child's limits: those of its agent, but no more than its parent has or has left.

        A call can give a child less time than its agent's definition does, and never more.
        """
        services = self._services
        definition = services.definitions[task.subagent_type]
        agent_limits = no_more_than(
            services.ceilings.within(definition.job_limits().over(services.defaults)),
            services.limits_of(self._spec),
        )
        budgets: dict[str, Any] = {}
        for name, left in self._left().items():
            agent_limit = getattr(agent_limits, name)
            budgets[name] = max(left, 1e-6 if name == "max_cost_usd" else 1)
            if agent_limit is not None:
                budgets[name] = min(agent_limit, budgets[name])
        left_seconds = max(self._ends_at - elapsed_clock(), SHORTEST_CHILD_SECONDS)
        given = (task.timeout_seconds, agent_limits.timeout_seconds, left_seconds)
        timeout_seconds = min(seconds or math.inf for seconds in given)
        resources = agent_limits.model_dump(
            include={"cpus", "memory_bytes", "pids", "disk_bytes", "network", "network_bytes"}
        )
        return Limits(timeout_seconds=timeout_seconds, **resources, **budgets)

    def _left(self) -> dict[str, Any]:
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

    async def _snapshot(self, bundle: IO[bytes]) -> str | None:
        """Store the job's snapshot with its changes applied, and return the blob."""
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


def _combined_result(tool: str, results: Sequence[TaskResult]) -> TaskResult:
    """Return the result of a call of `task` or `tasks`."""
    return results[0] if tool == "task" else task_results(results)


def _is_empty(bundle: IO[bytes]) -> bool:
    bundle.seek(0)
    with ChangeBundle.open(bundle) as opened:
        return not opened.changes.files


def _callable(definition: AgentDefinition, definitions: AgentDefinitions) -> dict[str, str]:
    """Return the agents that an agent may call, with their descriptions.

    An agent that names no sub-agents may call none. The general-purpose agent has all tools, so an
    agent with a limited set of tools may call it only if it names it: otherwise it could have
    commands run that it may not run.
    """
    agents = definitions.callable_by(definition) if definition.subagents else {}
    if definition.tools is not None and GENERAL_PURPOSE not in definition.subagents:
        agents.pop(GENERAL_PURPOSE, None)
    return agents
