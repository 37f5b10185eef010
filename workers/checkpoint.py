"""A parked job's files as a blob: with it another host than the last one's can go on where the job was.

It is the job's change bundle, merged into a fresh sandbox on the same snapshot. What a bundle does not carry
is gone then: ignored files, the insides of `.git`, what is outside the workspace. A bundle that had to leave
out a changed file is no checkpoint, and the conversation begins anew.
"""

from __future__ import annotations

import asyncio
from typing import IO

from orchestrator.blobs import BlobStore
from orchestrator.jobs.changes import ChangeBundle, NewerBundle
from orchestrator.jobs.failures import NotUnderstood
from orchestrator.jobs.journal import EventType
from workers.sandbox.errors import SandboxStartFailed
from workers.sandbox.protocol import Sandbox
from workers.sandbox_folder import merge_into
from workers.session_journal import AttemptJournal


async def keep(bundle: IO[bytes], blobs: BlobStore, journal: AttemptJournal) -> None:
    """Store a job's changes as its newest checkpoint."""
    if await asyncio.to_thread(_is_whole, bundle):
        bundle.seek(0)
        await journal.note(EventType.CHECKPOINT, {"changes": await blobs.put_file(bundle)})


async def restored(sandbox: Sandbox, blobs: BlobStore, journal: AttemptJournal) -> bool:
    """Put the newest checkpoint into a fresh sandbox; False when the job has gone on since, or has none.

    Raises:
        SandboxStartFailed: not all of it could be written.
        NotUnderstood: a newer release wrote it.
    """
    checkpoint = await journal.checkpoint()
    if checkpoint is None:
        return False
    try:
        report = await merge_into(sandbox, await blobs.fetch(checkpoint))
    except NewerBundle as error:
        raise NotUnderstood(str(error)) from error
    if not report.complete:
        raise SandboxStartFailed("The job's checkpoint could not be restored.")
    return True


def _is_whole(bundle: IO[bytes]) -> bool:
    bundle.seek(0)
    with ChangeBundle.open(bundle) as opened:
        return not opened.changes.skipped
