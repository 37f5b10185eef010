"""Opens an attempt's sandbox with the files that belong to its conversation.

They are the files of the last attempt, or those of a checkpoint. A sandbox on the same host may
have other files: a disk was replaced, or an attempt died while it was unpacking them. So the
journal names the files with which each attempt started (`Sandbox.files_id`).

A job's first sandbox is opened when something needs it. An attempt that continues with the files of
an earlier one opens its sandbox first, because its conversation depends on which files are left.

The sandbox has the credentials of the job's agent, and its connections are appended to the journal:
the first ones one by one, later ones summed by host at growing intervals, so that a journal stays
small however many connections a job makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from pydantic import JsonValue, SecretStr

from fanout.orchestrator import deep_agent
from fanout.orchestrator.cancellation import cancel_and_wait, ended
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.changes import MalformedBundle, NewerBundle
from fanout.orchestrator.jobs.failures import InvalidJob, JobFailure, NotUnderstood
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.jobs.totals import SANDBOX_FAILURES, SANDBOX_STARTS, Totals
from fanout.orchestrator.tracing.spans import span
from fanout.orchestrator.workspace.blobs import BlobStore

from ..agent import checkpoint
from ..agent.delegation.landing import ConflictFiles
from ..agent.services import JobServices
from ..agent.session_journal import AttemptJournal
from ..sandbox import (
    ConnectionRecord,
    LazySandbox,
    ModelMeter,
    NetworkLimitReached,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    TrafficRecord,
    merge_into,
)
from .attempt import Attempt
from .credentials import proxy_credentials
from .environments import JobEnvironments
from .known_files import DefinitionFolder, FilesBefore, StartReader

YOUR_CHANGES = "your changes"
"""The label of a job's own side where the changes with which it begins conflict."""
SINGLE_CONNECTIONS = 100
"""Connections of an attempt that are appended one by one: as many as a person reads."""
SUMMARY_SECONDS = 10.0
"""The time until the first summary; the interval doubles with each one, so that a day has about 20.
"""
MAX_SUMMARY_SECONDS = 3600.0
"""The longest interval: a person who watches a job sees its traffic within the hour."""
SUMMARY_HOSTS = 50
"""Hosts of a summary, the rest together: a job may ask for any number of names."""
OTHER_HOSTS = "(other hosts)"
REASON_CHARACTERS = 300
"""The longest reason of a refusal, which lists the hosts that are allowed."""
LAST_SECONDS = 1.0
"""The time for the last entries of an attempt: it must end even if Redis does not answer."""


@contextlib.asynccontextmanager
async def lazy_sandbox(
    provider: SandboxProvider,
    attempt: Attempt,
    services: JobServices,
    *,
    default_image: str,
    host: str,
    journal: AttemptJournal,
    start_reader: StartReader,
    environments: JobEnvironments,
) -> AsyncIterator[LazySandbox]:
    """Yield an attempt's sandbox, which is opened when something needs it, and close it at the end.

    Each call that needs the sandbox may raise the failures of its opening, too.

    Args:
        provider: Opens the sandbox.
        attempt: The attempt.
        services: What all jobs of this worker share.
        default_image: The image of an agent whose definition names none.
        host: Where this worker's sandboxes are.
        journal: The attempt's journal; the opening appends which files the sandbox has.
        start_reader: Reads files of what the job starts from.
        environments: Prepare the job's environment, before anything else.

    Raises:
        LeaseLost: The attempt's lease is lost.
        LedgerUnavailable: Redis does not answer.
        NotUnderstood: A newer release wrote the checkpoint, or the changes with which it begins.
        BlobMissing: These changes are not stored any more.
        InvalidJob: They cannot be read, a definition file cannot be written, or the agent needs a
            secret that this worker does not have.
        SetupFailed: The set-up of its environment failed.
        SandboxFailure: See `workers.sandbox`.
    """
    claim = attempt.claim
    spec = sandbox_spec(
        claim.spec, attempt.definition, attempt.limits, services.secrets, default_image
    )
    has_meter = attempt.definition.acp is not None and spec.credentials
    meter = ModelMeter(deep_agent.price) if has_meter else None
    environment = await environments.prepared(attempt, journal.activity)
    spec = replace(spec, attempt=claim.attempt, environment=environment, meter=meter)
    definition = DefinitionFolder(attempt.definition, await provider.home(spec.job_id))
    last = await journal.last_sandbox()
    with contextlib.ExitStack() as expecting:
        opening = _Opening(
            provider,
            spec,
            attempt,
            host,
            last,
            journal=journal,
            blobs=services.blobs,
            definition=definition,
            on_opened=expecting.close,
            totals=services.totals,
        )
        start = claim.spec.start if last is None and claim.spec.changes is None else None
        known = FilesBefore(definition, start, start_reader)
        sandbox = LazySandbox(opening.opened(), home=definition.home, known=known, meter=meter)
        attempt.sandbox = sandbox
        expecting.enter_context(provider.expect(spec))
        try:
            if last is not None:
                await sandbox.opened()
            elif _is_needed(attempt):
                sandbox.begin()
            yield sandbox
        finally:
            with span("close sandbox"):
                await sandbox.close()


def _is_needed(attempt: Attempt) -> bool:
    """Return whether an attempt will need its sandbox, whatever its agent does."""
    spec, definition = attempt.claim.spec, attempt.definition
    verify = spec.verify or definition.verify
    has_servers = any(server.command for server in definition.mcp_servers)
    return spec.changes is not None or verify is not None or has_servers


def sandbox_spec(
    job: JobSpec,
    definition: AgentDefinition,
    limits: Limits,
    secrets: Mapping[str, SecretStr],
    default_image: str,
) -> SandboxSpec:
    """Return what the sandbox of a job's first attempt needs.

    Args:
        job: The job.
        definition: The definition of its agent.
        limits: The job's limits, with every field set.
        secrets: Those of the worker.
        default_image: The image of an agent whose definition names none.

    Raises:
        InvalidJob: The agent needs a secret that this worker does not have.
    """
    return SandboxSpec(
        job_id=job.id,
        attempt=1,
        agent=job.agent,
        image=definition.image or default_image,
        limits=limits,
        **job.start.update(),
        credentials=proxy_credentials(definition.name, definition.credentials, secrets),
    )


@dataclass(frozen=True)
class _Opening:
    """How the sandbox of one attempt is opened."""

    provider: SandboxProvider
    spec: SandboxSpec
    attempt: Attempt
    host: str
    last: JournalEvent | None
    """The entry about the sandbox of an earlier attempt; None if there was none."""
    journal: AttemptJournal
    blobs: BlobStore
    definition: DefinitionFolder
    on_opened: Callable[[], None]
    totals: Totals

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Sandbox]:
        """Open the sandbox; put the files into it, and append to the journal which they are."""
        async with (
            journaled_network(self.journal, self.spec) as watched,
            contextlib.AsyncExitStack() as stack,
        ):
            self.journal.activity.begin("sandbox")
            with self._counted():
                sandbox, ready = await self._with_files(watched, stack)
            self.journal.activity.end("sandbox")
            await self.journal.note(EventType.SANDBOX_READY, ready, "sandbox ready")
            yield sandbox

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the start of a sandbox with its duration, unless the attempt is stopped."""
        begun = time.monotonic()
        try:
            yield
        except JobFailure as failure:
            self.totals.observe(SANDBOX_STARTS, time.monotonic() - begun, "failed")
            self.totals.add(SANDBOX_FAILURES, type(failure).__name__)
            raise
        self.totals.observe(SANDBOX_STARTS, time.monotonic() - begun, "opened")

    async def _with_files(
        self, spec: SandboxSpec, stack: contextlib.AsyncExitStack
    ) -> tuple[Sandbox, dict[str, JsonValue]]:
        """Return a sandbox with the job's files, and what the journal has to say of them."""
        with span("open sandbox") as opening:
            sandbox, has_files = await self._started(spec, stack)
            opening.note(sandbox=sandbox.kind, has_files=has_files)
        self.on_opened()
        ready: dict[str, JsonValue] = {"sandbox": sandbox.kind, "host": self.host}
        ready["files"] = sandbox.files_id
        if spec.environment:
            ready["environment"] = spec.environment
        if self.last is not None and not has_files:
            entry = await checkpoint.restore(sandbox, self.blobs, self.journal)
            has_files = entry is not None
            ready |= {"checkpoint": entry} if entry else {}
        changes = self.attempt.claim.spec.changes
        if not has_files and changes is not None:
            await _put_in_changes(sandbox, self.blobs, changes)
        await self.definition.write_into(sandbox)
        ready["resumed"] = None if self.last is None else has_files
        return sandbox, ready

    async def _started(
        self, spec: SandboxSpec, stack: contextlib.AsyncExitStack
    ) -> tuple[Sandbox, bool]:
        """Return a sandbox, and whether it has the files of an earlier attempt's."""
        if self.last is not None and self.last.data.get("host") == self.host:
            sandbox = await stack.enter_async_context(self.provider.open(spec))
            if _has_files(self.last, sandbox):
                return sandbox, True
            await stack.aclose()
        # The ledger is not enough: an attempt that was released in an outage is not counted.
        if self.last is not None or not self.attempt.is_first:
            await self.provider.discard(spec.job_id)  # files of an even older attempt are stale
        return await stack.enter_async_context(self.provider.open(spec)), False


async def _put_in_changes(sandbox: Sandbox, blobs: BlobStore, changes: str) -> None:
    """Merge the changes with which a job begins into its files; conflicts are marked there.

    Raises:
        BlobMissing: They are not stored any more.
        InvalidJob: They cannot be read.
        NotUnderstood: A newer release wrote them.
        SandboxFailure: The sandbox failed.
    """
    try:
        report = await merge_into(sandbox, await blobs.fetch(changes), mark=YOUR_CHANGES)
    except NewerBundle as error:
        raise NotUnderstood(str(error)) from error
    except MalformedBundle as error:
        raise InvalidJob("The changes with which the job begins cannot be read.") from error
    paths = [conflict.path for conflict in report.conflicts]
    await ConflictFiles(sandbox, blobs).write("", changes, paths)


def _has_files(last: JournalEvent, sandbox: Sandbox) -> bool:
    """Return whether a sandbox has the files of the last one.

    Workers of older releases did not name the files; then they are taken to be the same.
    """
    return last.data.get("files", sandbox.files_id) == sandbox.files_id


@dataclass
class _Sum:
    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, record: ConnectionRecord) -> None:
        self.connections += record.is_allowed
        self.refused += not record.is_allowed
        self.sent_bytes += record.sent_bytes
        self.received_bytes += record.received_bytes


class NetworkJournal:
    """Writes the connections of one attempt.

    Args:
        journal: The attempt's journal.
    """

    def __init__(self, journal: AttemptJournal) -> None:
        self._journal = journal
        self._left = SINGLE_CONNECTIONS
        self._waiting: deque[tuple[EventType, dict[str, JsonValue]]] = deque()
        self._sums: dict[str, _Sum] = {}
        self._changed = asyncio.Event()
        self._ends = asyncio.Event()

    def add(self, record: TrafficRecord) -> None:
        """Add a record; it is appended soon."""
        if isinstance(record, NetworkLimitReached):
            self._waiting.append((EventType.NETWORK_LIMIT, asdict(record)))
        elif self._left > 0:
            self._left -= 1
            self._waiting.append((EventType.NETWORK_CONNECTION, _readable(record)))
        else:
            host = f"{record.host}:{record.port}"
            if host not in self._sums and len(self._sums) >= SUMMARY_HOSTS:
                host = OTHER_HOSTS
            self._sums.setdefault(host, _Sum()).add(record)
            return
        self._changed.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Append records while the context is open, and the rest at its end."""
        tasks = [asyncio.create_task(self._write_single()), asyncio.create_task(self._write_sums())]
        try:
            yield
        finally:
            # What is being appended is not cancelled: nobody would know whether it has been.
            self._ends.set()
            self._changed.set()
            await ended(LAST_SECONDS, *tasks)
            await cancel_and_wait(*tasks)

    async def _write_single(self) -> None:
        is_last = False
        while not is_last:
            await self._changed.wait()
            self._changed.clear()
            is_last = self._ends.is_set()
            with contextlib.suppress(JobFailure):  # the attempt meets the failure itself
                await self._append_waiting()

    async def _write_sums(self) -> None:
        seconds, is_last = SUMMARY_SECONDS, False
        while not is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ends.wait()
            seconds, is_last = min(2 * seconds, MAX_SUMMARY_SECONDS), self._ends.is_set()
            with contextlib.suppress(JobFailure):
                await self._append_sums()

    async def _append_waiting(self) -> None:
        while self._waiting:
            kind, data = self._waiting[0]
            await self._journal.note(kind, data)
            self._waiting.popleft()

    async def _append_sums(self) -> None:
        if not self._sums:
            return
        sums, self._sums = self._sums, {}
        hosts: dict[str, JsonValue] = {host: asdict(total) for host, total in sums.items()}
        await self._journal.note(EventType.NETWORK_SUMMARY, {"hosts": hosts})


@contextlib.asynccontextmanager
async def journaled_network(
    journal: AttemptJournal, spec: SandboxSpec
) -> AsyncIterator[SandboxSpec]:
    """Yield the specification of a sandbox whose connections are appended to the journal.

    What earlier attempts used of the job's network budget is counted.

    Args:
        journal: The attempt's journal.
        spec: What the sandbox needs.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    if not isinstance(spec.limits.network, tuple):
        yield spec
        return
    network = NetworkJournal(journal)
    used = _used_bytes(await journal.entries())
    async with network.running():
        yield replace(spec, network_used_bytes=used, on_traffic=network.add)


def _readable(record: ConnectionRecord) -> dict[str, JsonValue]:
    data: dict[str, JsonValue] = {
        "host": record.host,
        "port": record.port,
        "allowed": record.is_allowed,
        "sent_bytes": record.sent_bytes,
        "received_bytes": record.received_bytes,
        "seconds": record.seconds,
    }
    if record.reason:
        data["reason"] = record.reason[:REASON_CHARACTERS]
    if record.secret:
        data["secret"] = record.secret
    return data


def _used_bytes(entries: list[JournalEvent]) -> int:
    return sum(_used(entry) for entry in entries)


def _used(entry: JournalEvent) -> int:
    if entry.type is EventType.NETWORK_CONNECTION:
        return _bytes(entry.data)
    if entry.type is EventType.NETWORK_SUMMARY:
        hosts = entry.data.get("hosts")
        return sum(map(_bytes, hosts.values())) if isinstance(hosts, dict) else 0
    return 0


def _bytes(data: JsonValue) -> int:
    if not isinstance(data, dict):
        return 0
    counts = (data.get("sent_bytes"), data.get("received_bytes"))
    return sum(count for count in counts if isinstance(count, int))
