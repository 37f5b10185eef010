"""`JobClient`: submit jobs, follow them, answer their approvals, merge their changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import JsonValue, ValidationError

from ..approvals import ApprovalAnswer, Decision
from ..configuration.agent_definitions import AgentDefinitions
from ..configuration.known_names import possible_model
from ..configuration.live_definitions import LiveDefinitions
from ..configuration.settings import Settings, load_settings
from ..delegation.continuation import Continuations
from ..delegation.submission_check import check_price, check_submission
from ..jobs.changes import ChangeBundle
from ..jobs.conversation import event_json
from ..jobs.failures import (
    InvalidAnswer,
    InvalidJob,
    LedgerUnavailable,
    LimitExceeded,
)
from ..jobs.graph import resolved
from ..jobs.result import JobResult
from ..jobs.spec import CallerPolicy, JobSpec, StartFiles
from ..jobs.state import JobRecord
from ..jobs.store.admission import Admission
from ..jobs.store.journal import JournalEvent
from ..jobs.store.ledger import Ledger
from ..jobs.store.notification_store import NotificationStore
from ..jobs.store.queue import CeleryQueue
from ..jobs.store.snapshot_owners import SnapshotOwners
from ..jobs.trace_context import usable_traceparent
from ..jobs.worker_info import WorkerInfo
from ..output_schema import InvalidOutputSchema, check_schemas
from ..scripts.agents import script_agents
from ..scripts.check import check_script
from ..scripts.program import title_of
from ..tracing import spans
from ..turns import OwnerTurns, TooManyWaiting
from ..workspace.blobs import BlobStore
from ..workspace.exchange.private_places import PrivatePlaces
from ..workspace.merge import merge
from ..workspace.merge_report import MergeReport
from ..workspace.snapshots.index import SnapshotIndexes
from ..workspace.workspace import Workspace
from .attachment import attach
from .job_files import JobFiles
from .job_reader import Ids, JobReader
from .model_check import check_models, check_models_of_workers, is_worker_of_here

WORKERS_SECONDS = 5.0
"""The age up to which workers' reports of their models are accepted when a job is submitted; before
a job is refused they are read again."""
_schema_turns = OwnerTurns(at_once=2, of_one_owner=1, waiting_of_one_owner=256)
"""The turns of schema checks in this process, each of which takes seconds at worst."""


class JobClient(JobReader):
    """A connection to the ledger, the queue and the blob store, for one event loop.

    Every method raises `LedgerUnavailable` when Redis does not answer.

    Args:
        redis_url: The Redis that the workers use.
        settings: The installation's settings.
        definitions: The agents that jobs may name.
    """

    def __init__(self, redis_url: str, settings: Settings, definitions: AgentDefinitions) -> None:
        super().__init__(redis_url, settings.redis_prefix)
        self._settings = settings
        self._records = self._ledger = Ledger(self._redis, self._keys)
        self._queue = CeleryQueue(
            redis_url, self._keys.prefix, settings.worker.queue, settings.queue.secrets
        )
        self._admission = Admission(self._ledger, self._queue)
        self._blobs = BlobStore(settings.blobs, timeout_seconds=settings.blobs_timeout_seconds)
        self._continuations = Continuations(self._ledger, self._journal, self._blobs, definitions)
        self._workspaces: dict[Path, Workspace] = {}
        self.files = JobFiles(
            self._blobs,
            PrivatePlaces(settings.state_dir.expanduser() / "received"),
            SnapshotOwners(self._redis, self._keys),
            settings.limits.snapshot_bytes,
        )
        self._workers: list[WorkerInfo] = []
        self._workers_read_at = -WORKERS_SECONDS
        self.definitions = definitions
        """The agents that jobs may name, as last read."""
        self._live: LiveDefinitions | None = None
        self.notifications = NotificationStore(self._redis, self._keys)
        """The subscriptions to notifications about jobs."""

    @classmethod
    def from_settings(cls, settings: Settings | None = None) -> Self:
        """Return a client for these settings, or for those of the environment.

        Without FANOUT_REDIS_URL it uses what runs on this machine (`fanout up`, or a `fanout run`
        that has ended less than ten minutes ago), which does not end before the client is closed.

        Raises:
            InvalidSetting: A value is not allowed.
            LedgerUnavailable: No Redis is configured or running.
            InvalidAgentDefinition: The folder of agents does not exist.
        """
        settings = settings or load_settings()
        live = LiveDefinitions(settings.agents_dir)
        found, held = attach(settings)
        client = cls(str(found.redis_url), found, live.definitions)
        client._held, client._live = held, live
        return client

    async def close(self) -> None:
        """Close all connections. Submitted jobs continue."""
        await self._queue.close()
        await super().close()

    async def current_definitions(self) -> AgentDefinitions:
        """Return the agents that jobs may name; changed files are read again."""
        if self._live is not None:
            await self._live.refresh()
        return self.definitions

    def workspace(self, folder: Path) -> Workspace:
        """Return the workspace of a folder, always the same object: it remembers its snapshot."""
        root = folder.absolute()
        if root not in self._workspaces:
            state = self._settings.state_dir.expanduser()
            self._workspaces[root] = Workspace(
                root,
                max_snapshot_bytes=self._settings.limits.snapshot_bytes,
                records=state / "merges",
                indexes=SnapshotIndexes(state / "snapshot-indexes"),
                repositories=state / "repositories",
            )
        return self._workspaces[root]

    async def start_files(
        self, folder: Path, agent: str, include: Iterable[str] = ()
    ) -> StartFiles:
        """Store what an agent's jobs need to start from a folder as it is now.

        Its `workspace` names afterwards the files that were left out.

        Args:
            folder: The folder.
            agent: The name of the agent, whose definition may include files.
            include: Files, relative to the folder, that the snapshot has even if Git ignores them
                or they seem to be secret.

        Raises:
            UnknownAgent: The agent does not exist.
            WorkspaceUnusable: The folder cannot be read, or is too large.
        """
        definitions = await self.current_definitions()
        included = frozenset(include).union(definitions[agent].include)
        return await self.workspace(folder).start_files(self._blobs, included)

    async def submit(self, spec: JobSpec, *, workspace: Path | None = None) -> str:
        """Store a job, dispatch it if there is room, and return its id.

        A stored job reaches a terminal state even if this process, a worker or Redis is killed.

        Args:
            spec: The job.
            workspace: The folder whose files the job starts from; None for an empty workspace.

        Raises:
            UnknownAgent: The agent does not exist; nothing is stored.
            InvalidJob: The specification cannot be stored, or continues a job that has not ended.
            BlobMissing: It continues a job whose files have expired.
            WorkspaceUnusable: The folder cannot be read, or is too large.
        """
        return (await self.submit_many([(spec, workspace)]))[0]

    async def submit_many(self, jobs: Sequence[tuple[JobSpec, Path | None]]) -> Ids:
        """Store jobs with their workspaces, all or none, and return their ids in order.

        A job that names others in its `after` runs when these have ended. Jobs that come after each
        other become one tree.

        Raises:
            UnknownAgent: One names an agent that does not exist; nothing is stored.
            LimitExceeded: One asks for more than the installation gives a job; nothing is stored.
            ChoiceRefused: One asks for what its caller may not choose; nothing is stored.
            InvalidGraph: A name is used twice, a job would wait for itself, or is to run after one
                that does not exist; nothing is stored.
            InvalidJob: A specification cannot be stored, its output_schema cannot be used, its
                model is of an unknown kind or cannot be asked, the job that it `continues` has not
                ended, or it also has a workspace.
            UnknownJob, BlobMissing: The job that it continues, or its files, no longer exist.
            WorkspaceUnusable: A folder cannot be read, or is too large.
        """
        with spans.span("submit", "producer") as span:
            span.note(jobs=len(jobs), agent=jobs[0][0].agent if len(jobs) == 1 else None)
            return await self._submit(jobs)

    async def keep_conversation(self, lines: bytes) -> str:
        """Store a conversation and return its id, for a `JobSpec` that inherits it.

        Args:
            lines: An event of ADK as JSON in each line, the job's agent the author of its part.
        """
        return await self._blobs.put(lines)

    async def _submit(self, jobs: Sequence[tuple[JobSpec, Path | None]]) -> Ids:
        if any(spec.continues and folder for spec, folder in jobs):
            raise InvalidJob(
                "A job that continues another starts from that job's files: give no workspace."
            )
        if any(spec.inherit and spec.conversation is None for spec, _ in jobs):
            raise InvalidJob(
                "Only the task of an agent has a conversation to inherit: leave inherit out."
            )
        await self.current_definitions()
        folders = [folder for _, folder in jobs]
        completed = [
            await self._continuations.completed(spec)
            for spec in resolved([spec for spec, _ in jobs])
        ]
        jobs = list(zip(completed, folders, strict=True))
        defaults, ceilings = self._settings.limits.for_jobs(), self._settings.ceilings
        for spec, _ in jobs:
            check_submission(spec, self.definitions, defaults=defaults, ceilings=ceilings)
            _check_model(spec.model)
        await _check_output_schemas([spec for spec, _ in jobs])
        await self._check_models([(spec.agent, spec.model) for spec, _ in jobs])
        await asyncio.to_thread(self._check_prices, [spec for spec, _ in jobs])
        starts = {
            (folder, agent): await self.start_files(folder, agent)
            for folder, agent in {(folder, spec.agent) for spec, folder in jobs if folder}
        }
        specs = [
            spec.model_copy(
                update={
                    **(starts[folder, spec.agent].update() if folder else {}),
                    "caller_policy": _stored_policy(spec.caller_policy),
                    "traceparent": _traceparent(spec),
                }
            )
            for spec, folder in jobs
        ]
        used = {
            blob
            for spec in specs
            for blob in (*spec.start.blobs(), spec.changes, spec.conversation, spec.script)
            if blob
        }
        for blob in used:
            await self._blobs.keep(blob)  # an old one, of a retried job, may be about to expire
        ids = await self._ledger.submit(specs, self._settings.worker.pool)
        with contextlib.suppress(LedgerUnavailable):  # stored: a worker's reaper dispatches them
            await self._admission.pump()
        return ids

    def _check_prices(self, specs: Sequence[JobSpec]) -> None:
        """Refuse budgets of money for models without a price, as far as the models are known.

        Raises:
            InvalidJob: There is such a job.
        """
        bounds = self._settings.limits.tree_bounds()
        default = self._settings.model if is_worker_of_here(self._settings) else ""
        for spec in specs:
            check_price(spec, self.definitions[spec.agent], bounds, default)

    async def _check_models(self, models: Sequence[tuple[str, str | None]]) -> None:
        """Refuse jobs whose models their worker, or every worker, cannot ask.

        Raises:
            InvalidJob: There is such a job.
        """
        if self._settings.worker.pool:  # its worker has these settings and keys
            await asyncio.to_thread(check_models, self._settings, self.definitions, models)
            return
        try:
            await self._check_models_of_workers(models, WORKERS_SECONDS)
        except InvalidJob:
            await self._check_models_of_workers(models, 0)

    async def _check_models_of_workers(
        self, models: Sequence[tuple[str, str | None]], max_age_seconds: float
    ) -> None:
        if time.monotonic() - self._workers_read_at > max_age_seconds:
            self._workers = await self.workers()
            self._workers_read_at = time.monotonic()
        check = partial(check_models_of_workers, self._workers, self.definitions, models)
        if self._workers:
            await asyncio.to_thread(check)  # its first call imports

    async def run(
        self, spec: JobSpec, *, workspace: Path | None = None, merge: bool = True
    ) -> JobResult:
        """Submit a job, wait for its end and merge its changes into the workspace.

        Changes of a job that did not succeed are not merged, and neither are changes that become
        code on the host; `apply` merges them.

        Args:
            spec: The job.
            workspace: The folder that the job works on.
            merge: False leaves the changes to a later `apply`.

        Raises:
            UnknownAgent, InvalidJob, WorkspaceUnusable: As `submit`.
        """
        job_id = await self.submit(spec, workspace=workspace)
        result = await self.wait(job_id)
        if merge and workspace is not None and result.success:
            await self.merge(result, workspace)
        return result

    async def script_job(
        self,
        source: str,
        inputs: Mapping[str, JsonValue] | None = None,
        spec: JobSpec | None = None,
        **fields: Any,
    ) -> JobSpec:
        """Store a script, and return the job that runs it, to be submitted as any other.

        Args:
            source: The script.
            inputs: The value of `inputs` in the script.
            spec: The job as the caller specifies it; None: one of these `fields`.
            fields: Fields of the job, if there is no `spec`; a description is made from the script.

        Raises:
            UnknownAgent: The job's agent does not exist.
            InvalidJob: The script has faults, which the text lists with their lines.
        """
        definitions = await self.current_definitions()
        fields.setdefault("description", title_of(source) or "A script")
        spec = spec or JobSpec.model_validate(fields)
        callable_agents = script_agents(spec, definitions)
        problems = await check_script(source, callable_agents, inputs=inputs)
        if problems:
            raise InvalidJob("The script cannot run:\n" + "\n".join(problems))
        blob = await self._blobs.put(source.encode())
        return spec.model_copy(update={"script": blob, "script_inputs": dict(inputs or {})})

    async def run_script(
        self,
        source: str,
        *,
        inputs: Mapping[str, JsonValue] | None = None,
        workspace: Path | None = None,
        merge: bool = True,
        reuse: bool = False,
        **fields: Any,
    ) -> JobResult:
        """Run a script as a job, wait for its end and merge its changes; see `run`.

        The value of the script is the result's `output`.

        Args:
            source: The script.
            inputs: The value of `inputs` in the script.
            workspace: The folder that it works on.
            merge: False leaves the changes to a later `apply`.
            reuse: Whether calls have the results of equal calls of earlier scripts.
            fields: Further fields of the job, such as `limits` or `verify_merges`.

        Raises:
            UnknownAgent, InvalidJob, WorkspaceUnusable: As `script_job` and `submit`.
        """
        spec = await self.script_job(source, inputs, reuse=reuse, **fields)
        return await self.run(spec, workspace=workspace, merge=merge)

    async def cancel(self, job_id: str) -> JobRecord:
        """Cancel a job and its descendants, and return its record from before.

        A job that has ended does not change.

        Raises:
            UnknownJob: The job does not exist.
        """
        record = await self.get(job_id)
        await self._ledger.cancel(job_id)
        return record

    async def answer(
        self,
        approval_id: str,
        decision: Decision,
        *,
        arguments: Mapping[str, JsonValue] | None = None,
        response: JsonValue = None,
        message: str = "",
        person: str | None = None,
    ) -> str:
        """Answer an approval and return its job's id; the job resumes when it waits for no other.

        Args:
            approval_id: The approval; `approvals` lists them.
            decision: One of those that the approval offers.
            arguments: For `edit`: the complete arguments that the call runs with.
            response: For `respond`: what the agent gets as the tool's result.
            message: A remark for the agent.
            person: The person who decided, if this program forwards the decision.

        Raises:
            InvalidAnswer: Arguments or a response are missing, not allowed or too long.
            ApprovalRefused: The answer was rejected; the text says why.
        """
        try:
            answer = ApprovalAnswer(
                decision=decision,
                arguments=None if arguments is None else dict(arguments),
                response=response,
                message=message,
                person=person,
            )
        except ValidationError as error:
            raise InvalidAnswer(f"The answer is incomplete: {error.errors()[0]['msg']}.") from None
        job_id = await self._ledger.answer(approval_id, answer)
        with contextlib.suppress(LedgerUnavailable):  # stored: a worker's reaper dispatches the job
            await self._admission.pump()
        return job_id

    async def send(self, job_id: str, text: str) -> None:
        """Send a message to a job's agent, which reads it before its next model call.

        Raises:
            UnknownJob: The job does not exist.
            InvalidJob: The job has ended, or the message is empty or too long.
        """
        await self._ledger.send(job_id, text)

    async def retry(self, job_id: str, *, caller_policy: CallerPolicy | None = None) -> str:
        """Submit the same job again as a separate tree, and return the new id.

        It runs at once, whatever the job was to run after, and no job comes after it.

        Args:
            job_id: The job.
            caller_policy: What the caller of this method may choose; None: what the job's caller
                may.

        Raises:
            UnknownJob: The job does not exist.
            UnknownAgent: Its agent no longer exists.
            ChoiceRefused: It asks for what the caller may not choose.
        """
        spec = await self._ledger.specification(job_id)
        its_own = {"id", "root_id", "parent_id", "depth", "idempotency_key"}
        given = spec.model_dump(exclude=its_own)
        if caller_policy is not None:
            given["caller_policy"] = caller_policy
        return await self.submit(JobSpec.model_validate(given))

    async def session_event(self, entry: JournalEvent) -> bytes | None:
        """Return the ADK event that an entry of a journal holds, as JSON; None if it holds none.

        Args:
            entry: The entry.

        Raises:
            BlobMissing: It is a large one that has expired.
        """
        return await event_json(entry, self._journal, self._blobs.get)

    @contextlib.asynccontextmanager
    async def changes(self, job_id: str) -> AsyncIterator[ChangeBundle]:
        """Open the change bundle of a job that has ended.

        Its methods read a file, so call them in a thread.

        Raises:
            UnknownJob: The job does not exist.
            InvalidJob: The job has not ended, or changed nothing, or its changes are missing.
            BlobMissing: The bundle has expired.
        """
        result = await self.complete_result(job_id)
        if result is None:
            raise InvalidJob(f"Job {job_id} has not ended: its changes are known when it has.")
        if result.changes is None:
            raise InvalidJob(f"Job {job_id} {result.without_changes}.")
        path = await self._blobs.fetch(result.changes)
        with contextlib.ExitStack() as stack:
            yield await asyncio.to_thread(stack.enter_context, ChangeBundle.open(path))

    async def apply(
        self,
        job_id: str,
        into: Path,
        *,
        check: bool = False,
        include_executable_config: bool = False,
    ) -> MergeReport:
        """Merge a job's changes into a folder.

        Args:
            job_id: The job.
            into: The folder.
            check: Only report what would happen.
            include_executable_config: Also merge changes that become code on the host, which are
                held back otherwise: only a person may permit that, never an agent.

        Raises:
            UnknownJob, InvalidJob, BlobMissing: As `changes`.
            WorkspaceUnusable: The folder cannot be written.
        """
        async with self.changes(job_id) as bundle:
            return await merge(
                self.workspace(into),
                bundle,
                check=check,
                include_executable_config=include_executable_config,
            )

    async def merge(
        self, result: JobResult, workspace: Path, *, include_executable_config: bool = False
    ) -> MergeReport | None:
        """Merge a result's changes into a folder; return None when there are none.

        Args:
            result: The job's result.
            workspace: The folder.
            include_executable_config: As for `apply`.

        Raises:
            BlobMissing: The changes have expired.
            WorkspaceUnusable: The folder cannot be written.
        """
        if result.changes is None:
            return None
        return await self.apply(
            result.job_id, workspace, include_executable_config=include_executable_config
        )


def _check_model(name: str | None) -> None:
    """Refuse the name of a model that no worker could have.

    Raises:
        InvalidJob: There is no such kind of model; the text names the nearest.
    """
    try:
        possible_model(name or "")
    except ValueError as error:
        raise InvalidJob(f"model: {error}.") from None


def _traceparent(spec: JobSpec) -> str | None:
    """Return the context of a job's trace: the given one, or that of its submission."""
    here = spans.current()
    return usable_traceparent(spec.traceparent) or (None if here is None else str(here))


def _stored_policy(policy: CallerPolicy | None) -> CallerPolicy | None:
    """Return a policy as a job carries it.

    One that permits anything is left out, so that workers of earlier releases run such jobs.
    """
    return None if policy is None or policy.anything else policy


async def _check_output_schemas(specs: Sequence[JobSpec]) -> None:
    """Refuse schemas that no worker would use, in the turn of their owner.

    Raises:
        InvalidJob: A schema cannot be used; the text says why.
        LimitExceeded: Too many submissions of the owner wait for this check.
    """
    schemas = [spec.output_schema for spec in specs if spec.output_schema is not None]
    if not schemas:
        return
    try:
        async with _schema_turns.turn(f"{specs[0].tenant}/{specs[0].owner}"):
            await asyncio.to_thread(check_schemas, schemas)  # its first use imports much
    except InvalidOutputSchema as error:
        raise InvalidJob(str(error)) from error
    except TooManyWaiting:
        raise LimitExceeded(
            "Too many jobs with an output_schema are being submitted at once: wait for some."
        ) from None
