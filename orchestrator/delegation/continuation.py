"""Continuation: a job that continues the conversation and the files of an ended one.

With `at` it continues from an earlier point, also of a job that has not ended (a fork): where a
checkpoint was taken, because there the files that belong to the conversation are known.

What it needs is copied when it is submitted. So it can run when the earlier job's container and
worker are gone and its record has expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..approvals import merge_policies
from ..configuration.agent_definitions import AgentDefinitions
from ..jobs.changes import MalformedBundle, NewerBundle
from ..jobs.conversation import conversation_of_result, event_json, split_lost
from ..jobs.failures import (
    BlobCorrupt,
    BlobMissing,
    InvalidJob,
    NotUnderstood,
    UnknownAgent,
)
from ..jobs.spec import JobSpec, StartFiles
from ..jobs.store.journal import EventType, Journal, JournalEvent
from ..jobs.store.records import Records
from ..workspace import layers
from ..workspace.blobs import BlobStore

MAX_CONVERSATION_BYTES = 32 * 1024**2
"""The largest earlier conversation: ten times the text that a large model's window holds. Each
attempt of the new job keeps all of it in memory."""
MIB = 1024**2
TAKEN_OVER = (
    *("agent", "tenant", "owner", "model", "output_schema"),
    *("verify", "max_reworks", "verify_merges"),
)
"""What a continuation has from the earlier job unless its own specification sets it."""


@dataclass(frozen=True)
class _Point:
    """A point of a job from which another can go on."""

    entries: Sequence[JournalEvent]
    """The job's conversation until then."""
    changes: str | None
    """The bundle of what the job had changed by then."""


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
            InvalidJob: It has not ended, its agent never began, its conversation is too long, or it
                cannot be continued from `at`.
            BlobMissing: Its files or its conversation have expired.
            NotUnderstood: Another release wrote it, in a form that this one does not know.
        """
        if spec.continues is None or spec.conversation is not None:
            return spec
        if await self._ledger.get_many([spec.id]):
            return spec  # it was submitted before, and the ledger keeps that specification
        earlier = await self._ledger.specification(spec.continues)
        if earlier.script is not None and spec.script is None:
            raise InvalidJob(
                f"Job {earlier.id} ran a script, which has no conversation: continue it with a "
                "script (--script)."
            )
        try:
            point = await (self._at(earlier.id, spec.at) if spec.at else self._end(earlier.id))
            return spec.model_copy(update=await self._taken_over(spec, earlier, point))
        except BlobCorrupt:
            raise
        except BlobMissing:
            raise BlobMissing(
                f"The files or the conversation of job {earlier.id} have expired, so it cannot be "
                "continued: submit the task as a new job."
            ) from None

    async def _end(self, job_id: str) -> _Point:
        result = await self._ledger.result(job_id)
        if result is None:
            raise InvalidJob(
                f"Job {job_id} has not ended: wait for it or cancel it, then continue it."
            )
        entries = await self._journal.read(job_id)
        if entries and entries[0].ends_job:
            raise BlobMissing("Its journal was shortened.")
        return _Point(conversation_of_result(entries, result), result.changes)

    async def _at(self, job_id: str, event_id: str) -> _Point:
        entries = await self._journal.read(job_id)
        end = [one for one in entries if one.ends_job]
        if end and end[0].id == event_id:
            return await self._end(job_id)
        points = [entry for entry in entries if entry.type is EventType.CHECKPOINT]
        stored = [one for one in points if await self._blobs.exists(str(one.data["changes"]))]
        chosen = next((one for one in stored if one.id == event_id), None)
        if chosen is None:
            ids = [one.id for one in (*stored, *end)]
            raise InvalidJob(
                f"Event {event_id} of job {job_id} is not a point to continue from: "
                + (f"choose one of {', '.join(ids)}." if ids else "it has none yet, so wait.")
            )
        kept, _ = split_lost(entries[: entries.index(chosen) + 1])
        return _Point(kept, str(chosen.data["changes"]))

    async def _taken_over(self, spec: JobSpec, earlier: JobSpec, point: _Point) -> dict[str, Any]:
        given = spec.model_fields_set
        values = {name: getattr(earlier, name) for name in TAKEN_OVER if name not in given}
        values["limits"] = spec.limits.over(earlier.limits)
        values["labels"] = {**earlier.labels, **spec.labels}
        values["interrupt_on"] = merge_policies(
            spec.interrupt_on, self._policy(earlier, values.get("agent", spec.agent))
        )
        if spec.script is None:
            values["conversation"] = await self._conversation(earlier, point)
        if not {"snapshot", "layers"} & given:
            values |= (await self._files(earlier, point)).update()
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

    async def _conversation(self, earlier: JobSpec, point: _Point) -> str:
        """Store the conversation up to a point as a blob of JSON lines, and return its id."""
        before = await self._blobs.get(earlier.conversation) if earlier.conversation else b""
        own: list[bytes] = []
        size = len(before)
        for entry in point.entries:
            event = await event_json(entry, self._journal, self._blobs.get)
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

    async def _files(self, earlier: JobSpec, point: _Point) -> StartFiles:
        """Return a job's files at a point."""
        changes = await self._blobs.fetch(point.changes) if point.changes else None
        try:
            return await layers.start_after(self._blobs, earlier.start, changes)
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
