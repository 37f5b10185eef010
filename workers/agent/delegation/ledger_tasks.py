"""The tasks of a job's agent, each a job below it: what its tools do, over the ledger.

The results of `task`, `tasks`, `run_script` and `wait_tasks` are deferred: `Children` submits the
tasks of the first three when the run has ended, and the job is parked, so that a wait holds no
slot. A task of `start_task` is submitted at once, fenced by the attempt's lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from google.adk.tools.tool_context import ToolContext
from pydantic import ValidationError

from fanout.orchestrator.deep_agent import (
    TaskResult,
    combined_answer,
    deferred_result,
    event_with_call,
)
from fanout.orchestrator.delegation.answers import failed_task, job_summary
from fanout.orchestrator.delegation.calls import name_of_call
from fanout.orchestrator.jobs.failures import (
    BlobMissing,
    InvalidJob,
    LimitReached,
    UnknownJob,
)
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.scripts.check import check_script
from fanout.orchestrator.scripts.program import title_of
from fanout.orchestrator.scripts.texts import A_SCRIPT
from fanout.orchestrator.workspace.blobs import BlobStore

from .child_jobs import ChildJobs, open_traceparent
from .collector import Collector
from .inherited_conversation import CallersConversation

MOST_FAULTS = 20
"""The most faults of a script that the agent reads: it corrects them one by one."""


class LedgerTasks:
    """The tasks of one attempt; see `JobTasks`.

    Args:
        ledger: Holds the jobs.
        blobs: Holds the scripts.
        spec: The job.
        jobs: Makes and submits the children.
        collector: Merges what they changed.
    """

    quoted = (InvalidJob, LimitReached, BlobMissing, ValidationError)

    def __init__(
        self,
        ledger: Ledger,
        blobs: BlobStore,
        spec: JobSpec,
        jobs: ChildJobs,
        collector: Collector,
    ) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._spec = spec
        self._jobs = jobs
        self._collector = collector
        self.traceparents: dict[str | None, str | None] = {}
        """Call that was deferred in this attempt -> the context of its span."""

    async def run(
        self, items: Sequence[dict[str, Any]], tool_context: ToolContext, *, combined: bool
    ) -> TaskResult:
        """Return the deferred result of a call, or an error if none of its tasks can start."""
        try:
            self._jobs.check_room(len(items))
        except LimitReached as failure:
            return failed_task(failure)
        conversation = self._conversation(tool_context)
        children = [
            self._jobs.child("", number, item, conversation) for number, item in enumerate(items)
        ]
        refusals = [failed_task(child) for child in children if isinstance(child, Exception)]
        if len(refusals) == len(items):
            return combined_answer(refusals) if combined else refusals[0]
        self.traceparents[tool_context.function_call_id] = open_traceparent()
        return deferred_result(tool_context, {"tasks": items} if combined else items[0])

    async def run_script(
        self, script: str, inputs: Mapping[str, Any], tool_context: ToolContext
    ) -> TaskResult:
        """See `JobTasks.run_script`; the value is deferred, unless the script has faults.

        Raises:
            LimitReached: The job may have no more children, or nothing is left for them.
            InvalidJob: The script has faults, which the text lists, or cannot become a job.
            BlobStoreUnusable: The script cannot be stored.
        """
        self._jobs.check_scripts()
        faults = await check_script(script, self._jobs.agents, inputs=inputs)
        if faults:
            raise InvalidJob("The script has faults:\n" + "\n".join(faults[:MOST_FAULTS]))
        blob = await self._blobs.put(script.encode())
        call = {"script": blob, "title": title_of(script) or A_SCRIPT, "inputs": dict(inputs)}
        child = self._jobs.script_child("", call)
        if isinstance(child, Exception):
            raise child
        self.traceparents[tool_context.function_call_id] = open_traceparent()
        return deferred_result(tool_context, call)

    async def submit(self, item: Mapping[str, Any], tool_context: ToolContext) -> str:
        """See `JobTasks.submit`.

        Raises:
            LimitReached: The job may have no more children, or nothing is left for them.
            InvalidJob: The task cannot become a job.
            BlobMissing: A blob of the job's own start is missing.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
            SandboxFailure: The sandbox failed.
        """
        self._jobs.check_room(1)
        conversation = self._conversation(tool_context)
        child = self._jobs.child(_name_of(tool_context), 0, item, conversation)
        if isinstance(child, Exception):
            raise child
        if child.inherit:
            await self._jobs.store([conversation.lines(child.agent)])
        start = await self._jobs.snapshots.now()
        return await self._jobs.submit(child.model_copy(update=start.update()))

    def _conversation(self, tool_context: ToolContext) -> CallersConversation:
        """Return the conversation up to a call."""
        events = tool_context.session.events
        return CallersConversation(self._spec.agent, events, tool_context.function_call_id)

    async def find(self, job_id: str, tool_context: ToolContext) -> JobRecord:
        """See `JobTasks.find`."""
        del tool_context
        with suppress(UnknownJob):
            record = await self._ledger.get(job_id)
            if record.parent_id == self._spec.id:
                return record
        raise _unknown(job_id)

    async def collect(self, job_id: str, agent: str) -> TaskResult:
        """See `JobTasks.collect` and `Collector.collect`."""
        return await self._collector.collect(job_id, agent)

    async def wait(
        self, job_ids: Sequence[str], seconds: float, tool_context: ToolContext
    ) -> TaskResult:
        """See `JobTasks.wait`; the result is deferred unless they have ended."""
        until = await self._ledger.now_ms() / 1000 + seconds
        wait = {"job_ids": [*job_ids], "until": until}
        if await self.is_over(wait):
            return await self.collected(job_ids)
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
                results.append(await self._collector.collect(job_id, own[job_id].agent))
        return {"status": "success", "results": [*results], "unfinished": [*unfinished]}

    async def send(self, job_id: str, message: str) -> None:
        """See `JobTasks.send`."""
        await self._ledger.send(self._collector.newest(job_id), message)

    async def cancel(self, job_id: str) -> JobState:
        """See `JobTasks.cancel`."""
        return await self._ledger.cancel(self._collector.newest(job_id))

    async def summaries(self, tool_context: ToolContext) -> Sequence[TaskResult]:
        """See `JobTasks.summaries`; a task that was sent back has the state of its rework."""
        del tool_context
        me, records = self._spec.id, dict[str, JobRecord]()
        async for ids in self._ledger.tree_steps(self._spec.root_id, parent_id=me):
            records |= {one.id: one for one in await self._ledger.get_many(ids)}
        own = list(records)
        newest = {job_id: self._collector.newest(job_id) for job_id in own}
        again = [job_id for job_id in newest.values() if job_id not in records]
        records |= {one.id: one for one in await self._ledger.get_many(again)}
        reworks = {rework for task, rework in newest.items() if rework != task}
        return [
            {**job_summary(records.get(newest[task], records[task])), "task_id": task}
            for task in own
            if task not in reworks
        ]


def _unknown(job_id: str) -> UnknownJob:
    return UnknownJob(f"You have no task {job_id}; list_tasks shows those that you have.")


def _name_of(tool_context: ToolContext) -> str:
    """Return the name of a call, which is the same when its attempt is repeated."""
    call_id = tool_context.function_call_id
    reply = event_with_call(tool_context.session.events, str(call_id))
    return name_of_call(reply.id if reply else "", call_id)
