"""The tools for tasks that go on while their parent works: started at once, collected later.

A task is submitted when its call is made, fenced by the attempt's lease. `wait_tasks` parks the job
until its tasks have ended or its time is over, so that a wait holds no slot (`Children.awaited`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.deep_agent import (
    MethodTool,
    SubagentType,
    deferred_result,
    polling,
    tabular,
)
from fanout.orchestrator.delegation.answers import (
    TaskResult,
    failed_task,
    job_summary,
    started_result,
    task_error,
)
from fanout.orchestrator.delegation.calls import DEFAULT_SUBAGENT, name_of_call, task_item
from fanout.orchestrator.delegation.tool_texts import (
    CANCEL_TASK,
    CHECK_TASK,
    LIST_TASKS,
    LONGEST_WAIT_SECONDS,
    START_TASK,
    UPDATE_TASK,
    WAIT_TASKS,
    described,
)
from fanout.orchestrator.jobs.failures import (
    BlobMissing,
    InvalidJob,
    LeaseLost,
    LimitReached,
    UnknownJob,
)
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobRecord
from fanout.workers.agent.delegation.child_specs import ChildSnapshots, ChildSpecs
from fanout.workers.agent.delegation.collector import Collector
from fanout.workers.agent.services import JobServices
from fanout.workers.heartbeat import HeldLease


class StartedTasks:
    """The tools of one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        specs: Makes the children.
        snapshots: Makes the snapshots that they start from.
        collector: Merges what they changed.
        lease: The attempt's lease.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        specs: ChildSpecs,
        snapshots: ChildSnapshots,
        collector: Collector,
        *,
        lease: HeldLease,
    ) -> None:
        self._ledger = services.ledger
        self._bounds = services.bounds
        self._spec = spec
        self._specs = specs
        self._snapshots = snapshots
        self._collector = collector
        self._lease = lease

    def tools(self) -> list[BaseTool]:
        """Return the tools."""
        return [
            described(MethodTool(self.start_task), START_TASK),
            described(MethodTool(self.check_task), CHECK_TASK),
            described(MethodTool(self.wait_tasks), WAIT_TASKS),
            described(MethodTool(self.update_task), UPDATE_TASK),
            described(MethodTool(self.cancel_task), CANCEL_TASK),
            described(MethodTool(self.list_tasks), LIST_TASKS),
        ]

    async def start_task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: SubagentType = DEFAULT_SUBAGENT,
        context: str = "",
        timeout_seconds: float | None = None,
        verify: str = "",
    ) -> TaskResult:
        """Submit a task. The model reads `START_TASK`.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
            SandboxFailure: The sandbox failed.
        """
        item = task_item(description, subagent_type, context, timeout_seconds, verify)
        try:
            self._specs.check_room(1)
            child = self._specs.child(_name_of(tool_context), 0, item)
            if isinstance(child, Exception):
                return task_error(child)
            await self._submit(child)
        except (LimitReached, InvalidJob, BlobMissing) as failure:
            return task_error(failure)
        return started_result(child.id)

    async def _submit(self, child: JobSpec) -> None:
        ready = child.model_copy(update=(await self._snapshots.now()).update())
        self._lease.check()
        claim = self._lease.claim
        if not await self._ledger.start(claim.spec.id, claim.token, ready, self._bounds):
            raise LeaseLost("Another attempt holds the job.")

    @polling
    async def check_task(self, job_id: str, tool_context: ToolContext) -> TaskResult:
        """Report the state of a task. The model reads `CHECK_TASK`."""
        del tool_context
        try:
            record = await self._own(job_id)
        except UnknownJob as failure:
            return task_error(failure, job_id)
        if record.state.is_terminal:
            return await self._collector.collect(job_id)
        return {"status": "success", **job_summary(record)}

    @polling
    @tabular
    async def wait_tasks(
        self,
        job_ids: list[str],
        tool_context: ToolContext,
        timeout_seconds: float = LONGEST_WAIT_SECONDS,
    ) -> TaskResult:
        """Wait for tasks; the result is deferred unless they have ended.

        The model reads `WAIT_TASKS`.
        """
        seconds = min(max(timeout_seconds, 0), LONGEST_WAIT_SECONDS)
        until = await self._ledger.now_ms() / 1000 + seconds
        ids = list(dict.fromkeys(job_ids))
        wait = {"job_ids": ids, "until": until}
        if await self.is_over(wait):
            return await self.collected(ids)
        return deferred_result(tool_context, wait)

    async def is_over(self, wait: Mapping[str, Any]) -> bool:
        """Return whether a call of `wait_tasks` has its result; what has ended lands then.

        A task whose changes were sent back has not ended.

        Args:
            wait: The call's `job_ids`, and `until`: when it ends, by the clock of Redis.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        if await self._ledger.now_ms() / 1000 >= wait["until"]:
            return True
        newest = [self._collector.newest(job_id) for job_id in wait["job_ids"]]
        records = await self._ledger.get_many(newest)
        own = [record for record in records if record.parent_id == self._spec.id]
        if not all(record.state.is_terminal for record in own):
            return False
        return not await self._collector.land([record.id for record in own])

    async def collected(self, job_ids: Sequence[str]) -> TaskResult:
        """Return the result of `wait_tasks`: what has ended, landed, and the ids of the others.

        Args:
            job_ids: The ids that the call was given.

        Raises:
            NotUnderstood: A newer release wrote a task's changes.
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        results: list[TaskResult] = []
        records = await self._ledger.get_many(job_ids)
        own = {record.id: record for record in records if record.parent_id == self._spec.id}
        ended = [job_id for job_id, record in own.items() if record.state.is_terminal]
        unfinished: list[str] = []
        sent_back = await self._collector.land(ended)
        for job_id in job_ids:
            if job_id not in own:
                results.append(failed_task(_unknown(job_id), job_id))
            elif job_id not in ended or job_id in sent_back:
                unfinished.append(job_id)
            else:
                results.append(await self._collector.collect(job_id))
        return {"status": "success", "results": [*results], "unfinished": [*unfinished]}

    async def update_task(self, job_id: str, message: str, tool_context: ToolContext) -> TaskResult:
        """Send a task's agent a message. The model reads `UPDATE_TASK`."""
        del tool_context
        try:
            await self._own(job_id)
            await self._ledger.send(self._collector.newest(job_id), message)
        except (UnknownJob, InvalidJob) as failure:
            return task_error(failure, job_id)
        return started_result(job_id)

    async def cancel_task(self, job_id: str, tool_context: ToolContext) -> TaskResult:
        """Cancel a task. The model reads `CANCEL_TASK`."""
        del tool_context
        try:
            await self._own(job_id)
            before = await self._ledger.cancel(self._collector.newest(job_id))
        except UnknownJob as failure:
            return task_error(failure, job_id)
        if before.is_terminal:
            return task_error(InvalidJob(f"The task had ended before: {before}."), job_id)
        return started_result(job_id)

    @polling
    @tabular
    async def list_tasks(self, tool_context: ToolContext) -> TaskResult:
        """List all tasks of this job. The model reads `LIST_TASKS`."""
        del tool_context
        me, records = self._spec.id, dict[str, JobRecord]()
        async for ids in self._ledger.tree_steps(self._spec.root_id, parent_id=me):
            records |= {one.id: one for one in await self._ledger.get_many(ids)}
        own = list(records)
        newest = {job_id: self._collector.newest(job_id) for job_id in own}
        again = [job_id for job_id in newest.values() if job_id not in records]
        records |= {one.id: one for one in await self._ledger.get_many(again)}
        reworks = {rework for task, rework in newest.items() if rework != task}
        tasks = [
            {**job_summary(records.get(newest[task], records[task])), "job_id": task}
            for task in own
            if task not in reworks
        ]
        return {"status": "success", "tasks": [*tasks]}

    async def _own(self, job_id: str) -> JobRecord:
        """Return the record of a task of this job.

        Raises:
            UnknownJob: The job does not exist, or is not this one's.
        """
        with suppress(UnknownJob):
            record = await self._ledger.get(job_id)
            if record.parent_id == self._spec.id:
                return record
        raise _unknown(job_id)


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"You have no task {job_id}; list_tasks shows those that you have.")


def _name_of(tool_context: ToolContext) -> str:
    """Return the name of a call, which is the same when its attempt is repeated."""
    call_id = tool_context.function_call_id
    events = reversed(tool_context.session.events)
    made_in = (
        event.id
        for event in events
        if any(call.id == call_id for call in event.get_function_calls())
    )
    return name_of_call(next(made_in, ""), call_id)
