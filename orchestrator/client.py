"""`JobClient`: everything a program does with jobs, from submitting to applying their changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import JsonValue, ValidationError
from redis.asyncio import Redis

from orchestrator.approvals import ApprovalAnswer, Decision
from orchestrator.configuration.agent_definitions import AgentDefinitions, load_agent_definitions
from orchestrator.configuration.settings import InvalidSetting, Settings, load_settings
from orchestrator.jobs.approvals import Approval
from orchestrator.jobs.changes import ChangeBundle
from orchestrator.jobs.failures import (
    InvalidAnswer,
    InvalidJob,
    LedgerUnavailable,
    UnknownApproval,
    UnknownJob,
)
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.jobs.spec import JobSpec, TreeBounds, new_job_id
from orchestrator.jobs.state import JobRecord, JobState
from orchestrator.jobs.store.admission import Admission
from orchestrator.jobs.store.connection import connect
from orchestrator.jobs.store.journal import BEGINNING, Journal, JournalEvent
from orchestrator.jobs.store.keys import Keys
from orchestrator.jobs.store.ledger import Ledger
from orchestrator.jobs.store.outage import through_outage
from orchestrator.jobs.store.queue import CeleryQueue
from orchestrator.jobs.store.rate_limiter import RateLimiter
from orchestrator.jobs.store.waiting import occupancy, waiting_reason
from orchestrator.jobs.worker_info import WorkerInfo
from orchestrator.workspace.blobs import BlobStore
from orchestrator.workspace.merge import MergeReport, merge
from orchestrator.workspace.workspace import Workspace

MOST_NAMED = 5
"""Of several approvals that a person may have meant."""
RECORDS_AT_ONCE = 500
"""Records fetched in one round trip."""

Ids = list[str]
Records = list[JobRecord]
Workers = list[WorkerInfo]
Approvals = list[Approval]
"""Spelled here because a method of the client is called `list`."""


class JobClient:
    """One parent's connection to the ledger, the queue and the blob store; for one event loop.

    Every method raises `LedgerUnavailable` when Redis does not answer.
    """

    def __init__(self, redis_url: str, settings: Settings, definitions: AgentDefinitions) -> None:
        self._keys = keys = Keys()
        self._settings = settings
        self._redis: Redis = connect(redis_url)
        self._ledger = Ledger(self._redis, keys)
        self._journal = Journal(self._redis, keys)
        self._queue = CeleryQueue(redis_url, keys.prefix, settings.worker.queue)
        self._admission = Admission(self._ledger, self._queue)
        self._blobs = BlobStore(settings.blobs)
        self._workspaces: dict[Path, Workspace] = {}
        self.definitions = definitions
        self.rate_limiter = RateLimiter(self._redis, keys, settings.models, needs_redis=False)
        """Where a coordinator's requests to models wait for their turn."""

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """A client with the settings given, or those of the environment.

        Raises:
            InvalidSetting: a value is not allowed, or there is no FANOUT_REDIS_URL.
            InvalidAgentDefinition: an agent definition is not understood.
        """
        settings = settings or load_settings()
        if settings.redis_url is None:
            raise InvalidSetting(
                "FANOUT_REDIS_URL is not set: give the Redis that the workers use."
            )
        return cls(settings.redis_url, settings, load_agent_definitions(settings.agents_dir))

    async def __aenter__(self) -> Self:
        """Nothing is opened before it is used."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections; jobs go on."""
        await self._journal.close()
        await self._queue.close()
        await self._redis.aclose()

    def workspace(self, folder: Path) -> Workspace:
        """The workspace of a folder.

        One object for one folder, so that it remembers its snapshot.
        """
        root = folder.absolute()
        if root not in self._workspaces:
            limit = self._settings.limits.snapshot_bytes
            self._workspaces[root] = Workspace(root, max_snapshot_bytes=limit)
        return self._workspaces[root]

    async def submit(self, spec: JobSpec, *, workspace: Path | None = None) -> str:
        """Store a job and send it if there is room; its id. What has an id ends, whatever dies.

        Raises:
            UnknownAgent: there is no agent of that name; nothing is stored.
        """
        return (await self.submit_many([(spec, workspace)]))[0]

    async def submit_many(self, jobs: Sequence[tuple[JobSpec, Path | None]]) -> Ids:
        """Store jobs with their workspaces, all or none; their ids in order.

        Raises:
            UnknownAgent: one names an agent that is not there; nothing is stored.
        """
        for spec, _ in jobs:
            self.definitions[spec.agent]  # raises in words
        snapshots = {
            folder: await self.workspace(folder).snapshot(self._blobs)
            for folder in {folder for _, folder in jobs if folder is not None}
        }
        specs = [
            spec if folder is None else spec.model_copy(update={"snapshot": snapshots[folder]})
            for spec, folder in jobs
        ]
        for snapshot in {spec.snapshot for spec in specs if spec.snapshot}:
            await self._blobs.keep(
                snapshot
            )  # it may be an old one: of a retried job, or remembered
        ids = await self._ledger.submit(specs)
        with contextlib.suppress(
            LedgerUnavailable
        ):  # they are stored: a worker's reaper sends them later
            await self._admission.pump()
        return ids

    async def run(
        self, spec: JobSpec, *, workspace: Path | None = None, merge: bool = True
    ) -> JobResult:
        """Submit a job, wait for its end and, unless told otherwise, merge its changes into the workspace.

        Those of a job that did not succeed stay out; `apply` merges them.
        """
        job_id = await self.submit(spec, workspace=workspace)
        result = await self.wait(job_id)
        if merge and workspace is not None and result.success:
            await self.merge(result, workspace)
        return result

    async def get(self, job_id: str) -> JobRecord:
        """A job's record; UnknownJob when there is none."""
        return (await self._explained([await self._ledger.get(job_id)]))[0]

    async def result(self, job_id: str) -> JobResult | None:
        """A job's result, None until it has ended; UnknownJob when there is no such job."""
        return await self._ledger.result(job_id)

    async def wait(self, job_id: str, timeout_seconds: float | None = None) -> JobResult:
        """Wait for a job's end, also through an outage of Redis that is shorter than `OUTAGE_SECONDS`.

        Raises:
            TimeoutError: it has not ended by then; it goes on.
        """
        result = await self.result(
            job_id
        )  # an unknown job, or a Redis that is not there, is told at once
        if result is not None:
            return result
        async with asyncio.timeout(timeout_seconds):
            while True:
                # The journal's end before the result: a job that ends in between is then followed
                # to its end.
                last = await through_outage(lambda: self._journal.last(job_id))
                result = await through_outage(lambda: self.result(job_id))
                if result is not None:
                    return result
                async for _ in self._journal.follow(job_id, last.id if last else BEGINNING):
                    pass

    async def cancel(self, job_id: str) -> JobRecord:
        """End a job and all below it; its record before. A job that has ended stays as it is."""
        record = await self.get(job_id)
        await self._ledger.cancel(job_id)
        return record

    async def approvals(self) -> Approvals:
        """The calls of jobs that wait for a person, oldest first."""
        return await self._ledger.approvals()

    async def answer(
        self,
        approval_id: str,
        decision: Decision,
        *,
        arguments: Mapping[str, JsonValue] | None = None,
        response: JsonValue = None,
        message: str = "",
        by: str = "",
    ) -> str:
        """Decide on a call that waits.

        The id of its job, which goes on when nothing of it waits any more.

        Args:
            approval_id: which; `approvals` lists them.
            decision: one of those that the approval offers.
            arguments: for `edit`, what the call runs with, in full.
            response: for `respond`, what the agent is told in place of the tool's result.
            message: a word to the agent.
            by: who answers; it stands in the job's journal.

        Raises:
            ApprovalRefused: the answer was not taken; the text says why.
        """
        try:
            answer = ApprovalAnswer(
                decision=decision,
                arguments=None if arguments is None else dict(arguments),
                response=response,
                message=message,
                by=by,
            )
        except ValidationError as error:
            raise InvalidAnswer(f"The answer is not whole: {error.errors()[0]['msg']}.") from None
        job_id = await self._ledger.answer(approval_id, answer)
        with contextlib.suppress(
            LedgerUnavailable
        ):  # the answer is stored: a worker's reaper sends the job
            await self._admission.pump()
        return job_id

    async def resolve_approval(self, prefix: str) -> str:
        """The id of the approval that a shortened one stands for, or the only one for which a job waits.

        Raises:
            UnknownApproval: several do, or nothing that waits has an id that begins so.
        """
        waiting = await self._ledger.approvals()
        own = [approval for approval in waiting if approval.id.startswith(prefix)]
        found = own or [approval for approval in waiting if approval.job_id.startswith(prefix)]
        if len(found) == 1 and prefix:
            return found[0].id
        if found and prefix:
            named = ", ".join(f"{approval.id} ({approval.tool})" for approval in found[:MOST_NAMED])
            raise UnknownApproval(
                f"{prefix} stands for {len(found)} approvals, so name one: {named}."
            )
        if await self._ledger.knows_approval(prefix):
            return prefix  # the answer will say what became of it
        raise UnknownApproval(
            f"No approval waits under {prefix!r}; `fanout approvals` lists those that do."
        )

    async def send(self, job_id: str, text: str) -> None:
        """Tell a job's agent something while it works or waits.

        It reads it before its next model call.

        Raises:
            UnknownJob: there is no such job.
            InvalidJob: it has ended, or the message is empty or too long.
        """
        await self._ledger.send(job_id, text)

    async def retry(self, job_id: str) -> str:
        """Submit the same job again under a new id, as a tree of its own."""
        spec = await self._ledger.specification(job_id)
        fresh = new_job_id()
        update = {
            "id": fresh,
            "root_id": fresh,
            "parent_id": None,
            "depth": 0,
            "idempotency_key": None,
        }
        return await self.submit(JobSpec.model_validate({**spec.model_dump(), **update}))

    async def list(
        self,
        *,
        states: Collection[JobState] | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> Records:
        """Jobs in those states with all those labels, oldest first.

        Of more than `limit` the newest.
        """
        live_only = states is not None and not any(state.is_terminal for state in states)
        ids = await self._ledger.ids(live_only=live_only)
        wanted = (labels or {}).items()
        found: Records = []
        for end in range(len(ids), 0, -RECORDS_AT_ONCE):
            page = await self._ledger.get_many(ids[max(0, end - RECORDS_AT_ONCE) : end])
            found[:0] = [
                record
                for record in page
                if (states is None or record.state in states) and wanted <= record.labels.items()
            ]
            if len(found) >= limit:
                break
        return await self._explained(found[max(0, len(found) - limit) :])

    async def tree(self, job_id: str) -> Records:
        """Every job of a job's tree, or of the tree of that root id, oldest first.

        Parents before children.

        Raises:
            UnknownJob: there is no such job or tree.
        """
        ids = await self._ledger.tree_ids(job_id)
        if not ids:
            ids = await self._ledger.tree_ids((await self._ledger.get(job_id)).root_id)
        return await self._explained(await self._ledger.get_many(ids))

    async def tree_usage(self, root_id: str) -> Usage:
        """What all jobs of a tree have consumed together, those that run included."""
        return (await self._ledger.usage([root_id]))[0]

    @property
    def tree_bounds(self) -> TreeBounds:
        """What a tree may consume, and how far it may grow."""
        return self._settings.limits.tree_bounds()

    async def resolve(self, prefix: str) -> str:
        """The id that a shortened one stands for.

        Raises:
            UnknownJob: no id begins so.
            InvalidJob: several do.
        """
        if await self._ledger.get_many([prefix]):
            return prefix
        matches = (
            [job_id for job_id in await self._ledger.ids() if job_id.startswith(prefix)]
            if prefix
            else []
        )
        if not matches:
            raise UnknownJob(f"There is no job {prefix}.")
        if len(matches) > 1:
            raise InvalidJob(
                f"{prefix} is ambiguous: {len(matches)} ids begin so, {matches[0]} for one."
            )
        return matches[0]

    async def events(
        self, job_id: str, after: str = BEGINNING, *, follow: bool = True
    ) -> AsyncIterator[JournalEvent]:
        """A job's journal after an event id.

        With `follow` on to the job's end, also through an outage.

        Raises:
            UnknownJob: there is no such job.
        """
        record = await self._ledger.get(job_id)
        if follow and not record.state.is_terminal:
            async for event in self._journal.follow(job_id, after):
                yield event
        else:
            for event in await self._journal.read(job_id, after):
                yield event

    @contextlib.asynccontextmanager
    async def changes(self, job_id: str) -> AsyncIterator[ChangeBundle]:
        """The change bundle of a job that has ended.

        Its methods read a file, so call them in a thread.

        Raises:
            InvalidJob: it has not ended, or changed nothing.
        """
        result = await self.result(job_id)
        if result is None:
            raise InvalidJob(f"Job {job_id} has not ended: its changes are known when it has.")
        if result.changes is None:
            raise InvalidJob(f"Job {job_id} changed nothing.")
        path = await self._blobs.fetch(result.changes)
        with contextlib.ExitStack() as stack:
            yield await asyncio.to_thread(stack.enter_context, ChangeBundle.open(path))

    async def apply(self, job_id: str, into: Path, *, check: bool = False) -> MergeReport:
        """Merge a job's changes into a folder; with `check` only say what would happen."""
        async with self.changes(job_id) as bundle:
            return await merge(self.workspace(into), bundle, check=check)

    async def merge(self, result: JobResult, workspace: Path) -> MergeReport | None:
        """Merge a result's changes into a folder; None when there are none."""
        if result.changes is None:
            return None
        return await self.apply(result.job_id, workspace)

    async def workers(self) -> Workers:
        """The workers that live."""
        return await self._ledger.workers()

    async def _explained(self, records: Records) -> Records:
        """The records, with words for why the waiting ones wait."""
        if not any(record.state is JobState.QUEUED for record in records):
            return records
        workers = await self._ledger.workers()
        occupied = await occupancy(self._redis, self._keys, records, workers)
        return [
            record.model_copy(
                update={"waiting_for": waiting_reason(record, occupied) or record.waiting_for}
            )
            for record in records
        ]
