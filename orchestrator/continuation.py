"""Continuation: a job that goes on with the conversation and the files of one that has ended.

What it needs is copied when it is submitted. So it can run when the earlier job's container and
worker are gone and its record has expired.
"""

from __future__ import annotations

from typing import Any

from orchestrator.approvals import merge_policies
from orchestrator.configuration.agent_definitions import AgentDefinitions
from orchestrator.jobs.changes import MalformedBundle, NewerBundle
from orchestrator.jobs.conversation import conversation_of_result, event_json
from orchestrator.jobs.failures import (
    BlobCorrupt,
    BlobMissing,
    InvalidJob,
    NotUnderstood,
    UnknownAgent,
)
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.store.journal import Journal
from orchestrator.jobs.store.records import Records
from orchestrator.workspace import changed_snapshot
from orchestrator.workspace.blobs import BlobStore

MAX_CONVERSATION_BYTES = 32 * 1024**2
"""Of an earlier conversation: ten times the text that a large model's window holds. Each attempt of
the new job keeps all of it in memory."""
MIB = 1024**2
TAKEN_OVER = ("agent", "tenant", "model", "output_schema", "verify", "max_reworks")
"""What a continuation has from the earlier job unless its own specification sets it."""


class Continuations:
    """Completes the specifications of jobs that continue others.

    Args:
        ledger: Holds the jobs.
        journal: Holds their journals.
        blobs: Where files and conversations are stored.
        definitions: The agents, whose policies a continuation by another agent keeps.
    """

    def __init__(
        self, ledger: Records, journal: Journal, blobs: BlobStore, definitions: AgentDefinitions
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._blobs = blobs
        self._definitions = definitions

    async def completed(self, spec: JobSpec) -> JobSpec:
        """Return a specification with what it takes from the job that it continues.

        One that continues none, or was completed before, is returned as it is.

        Args:
            spec: The new job. A snapshot that it sets takes the place of the earlier job's files.

        Raises:
            UnknownJob: The earlier job does not exist.
            InvalidJob: It has not ended, its agent never began, or its conversation is too long.
            BlobMissing: Its files or its conversation have expired.
            NotUnderstood: Another release wrote it, in a form that this one does not know.
        """
        if spec.continues is None or spec.conversation is not None:
            return spec
        if await self._ledger.get_many([spec.id]):
            return spec  # it was submitted before, and the ledger keeps that specification
        result = await self._ledger.result(spec.continues)
        if result is None:
            raise InvalidJob(
                f"Job {spec.continues} has not ended: wait for it or cancel it, then continue it."
            )
        earlier = await self._ledger.specification(spec.continues)
        try:
            return spec.model_copy(update=await self._taken_over(spec, earlier, result))
        except BlobCorrupt:
            raise
        except BlobMissing:
            raise BlobMissing(
                f"The files or the conversation of job {earlier.id} have expired, so it cannot be "
                "continued: submit the task as a new job."
            ) from None

    async def _taken_over(
        self, spec: JobSpec, earlier: JobSpec, result: JobResult
    ) -> dict[str, Any]:
        given = spec.model_fields_set
        values = {name: getattr(earlier, name) for name in TAKEN_OVER if name not in given}
        values["limits"] = spec.limits.over(earlier.limits)
        values["labels"] = {**earlier.labels, **spec.labels}
        values["interrupt_on"] = merge_policies(
            spec.interrupt_on, self._policy(earlier, values.get("agent", spec.agent))
        )
        values["conversation"] = await self._conversation(earlier, result)
        if "snapshot" not in given:
            values["snapshot"] = await self._files(earlier, result)
        return values

    def _policy(self, earlier: JobSpec, agent: str) -> dict[str, Any]:
        """Return the policy that held for the earlier job, as far as the new agent has it not."""
        if agent == earlier.agent:
            return dict(earlier.interrupt_on)
        try:
            own = self._definitions[earlier.agent].interrupt_on
        except UnknownAgent:
            return dict(earlier.interrupt_on)
        return dict(merge_policies(earlier.interrupt_on, own))

    async def _conversation(self, earlier: JobSpec, result: JobResult) -> str:
        """Store the conversation up to a job's end as a blob of JSON lines, and return its id."""
        before = await self._blobs.get(earlier.conversation) if earlier.conversation else b""
        own: list[bytes] = []
        size = len(before)
        entries = await self._journal.read(earlier.id)
        for entry in conversation_of_result(entries, result.changes):
            event = await event_json(entry, self._blobs.get)
            if event is not None:
                own.append(event + b"\n")
                size += len(own[-1])
                _check_size(size, earlier.id)
        if not own:
            raise InvalidJob(
                f"Job {earlier.id} ended before its agent began, so there is nothing to continue: "
                f"submit it again with `fanout retry {earlier.id}`."
            )
        return await self._blobs.put(b"".join([before, *own]))

    async def _files(self, earlier: JobSpec, result: JobResult) -> str | None:
        """Return the snapshot of the files with which a job ended."""
        if result.changes is None:
            if earlier.snapshot is not None:
                await self._blobs.keep(earlier.snapshot)
            return earlier.snapshot
        changes = await self._blobs.fetch(result.changes)
        try:
            return await changed_snapshot.store(self._blobs, earlier.snapshot, changes)
        except NewerBundle as error:
            raise NotUnderstood(str(error)) from error
        except MalformedBundle:
            raise InvalidJob(
                f"What job {earlier.id} changed cannot be read, so it cannot be continued: submit "
                "the task as a new job."
            ) from None


def _check_size(size: int, job_id: str) -> None:
    if size > MAX_CONVERSATION_BYTES:
        raise InvalidJob(
            f"The conversation of job {job_id} has more than {MAX_CONVERSATION_BYTES // MIB} MiB, "
            "too much to continue it: apply its changes, and submit what is left as a new job."
        )
