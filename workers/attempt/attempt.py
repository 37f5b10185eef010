"""A running attempt, its deadline and the means to stop it; its outcome, and the job's result.

The outcome is what the attempt produced; the result of the job is made of it and committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from pydantic import JsonValue

from fanout.orchestrator.cancellation import CANCEL_AGAIN_SECONDS
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.bounds import MAX_OUTPUT_BYTES, json_bytes
from fanout.orchestrator.jobs.changes import FileChange
from fanout.orchestrator.jobs.failures import (
    AgentFailed,
    DeadlineExceeded,
    JobCancelled,
    JobFailure,
    LedgerUnavailable,
    MessagesUnread,
    out_of_time,
)
from fanout.orchestrator.jobs.result import (
    CollectedChanges,
    CollectionState,
    ContextStats,
    JobResult,
    ResultSoFar,
    Usage,
    Verification,
)
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger, ModelWait

from ..agent.delegation.children import AwaitedTasks
from ..heartbeat import elapsed_clock
from ..sandbox import HostFault, LazySandbox

log = structlog.get_logger(__name__)

UNREAD_CHARACTERS = 200
"""The length of an unread message in a result: enough for its sender to recognize it."""


class Attempt:
    """One running attempt, which can be stopped from outside.

    Args:
        claim: The job, and the right to run it.
        definition: The definition of its agent.
        limits: The job's limits, with every field set that a sandbox needs.
        claimed_at: When the claim was sent, on `elapsed_clock`.
        turns: Held while one attempt of this worker begins to stop. When a thousand are stopped at
            once, each unwinds in steps of the loop of its own, not all of them in the same one.

    Raises:
        ValueError: The limits have no `timeout_seconds`.
    """

    def __init__(
        self,
        claim: Claim,
        definition: AgentDefinition,
        limits: Limits,
        claimed_at: float,
        turns: asyncio.Lock,
    ) -> None:
        if limits.timeout_seconds is None:
            raise ValueError("the defaults leave timeout_seconds unset")
        self.claim = claim
        self.definition = definition
        self.limits = limits
        self.timeout_seconds = limits.timeout_seconds
        self.left_seconds = max(limits.timeout_seconds - claim.ran_seconds, 0)
        """What is left of the job's time after earlier attempts."""
        self.ends_at = claimed_at + limits.timeout_seconds - claim.ran_seconds
        """When the job's time is over, on `elapsed_clock`."""
        self.stood_still_seconds = 0.0
        """The time of the attempt that is not the job's."""
        self._alarm: asyncio.TimerHandle | None = None
        self.stopped_by: JobFailure | None = None
        """Why the attempt was stopped; the first reason counts."""
        self.stopped_at: float | None = None
        """When that was, on `elapsed_clock`."""
        self.sandbox: LazySandbox | None = None
        """Its sandbox, once something may open it."""
        self._turns = turns
        self._acknowledged = False
        self._work: asyncio.Task[AttemptOutcome] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def is_first(self) -> bool:
        """Whether no earlier attempt of the job is known to the ledger."""
        return self.claim.attempt == 1 and not self.claim.ran_seconds

    @property
    def has_sandbox(self) -> bool:
        """Whether its sandbox was opened."""
        return self.sandbox is not None and self.sandbox.is_open

    @property
    def opens_sandbox(self) -> bool:
        """Whether it waits for its sandbox."""
        return self.sandbox is not None and self.sandbox.is_wanted and not self.sandbox.is_open

    async def run(self, work: Coroutine[Any, Any, AttemptOutcome]) -> AttemptOutcome:
        """Run the attempt's work in its own task, which `stop` can cancel at any time."""
        self._work = asyncio.create_task(work)
        try:
            return await self._work
        except asyncio.CancelledError:  # the work had not started
            return AttemptOutcome(failure=self.acknowledge())
        finally:
            if self._stopping is not None:
                self._stopping.cancel()
            self._work = self._stopping = None  # their errors refer to this attempt

    def stop(self, reason: JobFailure) -> None:
        """Stop the attempt, unless it is being stopped already.

        Args:
            reason: Becomes `stopped_by`.
        """
        if self.stopped_by is None and self._work is not None:
            self.stopped_by = reason
            self.stopped_at = elapsed_clock()
            self._stopping = asyncio.create_task(self._cancel_until_acknowledged(self._work))

    def acknowledge(self) -> JobFailure:
        """Return why the work was cancelled; from now on it is not cancelled again."""
        self._acknowledged = True
        if self.stopped_by is None:  # a library has cancelled what was not its own
            self.stopped_by = AgentFailed("The agent's run was cancelled, and not by fanout.")
            self.stopped_at = elapsed_clock()
        return self.stopped_by

    def is_repeated(self, failure: JobFailure | None) -> bool:
        """Return whether the job is begun again, after a pause, when this attempt has failed."""
        if isinstance(failure, HostFault):
            return False
        if failure is None or isinstance(failure, LedgerUnavailable):
            return failure is not None
        if self.is_refused_by_host(failure):
            return failure.retryable
        return failure.retryable and self.claim.attempt < self.claim.spec.max_attempts

    def is_refused_by_host(self, failure: JobFailure) -> bool:
        """Return whether a host that is fit could not open the sandbox, and another one may."""
        return failure.depends_on_host and not self.has_sandbox

    async def _cancel_until_acknowledged(self, work: asyncio.Task[AttemptOutcome]) -> None:
        async with self._turns:
            await asyncio.sleep(0)
        while not (work.done() or self._acknowledged):
            work.cancel()
            await asyncio.sleep(CANCEL_AGAIN_SECONDS)

    @contextlib.contextmanager
    def deadline(self) -> Iterator[None]:
        """Stop the attempt when the job's time is over, unless the context was left before."""
        self._set_alarm(self.left_seconds)
        try:
            yield
        finally:
            self._stop_alarm()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let no time of the job pass while the context is open."""
        begun_at = elapsed_clock()
        self._stop_alarm()
        try:
            yield
        finally:
            seconds = elapsed_clock() - begun_at
            self.stood_still_seconds += seconds
            self.ends_at += seconds
            self._set_alarm(max(self.ends_at - elapsed_clock(), 0))

    def _set_alarm(self, seconds: float) -> None:
        late = out_of_time(self.timeout_seconds)
        self._alarm = asyncio.get_running_loop().call_later(seconds, self.stop, late)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


@dataclass(frozen=True, kw_only=True)
class AttemptOutcome:
    """What an attempt produced, whether it succeeded, failed or has to be resumed."""

    has_run: bool = False
    """Whether the agent was at work; otherwise the job ends with what its last checkpoint has."""
    has_sandbox: bool = False
    """Whether the attempt's sandbox was opened."""
    stood_still_seconds: float = 0.0
    """The time of the attempt that is not the job's."""
    leaves_files: bool = True
    """Whether this host may have files of the job."""
    summary: str = ""
    output: JsonValue = None
    verified: Verification | None = None
    usage: Usage = field(default_factory=Usage)
    context: ContextStats = field(default_factory=ContextStats)
    files: tuple[FileChange, ...] = ()
    files_omitted: int = 0
    """The number of further changed files, which only the bundle lists."""
    changes: str | None = None
    """The blob with the change bundle; None without changes."""
    collection: CollectionState = CollectionState.DONE
    """Whether the changes are collected."""
    sandbox: str | None = None
    """The kind of the sandbox; None when none was opened."""
    approvals: tuple[Approval, ...] = ()
    """The approvals for which the agent waits."""
    tasks: AwaitedTasks | None = None
    """The tasks for which the agent waits; None when no call is deferred."""
    model: ModelWait | None = None
    """The model for which the agent waits."""
    messages_read: int = 0
    """The number of messages to the job that its conversation contains."""
    failure: JobFailure | None = None

    @property
    def waits(self) -> bool:
        """Whether the job has to be parked: the attempt has ended, the job has not."""
        return bool(self.approvals) or self.tasks is not None or self.model is not None

    def with_changes(self, found: CollectedChanges | ResultSoFar) -> AttemptOutcome:
        """Return the outcome with these changes."""
        return replace(
            self,
            files=found.files_modified,
            files_omitted=found.files_omitted,
            changes=found.changes,
        )


def make_result(claim: Claim, outcome: AttemptOutcome, ran_seconds: float) -> JobResult:
    """Return the result of an attempt that ended its job, in a form that can be stored.

    An answer that is too large is dropped, and the job fails.

    Args:
        claim: The attempt.
        outcome: The attempt's outcome.
        ran_seconds: How long the attempt ran.
    """
    size = json_bytes(outcome.output)
    if size > MAX_OUTPUT_BYTES:
        too_large = AgentFailed(
            f"The agent's structured answer has {size:,} bytes, more than {MAX_OUTPUT_BYTES:,}; it "
            "was dropped: have large results written to files."
        )
        outcome = replace(outcome, output=None, failure=outcome.failure or too_large)
    return _result(claim, outcome, ran_seconds)


def _result(claim: Claim, outcome: AttemptOutcome, ran_seconds: float) -> JobResult:
    failure = outcome.failure
    state = JobState.SUCCEEDED
    if isinstance(failure, DeadlineExceeded):
        state = JobState.TIMED_OUT
    elif isinstance(failure, JobCancelled):
        state = JobState.CANCELLED
    elif failure is not None:
        state = JobState.FAILED
    return JobResult.model_validate(
        {
            "job_id": claim.spec.id,
            "state": state,
            "success": failure is None,
            "summary": outcome.summary,
            "verified": outcome.verified,
            "output": outcome.output,
            "files_modified": outcome.files,
            "files_omitted": outcome.files_omitted,
            "changes": outcome.changes,
            "collection": outcome.collection,
            "usage": outcome.usage,
            "context": outcome.context,
            "attempts": claim.attempt,
            "queued_seconds": round(max(claim.started_at - claim.submitted_at, 0), 3),
            "execution_seconds": round(claim.ran_seconds + ran_seconds, 3),
            "error": failure.as_error() if failure else None,
            "sandbox": outcome.sandbox,
        },
    )


async def commit(
    ledger: Ledger,
    journal: Journal,
    claim: Claim,
    result: JobResult,
    data: Mapping[str, JsonValue],
    *,
    messages_read: int,
) -> bool:
    """Commit a job's result, with the messages that arrived after the agent last read any.

    Returns whether it was committed: False if the attempt no longer holds the job.

    Args:
        ledger: Where the result is committed.
        journal: Where messages to the job are.
        claim: The attempt.
        result: The job's result, without unread messages.
        data: Is added to the journal's event of the job's end.
        messages_read: The number of messages that the agent has read.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    job_id = claim.spec.id
    unread: list[str] = []
    while True:
        beginnings = tuple(text[:UNREAD_CHARACTERS] for text in unread)
        named = result.model_copy(update={"unread_messages": beginnings})
        try:
            return await ledger.finish(
                job_id, claim.token, named, data, messages_read + len(unread)
            )
        except MessagesUnread:  # seldom: then they are read
            unread = await journal.messages(job_id, messages_read)


def find_failure(error: BaseException) -> JobFailure:
    """Return the failure inside an exception: ADK wraps what a plugin raises.

    An unknown exception is reported by its type only, because its text may hold a prompt or a
    file's content.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JobFailure):
            return cause
        cause = cause.__cause__ or cause.__context__
    log.error("attempt failed unexpectedly", error=type(error).__name__, exc_info=error)
    return AgentFailed(f"The agent's run failed unexpectedly ({type(error).__name__}).")
