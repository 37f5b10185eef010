"""Checkpoints: copies of a job's files, from which another host can resume the job.

A checkpoint is the job's change bundle, which is merged into a fresh sandbox on the same snapshot.
What a bundle does not contain is lost then: ignored files, the contents of `.git`, and files
outside the workspace. A bundle that had to leave out a changed file cannot be resumed from; the
result of a job that ends without its worker reports it all the same.

The newest checkpoints stay when the job has ended, because it can be continued from them.

A checkpoint is taken between the results of tools and the next model call, when none of the agent's
calls runs. Its entry in the journal marks the position in the conversation to which the files
belong.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import structlog
from google.adk.plugins.base_plugin import BasePlugin

from fanout.orchestrator.jobs.changes import ChangeBundle, FileChange, NewerBundle
from fanout.orchestrator.jobs.failures import BlobMissing, JobFailure, LeaseLost, NotUnderstood
from fanout.orchestrator.jobs.result import ResultSoFar, Usage, first_files
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.workspace.blobs import BlobStore

from ..heartbeat import HeldLease, elapsed_clock
from ..sandbox import Sandbox, SandboxStartFailed, merge_into
from .session_journal import AttemptJournal

log = structlog.get_logger(__name__)

MAX_SHARE = 0.05
"""The share of an agent's time that checkpoints may take: slow ones are taken less often."""
MAX_SECONDS = 30.0
"""How long an agent waits for a checkpoint before it continues without one."""
KEPT_CHECKPOINTS = 5
"""The newest ones of a job, from which it can be forked until its blobs expire: some minutes back,
or some waits. Each holds all that the job has changed, so a job stores as many times its files."""
MARK = "checkpoint"
"""A member of the archive that makes each checkpoint a different blob, which can be removed without
affecting another."""
READ_BYTES = 1024 * 1024
"""Read at once: large enough that the time is spent on the hash, not on the loop."""


@dataclass(frozen=True)
class _StoredCheckpoint:
    digest: str
    """The digest of the bundle before it was marked."""
    blob: str


class Checkpoints:
    """The checkpoints of one attempt.

    Args:
        sandbox: The job's sandbox.
        blobs: Stores the bundles.
        ledger: Stores what the job's result contains if it ends without this worker.
        lease: The attempt's lease.
        used: Returns what the agent has used.
        interval_seconds: The time between two checkpoints; with 0 only `store` takes any.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        blobs: BlobStore,
        ledger: Ledger,
        lease: HeldLease,
        *,
        used: Callable[[], Usage],
        interval_seconds: float,
    ) -> None:
        self._sandbox = sandbox
        self._blobs = blobs
        self._ledger = ledger
        self._lease = lease
        self._used = used
        self._interval_seconds = interval_seconds
        self._next_at = elapsed_clock() + interval_seconds
        self._last: _StoredCheckpoint | None = None
        self._complete: str | None = None
        """The blob from which another host can resume the job."""
        self._kept: list[str] = []
        """The blobs of the job's checkpoints that were not removed, oldest first."""

    def load_checkpoints(self, blobs: Sequence[str]) -> None:
        """Set the checkpoints of earlier attempts, oldest first."""
        self._complete = blobs[-1] if blobs else None
        self._kept = list(dict.fromkeys(blobs))[-KEPT_CHECKPOINTS:]

    async def take_if_due(self) -> None:
        """Take a checkpoint if it is due and there are files; no call of the agent may be running.

        Any other failure than the following is only logged.

        Raises:
            LeaseLost: The attempt's lease is lost.
        """
        started_at = elapsed_clock()
        is_due = self._interval_seconds and started_at >= self._next_at
        if not is_due or self._sandbox.kind is None:
            return
        try:
            async with asyncio.timeout(MAX_SECONDS):
                with await self._sandbox.changes() as bundle:
                    await self.store(bundle)
        except LeaseLost:
            raise
        except (JobFailure, OSError, ValueError) as error:  # a timeout, a full disk, a bad bundle
            log.warning("no checkpoint", error=type(error).__name__)
        took_seconds = elapsed_clock() - started_at
        self._next_at = elapsed_clock() + max(self._interval_seconds, took_seconds / MAX_SHARE)

    async def store(self, bundle: IO[bytes]) -> None:
        """Store the job's current change bundle as its newest checkpoint.

        Raises:
            LeaseLost: The attempt's lease is lost.
            JobFailure: The blob or the ledger's entry cannot be stored.
            ValueError: The bundle cannot be read.
        """
        digest, is_complete, files = await asyncio.to_thread(_inspect, bundle)
        if self._last is None or self._last.digest != digest:
            await asyncio.to_thread(_make_unique, bundle)
            blob = await self._blobs.put_file(bundle)
            self._kept.append(blob)
        else:
            blob = self._last.blob
        self._lease.check()
        claim = self._lease.claim
        listed, omitted = first_files(files)
        so_far = ResultSoFar(
            files_modified=listed,
            files_omitted=omitted,
            changes=blob if files else None,
            usage=self._used(),
            sandbox=self._sandbox.kind,
        )
        entry = {"changes": blob} if is_complete else None
        if not await self._ledger.checkpoint(claim.spec.id, claim.token, so_far, entry):
            raise LeaseLost("Another attempt holds the job.")
        self._last = _StoredCheckpoint(digest, blob)
        self._complete = blob if is_complete else self._complete
        await self._remove_old()

    async def _remove_old(self) -> None:
        """Remove all but the newest checkpoints; failures are logged."""
        old = [blob for blob in self._kept[:-KEPT_CHECKPOINTS] if blob != self._complete]
        self._kept = [blob for blob in self._kept if blob not in old]
        for blob in old:
            try:
                await self._blobs.delete(blob)
            except JobFailure as error:  # it is removed with the job's other blobs
                log.warning("an old checkpoint was not removed", error=type(error).__name__)


class CheckpointPlugin(BasePlugin):
    """Takes checkpoints before model calls, when every tool's result is in the journal."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        super().__init__(name="checkpoints")
        self._checkpoints = checkpoints

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Take a checkpoint if it is due: no call of the agent runs now.

        Raises:
            LeaseLost: The attempt's lease is lost.
        """
        del callback_context, llm_request
        await self._checkpoints.take_if_due()


async def restore(sandbox: Sandbox, blobs: BlobStore, journal: AttemptJournal) -> str | None:
    """Merge the newest checkpoint into a fresh sandbox and return the id of its journal entry.

    Returns None if there is no checkpoint, or if its blob is missing.

    Args:
        sandbox: A sandbox on the job's snapshot.
        blobs: Where checkpoints are stored.
        journal: The attempt's journal.

    Raises:
        SandboxStartFailed: Not all files could be written.
        NotUnderstood: A newer release wrote the checkpoint.
        LedgerUnavailable: Redis does not answer.
    """
    entry = await journal.checkpoint()
    if entry is None:
        return None
    try:
        report = await merge_into(sandbox, await blobs.fetch(str(entry.data["changes"])))
    except BlobMissing:
        log.warning("the checkpoint is missing, the job starts from the beginning")
        return None
    except NewerBundle as error:
        raise NotUnderstood(str(error)) from error
    if not report.complete:
        raise SandboxStartFailed("The job's checkpoint could not be restored.")
    return entry.id


def _inspect(bundle: IO[bytes]) -> tuple[str, bool, tuple[FileChange, ...]]:
    """Return a bundle's digest, whether no changed file is left out, and the changed files."""
    bundle.seek(0)
    digest = hashlib.sha256()
    while piece := bundle.read(READ_BYTES):
        digest.update(piece)
    bundle.seek(0)
    with ChangeBundle.open(bundle) as opened:
        return digest.hexdigest(), not opened.changes.skipped, opened.changes.summary()


def _make_unique(bundle: IO[bytes]) -> None:
    """Add a random member, so that the bundle becomes a blob of its own; rewind the bundle."""
    bundle.seek(0)
    with tarfile.open(fileobj=bundle, mode="a", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(MARK)
        content = secrets.token_hex(16).encode()
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    bundle.seek(0)
