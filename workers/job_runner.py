"""The job runner: claim -> sandbox -> agent -> changes -> result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

import structlog
from pydantic import JsonValue

from config.agent_definitions import AgentDefinition, AgentDefinitions
from orchestrator.blobs import BlobStore
from orchestrator.jobs.admission import Admission
from orchestrator.jobs.changes import ChangeBundle, FileChange
from orchestrator.jobs.failures import (
    AgentFailed,
    DeadlineExceeded,
    JobCancelled,
    JobFailure,
    LeaseLost,
    LedgerUnavailable,
)
from orchestrator.jobs.journal import EventType, Journal
from orchestrator.jobs.ledger import Claim, Ledger, WorkerInfo
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.jobs.spec import Limits
from orchestrator.jobs.state import JobState
from workers.deadline import Deadline
from workers.heartbeat import Heartbeats, HeldLease, elapsed_clock
from workers.sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec
from workers.session_journal import AttemptJournal
from workers.subagent import Subagent, limit_failure

log = structlog.get_logger(__name__)

CHANGES_SECONDS = 60.0
"""For the change list of a job that ended by itself."""
HURRIED_CHANGES_SECONDS = 1.0
"""For that of a cancelled or late one: with it and the removal, the container is gone within two seconds."""
FULL_HOST_SECONDS = 0.5
"""A place on a full host is not asked for again before this."""
COMMIT_RETRY_SECONDS = 0.25

Progress = Callable[[str], None]
"""Receives a line about what the job does now, for a dashboard; it must not block."""


class ShuttingDown(JobFailure):
    """The worker stops; the job goes on elsewhere and no attempt is used up."""


@dataclass
class Outcome:
    """What an attempt brought, filled in as it goes on; whatever ends it, this is reported."""

    summary: str = ""
    output: object = None
    usage: Usage = field(default_factory=Usage)
    files: tuple[FileChange, ...] = ()
    changes: str | None = None
    sandbox: str | None = None
    failure: JobFailure | None = None


class JobRunner:
    """Runs one attempt of a job at a time, many at once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        journal: Journal,
        admission: Admission,
        blobs: BlobStore,
        provider: SandboxProvider,
        heartbeats: Heartbeats,
        definitions: AgentDefinitions,
        defaults: Limits,
        default_model: str,
        default_image: str,
        lease_seconds: float,
        me: Callable[[], WorkerInfo],
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._admission = admission
        self._blobs = blobs
        self._provider = provider
        self._heartbeats = heartbeats
        self._definitions = definitions
        self._defaults = defaults
        self._default_model = default_model
        self._default_image = default_image
        self._lease_seconds = lease_seconds
        self._me = me

    async def run(self, job_id: str, progress: Progress) -> JobResult | None:
        """Run the attempt that a message announced; its result, or None when it did not end the job here."""
        claimed_at = elapsed_clock()
        claim = await self._ledger.claim(job_id, self._me(), self._lease_seconds)
        if isinstance(claim, str):
            log.info("claim refused", job=job_id, reason=claim)
            if claim == "host full":
                await asyncio.sleep(FULL_HOST_SECONDS)
            return None
        with structlog.contextvars.bound_contextvars(
            job=job_id, attempt=claim.attempt, agent=claim.spec.agent
        ):
            log.info("attempt begins")
            outcome = await self._attempt(claim, claimed_at, progress)
            result = await self._conclude(claim, outcome, elapsed_clock() - claimed_at)
            log.info("attempt ended", state=result.state if result else "left")
        with contextlib.suppress(LedgerUnavailable):  # the reaper sends what waits when Redis is back
            await self._admission.pump()
        return result

    async def _attempt(self, claim: Claim, claimed_at: float, progress: Progress) -> Outcome:
        """Do the work in a task of its own, which a failure from outside can end at any time."""
        outcome = Outcome()
        stopped: list[JobFailure] = []

        def stop(reason: JobFailure) -> None:
            if not stopped:
                stopped.append(reason)
                work.cancel()

        if self._me().draining:  # the message was under way when the worker was told to stop
            outcome.failure = ShuttingDown("Its worker stops.")
            return outcome
        with self._heartbeats.holding(claim, stop) as lease:
            lease.renewed(claimed_at)
            work = asyncio.create_task(self._work(claim, lease, outcome, progress, stopped))
            try:
                await work
            except asyncio.CancelledError:
                if not stopped:  # not our own doing: Celery terminated the task, somebody wants its end
                    stopped.append(JobCancelled("The job was terminated."))
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
                outcome.failure = stopped[0]
            except Exception as error:  # noqa: BLE001 - whatever it is, the job ends in order
                outcome.failure = stopped[0] if stopped else _as_failure(error)
        return outcome

    async def _work(
        self,
        claim: Claim,
        lease: HeldLease,
        outcome: Outcome,
        progress: Progress,
        stopped: list[JobFailure],
    ) -> None:
        """Sandbox, agent, changes. What it finds out goes into `outcome` at once: it may be cancelled."""
        definition = self._definitions[claim.spec.agent]
        limits = claim.spec.limits.over(definition.job_limits()).over(self._defaults)
        deadline = Deadline.of(limits, ran_seconds=claim.ran_seconds)
        journal = AttemptJournal(self._journal, self._blobs, lease, progress)
        resume = await self._files_are_here(claim, journal)
        async with contextlib.AsyncExitStack() as stack:
            async with deadline.enforced():
                opening = self._provider.open(self._sandbox_spec(claim, definition, limits))
                sandbox = await stack.enter_async_context(opening)
            outcome.sandbox = sandbox.kind
            place: dict[str, JsonValue] = {"sandbox": sandbox.kind, "host": self._me().host}
            await journal.note(EventType.SANDBOX_READY, place, "sandbox ready")
            agent = Subagent(
                claim.spec,
                definition,
                limits,
                default_model=self._default_model,
                sandbox=sandbox,
                journal=journal,
            )
            try:
                async with deadline.enforced():
                    answer = await agent.run(resume=resume)
                outcome.summary, outcome.output = answer.summary, answer.output
                outcome.failure = limit_failure(answer)
            except Exception as error:  # noqa: BLE001 - whatever it is, the changes are reported
                outcome.failure = _as_failure(error)
            finally:
                outcome.usage = agent.usage
                await self._collect(sandbox, lease, outcome, stopped)

    async def _files_are_here(self, claim: Claim, journal: AttemptJournal) -> bool:
        """Whether the last attempt's files are on this host, so that this one can go on with them."""
        if claim.attempt == 1 and not claim.ran_seconds:
            return False
        last_host = await journal.host_of_last_attempt()
        if last_host == self._me().host:
            return True
        await self._provider.discard(claim.spec.id)  # what an even older attempt left here is stale
        return False

    def _sandbox_spec(self, claim: Claim, definition: AgentDefinition, limits: Limits) -> SandboxSpec:
        return SandboxSpec(
            job_id=claim.spec.id,
            attempt=claim.attempt,
            image=definition.image or self._default_image,
            limits=limits,
            snapshot=claim.spec.snapshot,
        )

    async def _collect(
        self, sandbox: Sandbox, lease: HeldLease, outcome: Outcome, stopped: list[JobFailure]
    ) -> None:
        """Put the changes in the blob store, whatever ended the attempt; a failure here is its failure."""
        if not lease.is_held or any(isinstance(reason, (LeaseLost, ShuttingDown)) for reason in stopped):
            return
        hurried = bool(stopped) or isinstance(outcome.failure, DeadlineExceeded)
        try:
            async with asyncio.timeout(HURRIED_CHANGES_SECONDS if hurried else CHANGES_SECONDS):
                with await sandbox.changes() as bundle:
                    outcome.files = await asyncio.to_thread(_files, bundle)
                    if outcome.files:
                        bundle.seek(0)
                        outcome.changes = await self._blobs.put_file(bundle)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("changes not collected", error=type(error).__name__)
            outcome.failure = outcome.failure or _as_failure(error)

    async def _conclude(self, claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult | None:
        """Tell the ledger how the attempt ended; the result when that ended the job."""
        failure = outcome.failure
        job_id, token = claim.spec.id, claim.token
        if isinstance(failure, LeaseLost):
            return None
        if isinstance(failure, ShuttingDown):
            await self._insist(lambda: self._ledger.release(job_id, token, str(failure)))
            return None
        if failure is not None and failure.retryable:
            reason = type(failure).__name__
            if await self._insist(lambda: self._ledger.fail_attempt(job_id, token, reason)):
                log.warning("attempt failed, job queued again", error=reason)
                return None
        result = _result(claim, outcome, ran_seconds)
        shown = {"error": failure.as_error().model_dump()} if failure else {}
        if not await self._insist(lambda: self._ledger.finish(job_id, token, result, shown)):
            return None
        await self._provider.discard(job_id)
        return result

    async def _insist(self, ask: Callable[[], object]) -> bool:
        """Ask the ledger again while Redis is away, for the length of a lease: then it answers no anyway."""
        deadline = elapsed_clock() + 2 * self._lease_seconds
        while True:
            try:
                return bool(await ask())  # type: ignore[misc] # a coroutine of bool
            except LedgerUnavailable:
                if elapsed_clock() > deadline:
                    return False
                await asyncio.sleep(COMMIT_RETRY_SECONDS)


def _result(claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult:
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
            "output": outcome.output,
            "files_modified": outcome.files,
            "changes": outcome.changes,
            "usage": outcome.usage,
            "attempts": claim.attempt,
            "queued_seconds": round(max(claim.started_at - claim.submitted_at, 0), 3),
            "execution_seconds": round(claim.ran_seconds + ran_seconds, 3),
            "error": failure.as_error() if failure else None,
            "sandbox": outcome.sandbox,
        },
    )


def _files(bundle: IO[bytes]) -> tuple[FileChange, ...]:
    with ChangeBundle.open(bundle) as opened:
        return opened.changes.summary()


def _as_failure(error: BaseException) -> JobFailure:
    """The failure inside an exception: ADK wraps what a plugin raises.

    Of an unknown one only the type is told: its text may hold a prompt or a file's content.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JobFailure):
            return cause
        cause = cause.__cause__ or cause.__context__
    log.error("attempt failed unexpectedly", error=type(error).__name__, exc_info=error)
    return AgentFailed(f"The agent's run failed unexpectedly ({type(error).__name__}).")
