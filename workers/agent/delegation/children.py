"""The wait of a job for the tasks of its agent, and their results.

The result of a call of `task`, `tasks` or `wait_tasks` is deferred, and the agent's run ends with
it. The job is parked, and its new children are stored in the same step (`awaited`, `Ledger.park`).
When they have ended, the job is resumed: their changes are merged into the agent's files and the
calls get their results (`results`). Both may be repeated after a crash: a child's id is derived
from the call, and merging again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import IO, Any, cast

from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool

from fanout.orchestrator.approvals import delegation_policy, merge_policies
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import (
    TASKS_VERIFIED,
    DeferredCall,
    MethodTool,
    ModelUsage,
    TaskResult,
    combined_answer,
    deferred_calls,
)
from fanout.orchestrator.delegation.answers import failed_task, script_result
from fanout.orchestrator.delegation.calls import (
    SCRIPT_TOOL,
    UPDATE_TOOL,
    WAIT_TOOL,
    agent_list,
    name_of_call,
)
from fanout.orchestrator.delegation.task_tools import JobTaskTools
from fanout.orchestrator.delegation.tool_texts import OF_JOB
from fanout.orchestrator.jobs.failures import LimitReached
from fanout.orchestrator.jobs.result import Verification
from fanout.orchestrator.jobs.spec import JobSpec

from ...heartbeat import HeldLease
from ...sandbox import Sandbox
from ..history import History
from ..services import JobServices
from ..session_journal import AttemptJournal
from .child_jobs import Child, ChildJobs
from .collector import Collector
from .inherited_conversation import CallersConversation
from .ledger_tasks import LedgerTasks


@dataclass(frozen=True)
class AwaitedTasks:
    """The tasks for which a run that ended waits."""

    children: tuple[JobSpec, ...] = ()
    """The jobs to submit, for the calls of `task` and `tasks`."""
    started: tuple[str, ...] = ()
    """The ids of the tasks that were started before."""
    inherited: tuple[bytes, ...] = ()
    """The conversations with which new children begin, to store before they are submitted."""
    until: float | None = None
    """When the wait ends, in seconds since the epoch by the clock of Redis; None: when all have
    ended."""
    any_seconds: float | None = None
    """In how many seconds at the latest the job goes on when anything of what it waits for, also of
    its approvals, has arrived; None: it goes on when all has."""


class Children:
    """The children of one job, during one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        definition: The definition of its agent.
        sandbox: The job's sandbox.
        journal: The attempt's journal.
        lease: The attempt's lease.
        max_reworks: How often a task is sent back whose changes do not land.
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
        journal: AttemptJournal,
        lease: HeldLease,
        max_reworks: int,
        ends_at: float,
        used: Callable[[], ModelUsage],
    ) -> None:
        self._agent = definition.name
        self._earlier: Sequence[Event] = ()
        """What the job's conversation began with."""
        self._delegation = definition.delegation
        self._has_scripts = definition.scripts
        self._command = spec.verify_merges or definition.verify_merges
        self._is_root = spec.parent_id is None
        policies = (spec.interrupt_on, definition.interrupt_on)
        self._policy = merge_policies(*({**one, **delegation_policy(one)} for one in policies))
        self._jobs = ChildJobs(
            services, spec, definition, sandbox=sandbox, lease=lease, ends_at=ends_at, used=used
        )
        self._collector = Collector(
            services,
            sandbox,
            journal,
            self._jobs,
            lease=lease,
            verify_merges=self._command,
            max_reworks=max_reworks,
            ends_at=ends_at,
        )
        self._tasks = LedgerTasks(
            services.ledger, services.blobs, spec, self._jobs, self._collector
        )

    @property
    def are_verified(self) -> bool:
        """Whether what they change is verified."""
        return self._command is not None

    async def verified_at_end(
        self, history: History, verified: Verification | None
    ) -> Verification | None:
        """Return the verification of the job's files as its agent leaves them.

        A run is looked at by a person, so its files are verified also if nothing has landed.

        Args:
            history: The job's conversation to its end.
            verified: The verification of the answer; one by the same command is not repeated.

        Returns:
            None if there is nothing to verify, or a task of another agent delegated none itself.

        Raises:
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        if self._command is None or (verified is not None and verified.command == self._command):
            return None
        if not self._is_root and not history.landed:
            return None
        return history.merged or await self._collector.verify_at_end(self._command)

    async def resume(self, history: History) -> None:
        """Continue from the conversation of earlier attempts.

        Raises:
            JobFailure: A landing that did not end cannot be undone, or Redis does not answer.
        """
        self._earlier = history.earlier
        await self._jobs.load_tree_model()
        await self._collector.resume(history)

    def tools(self) -> list[BaseTool]:
        """Return the tools that delegate; nothing for an agent that may not call others."""
        agents = self._jobs.agents
        if not agents:
            return []
        scripts = self._tasks if self._has_scripts else None
        return JobTaskTools(self._tasks, OF_JOB, MethodTool, scripts).tools(
            self._delegation, agents
        )

    def instruction(self) -> str:
        """Return the text about callable agents for the agent's instruction."""
        if not self._jobs.agents:
            return ""
        verified = TASKS_VERIFIED.format(command=self._command) if self._command else ""
        return f"\n\n{agent_list(self._jobs.agents)}{verified}"

    async def repeat(self, answers: Event, events: Sequence[Event]) -> None:
        """Put the results of tools that may be repeated in place of "interrupted".

        A call that was cut off has begun nothing, or the same task as its repetition. One that a
        person has to approve is not repeated.

        Args:
            answers: The answers to calls of one reply, each of which says that it was interrupted.
            events: The job's conversation, which has the calls.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
            SandboxFailure: The sandbox failed.
        """
        answered = {answer.id for event in events for answer in event.get_function_responses()}
        made = {call.id: call for event in events for call in event.get_function_calls()}
        conversation = [*self._earlier, *events]
        tools = {tool.name: tool for tool in self.tools() if tool.name != UPDATE_TOOL}
        for answer in answers.get_function_responses():
            tool = tools.get(str(answer.name))
            if tool is None or answer.id in answered or self._policy.get(tool.name):
                continue
            context = _RepeatedCall(str(answer.id), conversation)
            args = dict(made[answer.id].args or {})
            answer.response = await tool.run_async(args=args, tool_context=cast(Any, context))
            answers.actions.state_delta.update(context.state)

    def awaited(self, events: Sequence[Event]) -> AwaitedTasks | None:
        """Return for what a run that ended waits, without the children's snapshot.

        None when no call is deferred.
        """
        calls = deferred_calls(events)
        if not calls:
            return None
        made = [
            (child, conversation)
            for waiting in calls
            for conversation in [self._conversation(waiting, events)]
            for child in self._children_of_call(waiting, conversation)
        ]
        jobs = [child for child, _ in made if isinstance(child, JobSpec)]
        inherited = {
            child.conversation: conversation.lines(child.agent)
            for child, conversation in made
            if isinstance(child, JobSpec) and child.inherit
        }
        waits = [call.arguments for call in calls if call.made.call.name == WAIT_TOOL]
        started = [job_id for wait in waits for job_id in wait["job_ids"]]
        started += [job.id for job in jobs if self._collector.newest(job.id) != job.id]
        # A wait with tasks lasts until these have ended: one of them is the job's next step.
        ends = [float(wait["until"]) for wait in waits] if len(waits) == len(calls) else []
        return AwaitedTasks(
            tuple(job for job in jobs if job.id not in started),
            tuple(dict.fromkeys(map(self._collector.newest, started))),
            tuple(inherited.values()),
            min(ends, default=None),
        )

    async def with_snapshot(
        self, bundle: IO[bytes], awaited: AwaitedTasks | None
    ) -> AwaitedTasks | None:
        """Return what a run waits for, its new children with a snapshot of this job's files.

        Args:
            bundle: This job's changes.
            awaited: As of `awaited`.

        Raises:
            BlobMissing: This job's own snapshot is missing.
            JobFailure: The snapshot cannot be stored.
        """
        if awaited is None or not awaited.children:
            return awaited
        await self._jobs.store(awaited.inherited)
        start = await self._jobs.snapshots.of(bundle)
        children = tuple(child.model_copy(update=start.update()) for child in awaited.children)
        return replace(awaited, children=children)

    async def results(self, history: History) -> list[tuple[DeferredCall, TaskResult]] | None:
        """Land the children's changes and return the results of the deferred calls.

        None while there is something to wait for, also for what was sent back.

        Args:
            history: The job's conversation, which names the children that have ended.

        Raises:
            NotUnderstood: A newer release wrote a child's changes.
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        events = history.events
        calls = [
            (call, self._children_of_call(call, self._conversation(call, events)))
            for call in deferred_calls(events)
        ]
        jobs = [child for _, children in calls for child in children if isinstance(child, JobSpec)]
        if any(job.id not in history.children for job in jobs):
            return None
        begun = [job.id for job in jobs if not history.children[job.id]]
        if await self._collector.land(begun):
            return None
        waits = [call for call, _ in calls if call.made.call.name == WAIT_TOOL]
        if len(waits) == len(calls):
            for wait in waits:
                if not await self._tasks.is_over(wait.arguments):
                    return None
        results = []
        for call, children in calls:
            if call in waits:
                results.append((call, await self._tasks.collected(call.arguments["job_ids"])))
                continue
            collected = [await self._collect(child, history) for child in children]
            results.append((call, _answer(str(call.made.call.name), collected)))
        return results

    async def _collect(self, child: Child, history: History) -> TaskResult:
        """Return a child's result; merge its changes if it succeeded."""
        if isinstance(child, Exception):
            return failed_task(child)
        refusal = history.children[child.id]
        if refusal:
            return failed_task(LimitReached(f"The task was not begun: {refusal}."))
        return await self._collector.collect(child.id, child.agent)

    def _conversation(self, deferred: DeferredCall, events: Sequence[Event]) -> CallersConversation:
        """Return the conversation up to a call.

        Args:
            deferred: The call.
            events: The job's own events.
        """
        all_events = [*self._earlier, *events]
        return CallersConversation(self._agent, all_events, deferred.made.call.id)

    def _children_of_call(
        self, deferred: DeferredCall, conversation: CallersConversation
    ) -> list[Child]:
        """Return the jobs that a call's tasks become, in order."""
        call, event = deferred.made.call, deferred.made.event
        if call.name == WAIT_TOOL:
            return []
        if call.name == SCRIPT_TOOL:
            name = name_of_call(event.id, call.id)
            traceparent = self._tasks.traceparents.get(call.id)
            return [self._jobs.script_child(name, deferred.arguments, traceparent)]
        tasks = deferred.arguments["tasks"] if call.name == "tasks" else [deferred.arguments]
        name = name_of_call(event.id, call.id)
        traceparent = self._tasks.traceparents.get(call.id)
        return [
            self._jobs.child(name, number, item, conversation, traceparent)
            for number, item in enumerate(tasks)
        ]


def _answer(tool: str, collected: Sequence[TaskResult]) -> TaskResult:
    """Return the result of a call whose tasks have ended."""
    if tool == SCRIPT_TOOL:
        return script_result(collected[0])
    return combined_answer(collected) if tool == "tasks" else collected[0]


class _RepeatedCall:
    """What a tool needs of the context of a call that is repeated."""

    def __init__(self, call_id: str, events: Sequence[Event]) -> None:
        self.function_call_id = call_id
        self.session = SimpleNamespace(events=events)
        self.state: dict[str, Any] = {}
