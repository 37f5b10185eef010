"""The job runner: claim -> sandbox -> agent -> changes -> result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import IO

import structlog

from orchestrator.configuration.agent_definitions import AgentDefinitions
from orchestrator.jobs.changes import ChangeBundle, FileChange
from orchestrator.jobs.failures import (
    AgentFailed,
    JobFailure,
    LeaseLost,
    LedgerUnavailable,
    NotUnderstood,
    SandboxFailure,
    UnknownAgent,
)
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.spec import Limits, TreeBounds
from orchestrator.jobs.store.admission import Admission
from orchestrator.jobs.store.journal import Journal
from orchestrator.jobs.store.ledger import NOT_UNDERSTOOD, Claim, Ledger
from orchestrator.jobs.store.rate_limiter import RateLimiter
from orchestrator.jobs.worker_info import WorkerInfo
from orchestrator.workspace.blobs import BlobStore
from workers.agent.checkpoint import Checkpoints
from workers.agent.children import Delegation
from workers.agent.session_journal import AttemptJournal
from workers.agent.subagent import Subagent, limit_failure
from workers.attempt.attempt import Attempt
from workers.attempt.commit import commit
from workers.attempt.deadline import deadline
from workers.attempt.opening import opened
from workers.attempt.outcome import Outcome, result_of
from workers.heartbeat import Heartbeats, HeldLease, elapsed_clock
from workers.sandbox.errors import SandboxDied
from workers.sandbox.protocol import Sandbox, SandboxProvider, SandboxSpec

log = structlog.get_logger(__name__)

CHANGES_SECONDS = 60.0
"""For the change list of a job that ended by itself."""
HURRIED_CHANGES_SECONDS = 1.0
"""For that of a cancelled or late one: with it and the removal, the container is gone within two
seconds."""
FULL_HOST_SECONDS = 0.5
"""A place on a full host, or a job that waits for its own, is not asked for again before this."""
COMMIT_RETRY_SECONDS = 0.25
"""Between two tries to tell the ledger of an end while Redis is away."""
RETRY_PAUSE_SECONDS = 2.0
"""Before the second attempt; each later pause is four times as long. So three attempts outlast the
restart of a Docker engine, and a host in trouble does not use up the attempts of every job that
waits."""
MAX_RETRY_PAUSE_SECONDS = 30.0
"""A job with many attempts waits no longer than this: the sixth pause would take half an hour
else."""


Progress = Callable[[str], None]
"""Receives a line about what the job does now, for a dashboard; it must not block."""


class ShuttingDown(JobFailure):
    """The worker stops; the job goes on elsewhere and no attempt is used up."""


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
        rate_limiter: RateLimiter,
        bounds: TreeBounds = TreeBounds(),  # noqa: B008 - it is frozen
        stream_text: bool = False,
        checkpoint_seconds: float = 0,
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
        self._rate_limiter = rate_limiter
        self._bounds = bounds
        self._stream_text = stream_text
        self._checkpoint_seconds = checkpoint_seconds

    async def run(self, job_id: str, progress: Progress) -> JobResult | None:
        """Run the attempt that a message announced.

        Its result, or None when it did not end the job here.
        """
        claimed_at = elapsed_clock()
        try:
            claim = await self._ledger.claim(job_id, self._me(), self._lease_seconds)
        except (
            LedgerUnavailable
        ) as away:  # the job is dispatched again, like one whose message was lost
            log.warning("claim failed", job=job_id, error=str(away))
            return None
        if isinstance(claim, str):
            log.info("claim refused", job=job_id, reason=claim)
            if claim in {"host full", "waits for its host"} or claim.startswith(NOT_UNDERSTOOD):
                await asyncio.sleep(FULL_HOST_SECONDS)
            return None
        with structlog.contextvars.bound_contextvars(
            job=job_id, attempt=claim.attempt, agent=claim.spec.agent
        ):
            log.info("attempt begins")
            outcome = await self._attempt(claim, claimed_at, progress)
            result = await self._conclude(claim, outcome, elapsed_clock() - claimed_at)
            log.info("attempt ended", state=result.state if result else "left")
        with contextlib.suppress(
            LedgerUnavailable
        ):  # the reaper sends what waits when Redis is back
            await self._admission.pump()
        return result

    async def _attempt(self, claim: Claim, claimed_at: float, progress: Progress) -> Outcome:
        """Do the work in a task of its own, which a failure from outside can end at any time."""
        outcome = Outcome()
        if self._me().draining:  # the message was under way when the worker was told to stop
            outcome.failure = ShuttingDown("Its worker stops.")
            return outcome
        try:
            definition = self._definitions[claim.spec.agent]
        except UnknownAgent as failure:
            outcome.failure = failure
            return outcome
        limits = claim.spec.limits.over(definition.job_limits()).over(self._defaults)
        timeout_seconds = outcome.timeout_seconds = _set(limits.timeout_seconds)
        ends_at = claimed_at + timeout_seconds - claim.ran_seconds
        attempt = Attempt(claim, definition, limits, outcome, ends_at)
        with (
            self._heartbeats.holding(claim, attempt.stop) as lease,
            deadline(timeout_seconds, claim.ran_seconds, attempt.stop),
        ):
            lease.renewed(claimed_at)
            journal = AttemptJournal(self._journal, self._blobs, lease, progress)
            await attempt.run(self._work_and_pause(attempt, lease, journal))
            outcome.messages_read = journal.messages_read
        return outcome

    async def _work_and_pause(
        self, attempt: Attempt, lease: HeldLease, journal: AttemptJournal
    ) -> None:
        """The work; when another attempt may help, a pause before it, with the place on the worker kept."""
        try:
            await self._work(attempt, lease, journal)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job ends in order
            attempt.outcome.failure = attempt.stopped_by or _as_failure(error)
        failure, claim = attempt.outcome.failure, attempt.claim
        may_help = isinstance(failure, LedgerUnavailable) or (
            failure is not None and failure.retryable and claim.attempt < claim.spec.max_attempts
        )
        if may_help and attempt.stopped_by is None and lease.is_held:
            await asyncio.sleep(retry_pause_seconds(claim.attempt))

    async def _work(self, attempt: Attempt, lease: HeldLease, journal: AttemptJournal) -> None:
        """Sandbox, agent, changes.

        What it finds out goes into the outcome at once: it may be cancelled.
        """
        claim, outcome = attempt.claim, attempt.outcome
        async with opened(
            self._provider,
            self._sandbox_spec(attempt),
            claim=claim,
            host=self._me().host,
            journal=journal,
            blobs=self._blobs,
        ) as sandbox:
            outcome.sandbox = sandbox.kind
            checkpoints = Checkpoints(
                sandbox,
                self._blobs,
                self._ledger,
                lease,
                used=lambda: agent.usage,
                interval_seconds=self._checkpoint_seconds,
            )
            outcome.checkpoints = checkpoints
            agent = self._agent(attempt, sandbox, journal, checkpoints)
            try:
                answer = await agent.run()
                outcome.summary, outcome.output = answer.summary, answer.output
                outcome.approvals = answer.approvals
                outcome.children = answer.children
                if answer.approvals or answer.children:
                    with await sandbox.changes() as bundle:
                        await checkpoints.keep(bundle)
                        outcome.children = await agent.children.on_files_of(bundle, answer.children)
                outcome.failure = limit_failure(answer)
            except asyncio.CancelledError:
                attempt.heard = True
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the changes are reported
                outcome.failure = attempt.stopped_by or _as_failure(error)
            finally:
                outcome.usage = agent.usage
                await self._collect(sandbox, lease, attempt)

    def _agent(
        self, attempt: Attempt, sandbox: Sandbox, journal: AttemptJournal, checkpoints: Checkpoints
    ) -> Subagent:
        means = self._ledger, self._blobs, self._definitions, self._defaults, self._bounds
        return Subagent(
            attempt.claim.spec,
            attempt.definition,
            attempt.limits,
            default_model=self._default_model,
            sandbox=sandbox,
            journal=journal,
            delegation=Delegation(*means, attempt.ends_at),
            rate_limiter=self._rate_limiter,
            checkpoints=checkpoints,
            stream_text=self._stream_text,
        )

    def _sandbox_spec(self, attempt: Attempt) -> SandboxSpec:
        return SandboxSpec(
            job_id=attempt.claim.spec.id,
            attempt=attempt.claim.attempt,
            image=attempt.definition.image or self._default_image,
            limits=attempt.limits,
            snapshot=attempt.claim.spec.snapshot,
        )

    async def _collect(self, sandbox: Sandbox, lease: HeldLease, attempt: Attempt) -> None:
        """Put the changes in the blob store, whatever ended the attempt.

        A failure here is its failure.
        """
        outcome, stopped = attempt.outcome, attempt.stopped_by
        goes_on = outcome.waits or isinstance(outcome.failure, NotUnderstood)
        if not lease.is_held or isinstance(stopped, (LeaseLost, ShuttingDown)) or goes_on:
            return
        try:
            await self._store_changes(
                sandbox, outcome, HURRIED_CHANGES_SECONDS if stopped else CHANGES_SECONDS
            )
        except asyncio.CancelledError:  # its end is wanted just now: what can be had in a hurry
            attempt.heard = True
            await self._store_changes(sandbox, outcome, HURRIED_CHANGES_SECONDS)
            raise
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("changes not collected", error=type(error).__name__)
            outcome.failure = outcome.failure or _as_failure(error)

    async def _store_changes(self, sandbox: Sandbox, outcome: Outcome, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                with await sandbox.changes() as bundle:
                    files = await asyncio.to_thread(_files, bundle)
                    if files:
                        bundle.seek(0)
                        outcome.changes = await self._blobs.put_file(bundle)
                        outcome.files = files  # both or none: nothing is listed that cannot be had
        except TimeoutError:  # an engine that hangs now may answer the next attempt
            raise SandboxDied(f"The job's changes could not be had within {seconds:g} s.") from None

    async def _conclude(
        self, claim: Claim, outcome: Outcome, ran_seconds: float
    ) -> JobResult | None:
        """Tell the ledger how the attempt ended; the result when that ended the job."""
        failure = outcome.failure
        job_id, token = claim.spec.id, claim.token
        if isinstance(failure, LeaseLost):
            return None
        if isinstance(failure, (ShuttingDown, NotUnderstood, LedgerUnavailable)):
            newer = self._me().wire_newest + 1 if isinstance(failure, NotUnderstood) else None
            await self._insist(
                lambda: self._ledger.release(job_id, token, str(failure), wire=newer)
            )
            return None
        if failure is None and outcome.waits:
            awaited = outcome.approvals, outcome.children or (), self._bounds
            limit = outcome.timeout_seconds
            await self._insist(
                lambda: self._ledger.park(job_id, token, *awaited, timeout_seconds=limit)
            )
            return None
        if failure is not None and failure.retryable:
            reason = type(failure).__name__
            if await self._insist(lambda: self._ledger.fail_attempt(job_id, token, reason)):
                log.warning("attempt failed, job queued again", error=reason)
                return None
        if outcome.sandbox is None:
            await self._insist(lambda: self._recall(job_id, outcome))
        result = result_of(claim, outcome, ran_seconds)
        shown = {"error": failure.as_error().model_dump()} if failure else {}
        read = outcome.messages_read
        if not await self._insist(
            lambda: commit(self._ledger, self._journal, claim, result, shown, messages_read=read)
        ):
            return None
        if outcome.checkpoints is not None:
            await outcome.checkpoints.drop()
        try:
            await self._provider.discard(job_id)
        except (
            SandboxFailure
        ) as left:  # the job has ended all the same, and a reaper finds its files
            log.warning("files not discarded", error=type(left).__name__)
        return result

    async def _recall(self, job_id: str, outcome: Outcome) -> bool:
        """An attempt without a sandbox reports what the ones before it left in their checkpoint."""
        so_far = await self._ledger.so_far(job_id)
        outcome.files, outcome.changes = so_far.files_modified, so_far.changes
        outcome.usage, outcome.sandbox = so_far.usage, so_far.sandbox
        return True

    async def _insist(self, ask: Callable[[], object]) -> bool:
        """Ask the ledger again while Redis is away, for the length of a lease.

        Then it answers no anyway.
        """
        until = elapsed_clock() + 2 * self._lease_seconds
        while True:
            try:
                return bool(await ask())  # type: ignore[misc] # a coroutine of bool
            except LedgerUnavailable:
                if elapsed_clock() > until:
                    return False
                await asyncio.sleep(COMMIT_RETRY_SECONDS)


def retry_pause_seconds(attempt: int) -> float:
    """How long to wait after an attempt that failed."""
    return float(min(RETRY_PAUSE_SECONDS * 4 ** (attempt - 1), MAX_RETRY_PAUSE_SECONDS))


def _set(value: float | None) -> float:
    """A limit that the installation's defaults have filled."""
    if value is None:
        raise ValueError("a limit is not set")
    return value


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
