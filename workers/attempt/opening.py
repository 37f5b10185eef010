"""An attempt's sandbox, on the files that its conversation speaks of.

The last attempt's, or a checkpoint's.

A sandbox on the same host may have others: a disk was replaced, or an attempt died while it was
filling them. So the journal names the files with which each attempt began (`Sandbox.files_id`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from pydantic import JsonValue

from orchestrator.jobs.store.journal import EventType, JournalEvent
from orchestrator.jobs.store.ledger import Claim
from orchestrator.workspace.blobs import BlobStore
from workers.agent import checkpoint
from workers.agent.session_journal import AttemptJournal
from workers.sandbox import Sandbox, SandboxProvider, SandboxSpec


@contextlib.asynccontextmanager
async def opened(
    provider: SandboxProvider,
    spec: SandboxSpec,
    *,
    claim: Claim,
    host: str,
    journal: AttemptJournal,
    blobs: BlobStore,
) -> AsyncIterator[Sandbox]:
    """A sandbox whose files, and whether they are the last attempt's, the journal has.

    Raises:
        LeaseLost: the attempt may no longer act.
        SandboxFailure: see `workers.sandbox`.
    """
    last = await journal.last_sandbox()
    # The claim alone does not tell: of an attempt that an outage of Redis took back nothing is
    # counted.
    is_first = last is None and claim.attempt == 1 and not claim.ran_seconds
    async with contextlib.AsyncExitStack() as stack:
        if last is None or last.data.get("host") != host:
            if not is_first:
                await provider.discard(spec.job_id)  # what an even older attempt left here is stale
            sandbox = await stack.enter_async_context(provider.open(spec))
            resumed = False
        else:
            sandbox = await stack.enter_async_context(provider.open(spec))
            resumed = _are_files_of(last, sandbox)
            if not resumed:
                await stack.aclose()
                await provider.discard(spec.job_id)
                sandbox = await stack.enter_async_context(provider.open(spec))
        ready: dict[str, JsonValue] = {
            "sandbox": sandbox.kind,
            "host": host,
            "files": sandbox.files_id,
        }
        if not is_first and not resumed:
            entry = await checkpoint.restored(sandbox, blobs, journal)
            resumed = entry is not None
            ready |= {"checkpoint": entry} if entry else {}
        await journal.note(EventType.SANDBOX_READY, ready | {"resumed": resumed}, "sandbox ready")
        yield sandbox


def _are_files_of(last: JournalEvent, sandbox: Sandbox) -> bool:
    """Whether a sandbox has the files of the last one.

    An older release's worker did not name them.
    """
    return last.data.get("files", sandbox.files_id) == sandbox.files_id
