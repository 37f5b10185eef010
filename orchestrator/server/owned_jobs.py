"""`OwnedJobs`: the operations of one caller on jobs.

All interfaces of the service use it, so none of them can show or change another owner's job: such a
job does not exist for the caller.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from ..approvals import Decision
from ..client import JobClient
from ..client.fleet_view import FleetView, own_fleet, whole_fleet
from ..client.job_files import StoredFiles
from ..client.job_pages import JobFilter, JobPage
from ..configuration.agent_definitions import AgentDefinitions
from ..configuration.api_settings import EVERYBODY, Scope
from ..jobs.approvals import Approval
from ..jobs.budget import BudgetState
from ..jobs.changes import ChangeBundle
from ..jobs.failures import (
    BlobMissing,
    ChoiceRefused,
    InvalidJob,
    JobFailure,
    UnknownApproval,
    UnknownJob,
)
from ..jobs.graph import InvalidGraph, others, unknown_job
from ..jobs.result import JobResult, Usage
from ..jobs.spec import JobSpec
from ..jobs.state import JobRecord
from ..jobs.store.journal import JournalEvent
from ..jobs.store.model_states import ClosedModel
from ..jobs.store.stored import owner_key
from ..jobs.store.subscription import Subscription
from ..scripts.progress import ScriptProgress
from ..turns import OwnerTurns, TooManyWaiting
from .access.callers import Caller, NotAllowed
from .notifications.subscriptions import Subscriptions

MAX_ID_CHARACTERS = 64
"""The longest id of a job (`JobId`): a longer one does not exist."""
CHANGES_AT_ONCE = 4
"""The most change bundles that one server reads at the same time: Git compares their files, in one
of the few threads of a process."""
CHANGES_OF_OWNER = 2
"""The most of them for one owner."""
WAITING_OF_OWNER = 64
"""The most calls of one owner that wait for a bundle; further ones are refused."""
OUTCOMES: Mapping[type[Exception], str] = {
    NotAllowed: "not allowed",
    ChoiceRefused: "not allowed",
    UnknownJob: "not found",
    UnknownApproval: "not found",
}
"""The outcomes of failed calls in the audit log; for other failures, their name."""


class Audit(Protocol):
    """The record of changes and their callers."""

    async def record(
        self, caller: Caller, action: str, target: str = "", outcome: str = "done"
    ) -> None:
        """Add one record.

        Args:
            caller: The caller.
            action: The requested action, such as `job.cancel`.
            target: The id of the job or approval.
            outcome: `done`, or why not.
        """


@dataclass
class _Call:
    """A call that changes something, for the audit log."""

    target: str


class CallerBusy(JobFailure):
    """One owner has too much expensive work at the same time."""


_scripts_turns = OwnerTurns(at_once=4, of_one_owner=2, waiting_of_one_owner=64)
"""The turns of reading how scripts stand in this process: one without a summary is read whole."""
_changes_turns = OwnerTurns(
    at_once=CHANGES_AT_ONCE,
    of_one_owner=CHANGES_OF_OWNER,
    waiting_of_one_owner=WAITING_OF_OWNER,
)

_script_turns = OwnerTurns(at_once=2, of_one_owner=1, waiting_of_one_owner=64)
"""The turns of checks of scripts in this process, each of which has a process of its own and may
take seconds."""


class KeyReused(Exception):
    """An idempotency key was used before for a different job."""


class OwnedJobs:
    """The jobs of one caller.

    Every method raises `NotAllowed` when the caller lacks the scope, `UnknownJob` for a job that
    does not exist or belongs to another owner, and `LedgerUnavailable` when Redis does not respond.

    Args:
        client: The connection of the service.
        caller: The caller.
        audit: The record of changes.
    """

    def __init__(self, client: JobClient, caller: Caller, audit: Audit) -> None:
        self._client = client
        self._audit = audit
        self.caller = caller

    async def definitions(self) -> AgentDefinitions:
        """Return the agents that jobs may name; changed files are read again."""
        return await self._client.current_definitions()

    async def submit_many(self, specs: Sequence[JobSpec]) -> list[str]:
        """Store jobs of the caller, all or none, and return their ids in order.

        Raises:
            KeyReused: An idempotency key was used before for a different job.
            UnknownAgent, LimitExceeded, ChoiceRefused, InvalidJob, BlobMissing: As
                `JobClient.submit_many`. A job after one of another owner is after one that does not
                exist.
        """
        async with self._recorded("job.submit", Scope.SUBMIT) as call:
            for spec in specs:
                if spec.continues:
                    await self._check(spec.continues)
            owned = list(map(self._owned, specs))
            await self._check_predecessors(owned)
            await self._check_snapshots(owned)
            known = await self._client.known_as(owned)
            await self._check_repeated(owned, known)
            ids = await self._client.submit_many([(spec, None) for spec in owned])
            call.target = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
            if ids != known:  # another caller used a key between the two steps
                await self._check_repeated(owned, ids)
        return ids

    async def script_job(
        self, source: str, inputs: Mapping[str, JsonValue] | None, spec: JobSpec
    ) -> JobSpec:
        """Store a script, and return the caller's job that runs it, which is not submitted yet.

        Raises:
            CallerBusy: Too many scripts of the caller's are being checked.
            UnknownAgent, InvalidJob: As `JobClient.script_job`.
        """
        self.caller.require(Scope.SUBMIT)
        async with self.turn(_script_turns):
            return await self._client.script_job(source, inputs, self._owned(spec))

    async def add_snapshot(self, folder: Path) -> StoredFiles:
        """Store a snapshot of a private folder, from which the caller's jobs may start.

        Raises:
            WorkspaceUnusable: It is too large.
        """
        async with self._recorded("snapshot.add", Scope.SUBMIT) as call:
            stored = await self._client.files.store(folder)
            owner, tenant = self.caller.submits_as
            for whose in (owner_key(tenant, owner), owner_key(tenant, EVERYBODY)):
                await self._client.files.owners.add(whose, [stored.snapshot])
            call.target = stored.snapshot
        return stored

    @property
    def max_snapshot_bytes(self) -> int:
        """The maximum sum of file sizes of a snapshot."""
        return self._client.files.max_bytes

    @asynccontextmanager
    async def private_place(self) -> AsyncIterator[Path]:
        """Yield an empty private folder for files that the caller sends."""
        self.caller.require(Scope.SUBMIT)
        async with self._client.files.private_place() as folder:
            yield folder

    async def known_as(self, spec: JobSpec) -> JobRecord | None:
        """Return the caller's job that has a specification's idempotency key; None: no job."""
        self.caller.require(Scope.SUBMIT)
        known = await self._client.known_as([self._owned(spec)])
        return next(iter(await self._client.records(known)), None)

    def _owned(self, spec: JobSpec) -> JobSpec:
        """Return a specification as the caller's."""
        owner, tenant = self.caller.submits_as
        policy = self.caller.policy
        return spec.model_copy(update={"owner": owner, "tenant": tenant, "caller_policy": policy})

    async def _check_predecessors(self, specs: Sequence[JobSpec]) -> None:
        """Refuse jobs after jobs that do not exist for the caller."""
        before = others(specs)
        owners = await self._client.owners_of(list(before))
        for (job_id, position), owner in zip(before.items(), owners, strict=True):
            if owner is not None and not self.caller.owns(owner):
                raise InvalidGraph([unknown_job(job_id, position)], len(specs))

    async def _check_snapshots(self, specs: Sequence[JobSpec]) -> None:
        """Refuse snapshots that the caller has not stored, as if they did not exist.

        A caller who sees all jobs of a tenant may use every snapshot of the tenant.
        """
        if self.caller.tenant == EVERYBODY:
            return
        used = {spec.snapshot for spec in specs if spec.snapshot}
        whose = owner_key(self.caller.tenant, self.caller.owner)
        for unknown in await self._client.files.owners.missing(whose, used):
            raise BlobMissing(f"There is no snapshot {unknown}: store it (POST /v1/snapshots).")

    async def _check_repeated(self, specs: Sequence[JobSpec], ids: Sequence[str]) -> None:
        """Refuse a key or an id that names an earlier job with another task."""
        repeated = {job_id: spec for spec, job_id in zip(specs, ids, strict=True)}
        given = (
            *("agent", "description", "context", "snapshot", "model", "continues", "labels"),
            *("script", "script_inputs"),
        )
        for record in await self._client.records(repeated):
            spec = repeated[record.id]
            if not self.caller.owns(record):
                raise KeyReused("A job has this id already: use another one, or none.")
            if any(getattr(record, name) != getattr(spec, name) for name in given):
                raise KeyReused(
                    f"This idempotency key or id was used for job {record.id}, with another task: "
                    "use a new key."
                )

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record."""
        await self._read(job_id)
        return await self._client.get(job_id)

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result, None until it has ended."""
        await self._read(job_id)
        return await self._client.result(job_id)

    async def complete_result(self, job_id: str) -> JobResult | None:
        """Return a job's result with its changes; see `JobReader.complete_result`."""
        await self._read(job_id)
        return await self._client.complete_result(job_id)

    async def wait(self, job_id: str, timeout_seconds: float) -> JobResult | None:
        """Wait for a job's end and return its result, None when it has not ended in this time."""
        await self._read(job_id)
        try:
            return await self._client.wait(job_id, timeout_seconds)
        except TimeoutError:
            return None

    async def tree(self, job_id: str) -> list[JobRecord]:
        """Return all jobs of a job's tree, parents before children."""
        await self._read(job_id)
        return [one for one in await self._client.tree(job_id) if self.caller.owns(one)]

    async def awaited_models(self, records: Sequence[JobRecord]) -> list[ClosedModel]:
        """Return the models for which some of the caller's jobs wait, and how many of these do."""
        self.caller.require(Scope.READ)
        return await self._client.awaited_models(filter(self.caller.owns, records))

    async def models_awaited_in_tree(self, job_id: str) -> list[ClosedModel]:
        """Return the models for which jobs of a job's tree wait, and how many of them do."""
        if not await self._client.closed_models():  # nearly always: the tree is not read
            return []
        return await self.awaited_models(await self.tree(job_id))

    async def tree_parts(
        self, job_id: str, *, parent_id: str | None = None
    ) -> AsyncGenerator[list[JobRecord], None]:
        """Yield the jobs of `tree` in parts, as `JobReader.tree_parts`."""
        await self._read(job_id)
        async with aclosing(self._client.tree_parts(job_id, parent_id=parent_id)) as parts:
            async for part in parts:
                yield [one for one in part if self.caller.owns(one)]

    async def tree_states(self, records: Sequence[JobRecord]) -> list[Mapping[str, int]]:
        """Return for each of the caller's trees how many of its jobs are in which state."""
        self.caller.require(Scope.READ)
        roots = [one.root_id for one in records if self.caller.owns(one)]
        return await self._client.tree_states(roots)

    async def tree_sizes(self, records: Sequence[JobRecord]) -> list[int]:
        """Return for each of the caller's jobs how many jobs its tree has."""
        self.caller.require(Scope.READ)
        return await self._client.tree_sizes([one.root_id for one in records])

    async def usage(self, job_id: str) -> Usage:
        """Return the usage of a job and the jobs below it together."""
        await self._read(job_id)
        return await self._client.usage(job_id)

    async def budget(self, job_id: str) -> BudgetState:
        """Return what is used, reserved and left of the budget of a job and the jobs below it."""
        await self._read(job_id)
        return await self._client.budget(job_id)

    async def budgets(self, records: Sequence[JobRecord]) -> list[BudgetState]:
        """Return the budget of each of the caller's jobs, together with the jobs below it."""
        self.caller.require(Scope.READ)
        return await self._client.budgets([one.id for one in records if self.caller.owns(one)])

    async def events(self, job_id: str, after: str) -> AsyncGenerator[JournalEvent, None]:
        """Yield the events of a job's journal after an id, and new ones, until the job's end."""
        await self._read(job_id)
        async with aclosing(self._client.events(job_id, after)) as events:
            async for event in events:
                yield event

    async def read_events(self, job_id: str, after: str, count: int) -> list[JournalEvent]:
        """Return the events of a job's journal after an id, at most `count`."""
        await self._read(job_id)
        return await self._client.read_events(job_id, after, count)

    async def read_events_before(
        self, job_id: str, before: str | None, count: int
    ) -> list[JournalEvent]:
        """Return the newest events of a job's journal before an id, as `Journal.read_before`."""
        await self._read(job_id)
        return await self._client.read_events_before(job_id, before, count)

    async def script_progress(self, job_id: str) -> ScriptProgress:
        """Return how a script stands, as `JobReader.script_progress`, in its turn.

        Raises:
            CallerBusy: Too many scripts of the caller's are being read.
        """
        await self._read(job_id)
        async with self.turn(_scripts_turns):
            return await self._client.script_progress(job_id)

    async def session_event(self, entry: JournalEvent) -> bytes | None:
        """Return the ADK event that an entry of a journal holds, as JSON; None if it holds none."""
        self.caller.require(Scope.READ)
        return await self._client.session_event(entry)

    @asynccontextmanager
    async def changes(self, job_id: str) -> AsyncIterator[ChangeBundle]:
        """Open the change bundle of a job that has ended, as `JobClient.changes`, in its turn.

        Raises:
            CallerBusy: Too many bundles of the caller's are being read.
        """
        await self._read(job_id)
        async with self.turn(_changes_turns), self._client.changes(job_id) as bundle:
            yield bundle

    @asynccontextmanager
    async def turn(self, turns: OwnerTurns) -> AsyncIterator[None]:
        """Wait for one of the caller's turns, and hold it during the context.

        Raises:
            CallerBusy: Too much work of the caller waits already.
        """
        owner, tenant = self.caller.submits_as
        try:
            async with turns.turn(f"{tenant}/{owner}"):
                yield
        except TooManyWaiting:
            raise CallerBusy(
                "Too many of your requests are still being worked on: wait for some of them."
            ) from None

    async def archive(self, job_id: str, *, changed_only: bool) -> Iterator[bytes]:
        """Return the files after a job that has ended as a tar.gz, in chunks; iterating blocks.

        Raises:
            InvalidJob: It has not ended.
            BlobMissing: A part of them has expired.
        """
        record = await self.get(job_id)
        result = await self.complete_result(job_id)
        if result is None:
            raise InvalidJob(f"Job {job_id} has not ended: its files are known when it has.")
        return await self._client.files.archive(record, result, changed_only=changed_only)

    async def page(self, wanted: JobFilter, before: int | None, limit: int) -> JobPage:
        """Return some of the caller's jobs, newest first."""
        return await self._client.pages.page(self._mine(wanted), before, limit)

    async def count(self, wanted: JobFilter, most: int) -> int:
        """Return how many of the caller's newest jobs fit, as `JobPages.count`."""
        return await self._client.pages.count(self._mine(wanted), most)

    def _mine(self, wanted: JobFilter) -> JobFilter:
        self.caller.require(Scope.READ)
        return replace(
            wanted,
            tenant=None if self.caller.tenant == EVERYBODY else self.caller.tenant,
            owner=None if self.caller.owner == EVERYBODY else self.caller.owner,
        )

    async def fleet(self) -> FleetView:
        """Return the installation for its operator, and for others their running and queued jobs.

        The operator is a caller who sees all jobs of all tenants and has the scope `admin`.
        """
        self.caller.require(Scope.READ)
        tenant = None if self.caller.tenant == EVERYBODY else self.caller.tenant
        owner = None if self.caller.owner == EVERYBODY else self.caller.owner
        if tenant is None and owner is None and Scope.ADMIN in self.caller.scopes:
            return await whole_fleet(self._client)
        return await own_fleet(self._client, tenant, owner)

    async def owned_records(self, job_ids: Iterable[str]) -> list[JobRecord]:
        """Return the records of those jobs that are the caller's."""
        self.caller.require(Scope.READ)
        return [one for one in await self._client.records(job_ids) if self.caller.owns(one)]

    async def cancel(self, job_id: str) -> JobRecord:
        """Cancel a job and its descendants, and return its record from before."""
        async with self._recorded("job.cancel", Scope.SUBMIT, job_id):
            await self._check(job_id)
            return await self._client.cancel(job_id)

    async def retry(self, job_id: str) -> str:
        """Submit the same job again as a separate tree, and return the new id."""
        async with self._recorded("job.retry", Scope.SUBMIT, job_id):
            await self._check(job_id)
            return await self._client.retry(job_id, caller_policy=self.caller.policy)

    async def send(self, job_id: str, text: str) -> None:
        """Send a message to a job's agent.

        Raises:
            InvalidJob: The job has ended, or the message is empty or too long.
        """
        async with self._recorded("job.tell", Scope.SUBMIT, job_id):
            await self._check(job_id)
            await self._client.send(job_id, text)

    @asynccontextmanager
    async def merging(self, job_id: str) -> AsyncIterator[None]:
        """Record that the caller merges the changes of a job into a folder of this machine."""
        async with self._recorded("job.apply", Scope.SUBMIT, job_id):
            await self._check(job_id)
            yield

    async def subscribe(
        self, job_id: str, subscription: Subscription, subscriptions: Subscriptions
    ) -> None:
        """Register a subscription to a job.

        Raises:
            InvalidJob: The URL may not be notified, or the job has too many subscriptions.
        """
        async with self._recorded("job.subscribe", Scope.SUBMIT, job_id):
            await self._check(job_id)
            await subscriptions.register(job_id, subscription)

    async def unsubscribe(self, job_id: str, subscription_id: str) -> bool:
        """Delete a subscription to a job, and return whether there was one."""
        async with self._recorded("job.unsubscribe", Scope.SUBMIT, job_id):
            await self._check(job_id)
            return await self._client.notifications.delete(job_id, subscription_id)

    async def subscriptions(self, job_id: str) -> list[Subscription]:
        """Return the subscriptions to a job, without the secrets."""
        await self._read(job_id)
        return await self._client.notifications.list(job_id)

    async def approvals(self) -> list[Approval]:
        """Return the calls of the caller's jobs that wait for a decision, oldest first."""
        self.caller.require(Scope.READ)
        found = await self._client.approvals()
        mine = {one.id for one in await self.owned_records({one.job_id for one in found})}
        return [one for one in found if one.job_id in mine]

    async def answer(
        self,
        approval_id: str,
        decision: Decision,
        *,
        arguments: Mapping[str, JsonValue] | None = None,
        response: JsonValue = None,
        message: str = "",
    ) -> str:
        """Answer an approval of one of the caller's jobs, and return the job's id.

        Raises:
            UnknownApproval: It does not exist, or is another owner's.
            ApprovalRefused: The answer was rejected; the text says why.
        """
        async with self._recorded(f"approval.{decision}", Scope.APPROVE, approval_id):
            job_id = await self._client.job_of_approval(approval_id)
            ownership = None if job_id is None else await self._client.owner_of(job_id)
            if ownership is None or not self.caller.owns(ownership):
                raise UnknownApproval(f"There is no approval {approval_id[:MAX_ID_CHARACTERS]}.")
            await self._client.answer(
                approval_id,
                decision,
                arguments=arguments,
                response=response,
                message=message,
                person=self.caller.name,
            )
        return str(job_id)

    async def _read(self, job_id: str) -> None:
        self.caller.require(Scope.READ)
        await self._check(job_id)

    @asynccontextmanager
    async def _recorded(self, action: str, scope: Scope, target: str = "") -> AsyncIterator[_Call]:
        """Check a scope, and record a call that changes something once, however it ends."""
        call, outcome = _Call(target[:MAX_ID_CHARACTERS]), "interrupted"
        try:
            self.caller.require(scope)
            yield call
            outcome = "done"
        except Exception as failure:
            outcome = OUTCOMES.get(type(failure), type(failure).__name__)
            raise
        finally:
            await self._audit.record(self.caller, action, call.target, outcome)

    async def _check(self, job_id: str) -> None:
        ownership = None
        if len(job_id) <= MAX_ID_CHARACTERS:
            ownership = await self._client.owner_of(job_id)
        if ownership is None or not self.caller.owns(ownership):
            raise UnknownJob(f"There is no job {job_id[:MAX_ID_CHARACTERS]}.")
