"""Opens an attempt's sandbox with the files that belong to its conversation.

They are the files of the last attempt, or those of a checkpoint. A sandbox on the same host may
have other files: a disk was replaced, or an attempt died while it was unpacking them. So the
journal names the files with which each attempt started (`Sandbox.files_id`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from pydantic import JsonValue

from fanout.orchestrator.jobs.changes import MalformedBundle, NewerBundle
from fanout.orchestrator.jobs.failures import InvalidJob, NotUnderstood
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.agent import checkpoint
from fanout.workers.agent.credentials import credentials_of
from fanout.workers.agent.delegation.conflict_files import ConflictFiles
from fanout.workers.agent.services import JobServices
from fanout.workers.agent.session_journal import AttemptJournal
from fanout.workers.attempt.attempt import Attempt
from fanout.workers.attempt.network_journal import journaled_network
from fanout.workers.sandbox import Sandbox, SandboxProvider, SandboxSpec, merge_into

YOUR_CHANGES = "your changes"
"""The label of a job's own side where the changes with which it begins conflict."""


def sandbox_spec(attempt: Attempt, services: JobServices, default_image: str) -> SandboxSpec:
    """Return what an attempt's sandbox needs.

    Args:
        attempt: The attempt.
        services: What all jobs of this worker share.
        default_image: The image of an agent whose definition names none.

    Raises:
        InvalidJob: The agent needs a secret that this worker does not have.
    """
    return SandboxSpec(
        job_id=attempt.claim.spec.id,
        attempt=attempt.claim.attempt,
        image=attempt.definition.image or default_image,
        limits=attempt.limits,
        **attempt.claim.spec.start.update(),
        credentials=credentials_of(attempt.definition, services.secrets),
    )


@contextlib.asynccontextmanager
async def open_sandbox(
    provider: SandboxProvider,
    spec: SandboxSpec,
    *,
    claim: Claim,
    host: str,
    journal: AttemptJournal,
    blobs: BlobStore,
) -> AsyncIterator[Sandbox]:
    """Open a sandbox and append to the journal which files it has.

    Args:
        provider: Opens the sandbox.
        spec: What the sandbox needs.
        claim: The attempt.
        host: Where this worker's sandboxes are.
        journal: The attempt's journal.
        blobs: Where checkpoints are stored.

    Raises:
        LeaseLost: The attempt's lease is lost.
        LedgerUnavailable: Redis does not answer.
        NotUnderstood: A newer release wrote the checkpoint, or the changes with which it begins.
        BlobMissing: These changes are not stored any more.
        InvalidJob: They cannot be read.
        SandboxFailure: See `workers.sandbox`.
    """
    last = await journal.last_sandbox()
    # The claim is not enough: an attempt that was released in an outage of Redis is not counted.
    is_first = last is None and claim.attempt == 1 and not claim.ran_seconds
    async with (
        journaled_network(journal, spec) as watched,
        contextlib.AsyncExitStack() as stack,
    ):
        if last is None or last.data.get("host") != host:
            if not is_first:
                await provider.discard(spec.job_id)  # files of an even older attempt are stale
            sandbox = await stack.enter_async_context(provider.open(watched))
            resumed = False
        else:
            sandbox = await stack.enter_async_context(provider.open(watched))
            resumed = _are_files_of(last, sandbox)
            if not resumed:
                await stack.aclose()
                await provider.discard(spec.job_id)
                sandbox = await stack.enter_async_context(provider.open(watched))
        ready: dict[str, JsonValue] = {"sandbox": sandbox.kind, "host": host}
        ready["files"] = sandbox.files_id
        if not is_first and not resumed:
            entry = await checkpoint.restore(sandbox, blobs, journal)
            resumed = entry is not None
            ready |= {"checkpoint": entry} if entry else {}
        if not resumed and claim.spec.changes is not None:
            await _put_in_changes(sandbox, blobs, claim.spec.changes)
        await journal.note(EventType.SANDBOX_READY, ready | {"resumed": resumed}, "sandbox ready")
        yield sandbox


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


def _are_files_of(last: JournalEvent, sandbox: Sandbox) -> bool:
    """Return whether a sandbox has the files of the last one.

    Workers of older releases did not name the files; then they are taken to be the same.
    """
    return last.data.get("files", sandbox.files_id) == sandbox.files_id
