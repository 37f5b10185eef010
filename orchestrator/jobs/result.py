"""The result of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, JsonValue, PrivateAttr

from ..valid_models import ValidTextModel
from .bounds import (
    MAX_LISTED_BYTES,
    MAX_REASON_CHARACTERS,
    MAX_UNREAD_BYTES,
    cut_text,
    json_bytes,
)
from .changes import FileChange
from .spec import BlobId, JobId, WireModel
from .state import JobState

MAX_SUMMARY_CHARACTERS = 4_000
"""The longest summary, about a thousand tokens, because another model reads it."""


MAX_TAIL_CHARACTERS = 4_000
"""The longest kept end of a verification's output; a test run prints its failures there."""


COST_DIGITS = 9
"""The decimal places of a calculated cost: a token costs a ten-millionth of a dollar."""


class Usage(WireModel):
    """The resources that a job consumed, summed over its attempts."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    """None when the model's prices are unknown."""
    tool_calls: int = 0

    def plus(self, other: Usage) -> Usage:
        """Return the sum; an unknown cost counts as none, unless both are unknown."""
        mine, its = self.model_dump(), other.model_dump()
        known = [cost for cost in (mine.pop("cost_usd"), its.pop("cost_usd")) if cost is not None]
        counts = {name: count + its[name] for name, count in mine.items()}
        return Usage(**counts, cost_usd=round(sum(known), COST_DIGITS) if known else None)

    def minus(self, part: Usage) -> Usage:
        """Return the difference, at least zero: the subtracted part may have grown meanwhile."""
        mine, its = self.model_dump(), part.model_dump()
        cost, less = mine.pop("cost_usd"), its.pop("cost_usd") or 0
        counts = {name: max(0, count - its[name]) for name, count in mine.items()}
        left = None if cost is None else max(0.0, round(cost - less, COST_DIGITS))
        return Usage(**counts, cost_usd=left)


class ContextStats(WireModel):
    """What summaries did to the job's conversation; all zero if it was never too long."""

    summary_count: int = 0
    messages_summarized: int = 0
    original_token_count: int = 0
    """The estimated size of what they replaced."""
    summarized_token_count: int = 0
    """The estimated size of what took its place."""
    tokens_saved: int = 0


class JobError(WireModel, ValidTextModel):
    """A failure as data: it is sent by name and message, never as a pickle."""

    type: str
    message: str
    retryable: bool = False


@dataclass(frozen=True)
class KnownOutput:
    """The end of a command's output."""

    text: str
    is_cut: bool
    """Its beginning is missing."""


class Verification(WireModel, ValidTextModel):
    """One run of a job's `verify` command."""

    command: str
    exit_code: int
    output_tail: str = Field(default="", max_length=MAX_TAIL_CHARACTERS)
    seconds: float = 0
    _known: KnownOutput | None = PrivateAttr(default=None)

    @property
    def output(self) -> KnownOutput:
        """The known output: where the command ran, that is more than its tail."""
        tail = self.output_tail
        return self._known or KnownOutput(tail, is_cut=len(tail) >= MAX_TAIL_CHARACTERS)

    def with_output(self, output: KnownOutput) -> Verification:
        """Return the same verification with more of its output, which no record of it contains."""
        known = self.model_copy()
        known._known = output  # noqa: SLF001 - its own
        return known


class CollectionState(StrEnum):
    """What became of the changes of a job that has ended."""

    DONE = "done"
    """They are in the result."""
    PENDING = "pending"
    """A worker still collects them; an event `changes.collected` follows."""
    LOST = "lost"
    """They can no longer be collected: the host that had the job's files is lost, or they cannot
    be read."""


class CollectedChanges(WireModel):
    """The changes of a job that were collected after its end; they become a part of its result."""

    files_modified: tuple[FileChange, ...] = ()
    """The first ones, when there are many."""
    files_omitted: int = 0
    """The number of further changed files, which only the change bundle lists."""
    changes: BlobId | None = None
    """The blob of the change bundle; None when nothing changed."""


class ResultSoFar(WireModel):
    """The known part of a job's result before its end; reported if it ends without its worker."""

    files_modified: tuple[FileChange, ...] = ()
    """The first ones, when there are many."""
    files_omitted: int = 0
    """The number of further changed files, which only the change bundle lists."""
    changes: BlobId | None = None
    usage: Usage = Usage()
    sandbox: str | None = None


def _is_empty(value: tuple[str, ...]) -> bool:
    return not value


DECISIVE = frozenset({"changes", "collection"})
"""The fields of a result by which its changes are landed: nothing stands in for them."""


class JobResult(WireModel, ValidTextModel):
    """The end of a job: its state, its answer and its changes."""

    job_id: JobId
    state: JobState
    """How it ended."""
    success: bool
    """Whether that is `succeeded`."""
    summary: str = Field(default="", max_length=MAX_SUMMARY_CHARACTERS)
    """The text below the last heading `## Summary`, else the last message."""
    verified: Verification | None = None
    """The last run of the job's `verify` command, or of its `verify_merges` on its files at the
    end: the one that fails, if one does. A job whose `verify` fails has failed. None when it has
    neither, or ended before."""
    output: JsonValue = None
    """The structured answer, valid against the job's `output_schema`; None without a schema."""
    files_modified: tuple[FileChange, ...] = ()
    """The first ones, when there are many."""
    files_omitted: int = 0
    """The number of further changed files, which only the change bundle lists."""
    changes: BlobId | None = None
    """The blob of the change bundle; None when nothing changed."""
    collection: CollectionState = CollectionState.DONE
    """Whether the changes are complete. Of a job that was stopped while much was to do, they may
    follow after its end (`pending`) or not at all (`lost`): until then, and then, they are those of
    its newest checkpoint."""
    usage: Usage = Usage()
    """The resources that the job consumed, without its children."""
    context: ContextStats = ContextStats()
    """What summaries did to its conversation."""
    attempts: int = 0
    """The number of attempts that began."""
    queued_seconds: float = 0
    """The seconds until its first attempt."""
    execution_seconds: float = 0
    """The time that counts against `timeout_seconds`: that of its attempts, and that in which it
    waited for nothing but children. The times of a parent and of its children overlap."""
    error: JobError | None = None
    """Why it did not succeed."""
    unread_messages: tuple[str, ...] = ()
    """The beginnings of the messages that were accepted for the job, but that its agent did not
    read before its end."""
    sandbox: str | None = None
    """Where the commands ran: `docker`, or `local`, which isolates nothing."""
    not_understood: tuple[str, ...] = Field(default=(), exclude_if=_is_empty)
    """The fields of which parts are left out here, because another release of fanout wrote them in
    a form that this one does not know. Never stored."""

    @property
    def files_count(self) -> int:
        """The number of all changed files."""
        return len(self.files_modified) + self.files_omitted

    @property
    def changed_nothing(self) -> bool:
        """Whether it is certain that there are no changes."""
        return self.changes is None and self.collection is CollectionState.DONE

    @property
    def without_changes(self) -> str:
        """Why there is no change bundle, as the predicate of a sentence about the job."""
        match self.collection:
            case CollectionState.PENDING:
                return "has changes that are still being collected: ask again in a moment"
            case CollectionState.LOST:
                return "had changes that are lost with the host of its files"
            case _:
                return "changed nothing"

    def bounded(self) -> JobResult:
        """Return the result with its lists and texts cut to what a record in Redis may hold."""
        files, omitted = first_files(self.files_modified)
        error = self.error
        if error is not None:
            message = cut_text(error.message, MAX_REASON_CHARACTERS)
            error = error.model_copy(update={"message": message})
        unread: list[str] = []
        size = 0
        for text in self.unread_messages:
            size += json_bytes(text)
            if size > MAX_UNREAD_BYTES:
                unread.append(f"… (and {len(self.unread_messages) - len(unread):,} more)")
                break
            unread.append(text)
        return self.model_copy(
            update={
                "files_modified": files,
                "files_omitted": self.files_omitted + omitted,
                "error": error,
                "unread_messages": tuple(unread),
            }
        )


def first_files(files: Iterable[FileChange]) -> tuple[tuple[FileChange, ...], int]:
    """Return as many changed files as a record in Redis may list, and the number of the others."""
    kept: list[FileChange] = []
    size, omitted = 0, 0
    for file in files:
        if omitted == 0:
            size += json_bytes(file.model_dump(mode="json", exclude_defaults=True)) + 2
        if omitted or size > MAX_LISTED_BYTES:
            omitted += 1
        else:
            kept.append(file)
    return tuple(kept), omitted


@dataclass(frozen=True)
class Unfinished:
    """Why a message of the queue did not bring its job to its end, for dashboards."""

    why: str
    """The ledger's or the worker's reason; it quotes no content."""
    has_run: bool
    """Whether an attempt of the job began; otherwise the message was refused."""
