"""A job's files as a blob, now and then.

With the newest another host can go on from where the job was then.

It is the job's change bundle, merged into a fresh sandbox on the same snapshot. What a bundle does
not carry is gone then: ignored files, the insides of `.git`, what is outside the workspace. A
bundle that had to leave out a changed file is no checkpoint to go on from; a job that ends without
its worker reports it all the same.

One is taken between the results of tools and the next model call, when none of the agent's calls
runs. The entry in the journal marks the place in the conversation to which the files belong.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import structlog
from google.adk.plugins.base_plugin import BasePlugin

from orchestrator.jobs.changes import ChangeBundle, FileChange, NewerBundle
from orchestrator.jobs.failures import BlobMissing, JobFailure, LeaseLost, NotUnderstood
from orchestrator.jobs.result import ResultSoFar, Usage
from orchestrator.jobs.store.ledger import Ledger
from orchestrator.workspace.blobs import BlobStore
from workers.agent.session_journal import AttemptJournal
from workers.heartbeat import HeldLease, elapsed_clock
from workers.sandbox import Sandbox, SandboxStartFailed, merge_into

log = structlog.get_logger(__name__)

MAX_SHARE = 0.05
"""Of an agent's time that may go into checkpoints: one that takes long is taken less often."""
MAX_SECONDS = 30.0
"""An agent waits no longer for one; it goes on without."""
MAX_SO_FAR_BYTES = 32 * 1024
"""Of a job's record in Redis for the list of its changed files: some 300; the rest stands in the
bundle."""
MARK = "checkpoint"
"""A member of the archive that makes each checkpoint a blob of its own, which nobody misses when it
goes."""
READ_BYTES = 1024 * 1024
"""At once: large enough that the hash, not the loop, takes the time."""


@dataclass(frozen=True)
class _Kept:
    """A checkpoint that is stored."""

    digest: str
    """Of the bundle."""
    blob: str


class Checkpoints:
    """The checkpoints of one attempt.

    Args:
        sandbox: whose files are kept.
        blobs: where.
        ledger: told what a result without this worker would hold.
        lease: of the attempt.
        used: what the agent has consumed.
        interval_seconds: between two; 0 takes none but those that are asked for.
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
        self._last: _Kept | None = None
        self._whole: str | None = None
        """The blob with which another host can go on."""
        self.stored: set[str] = set()
        """The blobs that may be gone once the job has its result."""

    def went_on_from(self, blob: str | None) -> None:
        """Say which checkpoint an earlier attempt left, to go when there is a newer one."""
        self._whole = blob
        self.stored |= {blob} if blob else set()

    async def at_rest(self) -> None:
        """Take one if it is time; none of the agent's calls may run.

        A failure is logged, and that is all.

        Raises:
            LeaseLost: the attempt may no longer act.
        """
        began = elapsed_clock()
        if not self._interval_seconds or began < self._next_at:
            return
        try:
            async with asyncio.timeout(MAX_SECONDS):
                with await self._sandbox.changes() as bundle:
                    await self.keep(bundle)
        except LeaseLost:
            raise
        except (
            JobFailure,
            OSError,
            ValueError,
        ) as error:  # a timeout, a full disk, a bundle that is none
            log.warning("no checkpoint", error=type(error).__name__)
        took_seconds = elapsed_clock() - began
        self._next_at = elapsed_clock() + max(self._interval_seconds, took_seconds / MAX_SHARE)

    async def keep(self, bundle: IO[bytes]) -> None:
        """Make a bundle of the job's files as they are now its newest checkpoint.

        Raises:
            LeaseLost: the attempt may no longer act.
        """
        digest, is_whole, files = await asyncio.to_thread(_look_at, bundle)
        if self._last is None or self._last.digest != digest:
            await asyncio.to_thread(_mark, bundle)
            blob = await self._blobs.put_file(bundle)
            self.stored.add(blob)
        else:
            blob = self._last.blob
        kept = _Kept(digest, blob)
        self._lease.check()
        claim = self._lease.claim
        so_far = ResultSoFar(
            files_modified=_bounded(files),
            changes=blob if files else None,
            usage=self._used(),
            sandbox=self._sandbox.kind,
        )
        entry = {"changes": blob} if is_whole else None
        if not await self._ledger.checkpoint(claim.spec.id, claim.token, so_far, entry):
            raise LeaseLost("Another attempt holds the job.")
        self._last = kept
        self._whole = blob if is_whole else self._whole
        await self._drop(self.stored - {blob, self._whole})

    async def drop(self) -> None:
        """Remove what the job's end has made useless."""
        await self._drop(self.stored)

    async def _drop(self, blobs: set[str]) -> None:
        self.stored = self.stored - blobs
        for blob in blobs:
            try:
                await self._blobs.delete(blob)
            except JobFailure as error:  # it goes with the job's other blobs
                log.warning("an old checkpoint stays", error=type(error).__name__)


class CheckpointPlugin(BasePlugin):
    """Takes checkpoints before model calls.

    Then every tool has answered, and the journal says what.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        super().__init__(name="checkpoints")
        self._checkpoints = checkpoints

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """The agent rests for a moment."""
        del callback_context, llm_request
        await self._checkpoints.at_rest()


async def restored(sandbox: Sandbox, blobs: BlobStore, journal: AttemptJournal) -> str | None:
    """Put the newest checkpoint into a fresh sandbox.

    The id of its journal entry, None where there is none.

    Raises:
        SandboxStartFailed: not all of it could be written.
        NotUnderstood: a newer release wrote it.
    """
    entry = await journal.checkpoint()
    if entry is None:
        return None
    try:
        report = await merge_into(sandbox, await blobs.fetch(str(entry.data["changes"])))
    except BlobMissing:
        log.warning("the checkpoint is gone, the job begins anew")
        return None
    except NewerBundle as error:
        raise NotUnderstood(str(error)) from error
    if not report.complete:
        raise SandboxStartFailed("The job's checkpoint could not be restored.")
    return entry.id


def _look_at(bundle: IO[bytes]) -> tuple[str, bool, tuple[FileChange, ...]]:
    """A bundle's digest, whether nothing is left out, and the changes it lists."""
    bundle.seek(0)
    digest = hashlib.sha256()
    while piece := bundle.read(READ_BYTES):
        digest.update(piece)
    bundle.seek(0)
    with ChangeBundle.open(bundle) as opened:
        return digest.hexdigest(), not opened.changes.skipped, opened.changes.summary()


def _mark(bundle: IO[bytes]) -> None:
    """Make the bundle's content unlike any other's; it stands at its start afterwards."""
    bundle.seek(0)
    with tarfile.open(fileobj=bundle, mode="a", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(MARK)
        content = secrets.token_hex(16).encode()
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    bundle.seek(0)


def _bounded(files: tuple[FileChange, ...]) -> tuple[FileChange, ...]:
    """As many as a job's record may hold."""
    size, fitting = 0, 0
    for file in files:
        size += len(file.model_dump_json(exclude_defaults=True)) + 1
        if size > MAX_SO_FAR_BYTES:
            break
        fitting += 1
    return files[:fitting]
