"""One attempt of a job, from its claim to its commit.

`JobRunner.run` is the story: claim, open the sandbox, run the agent, collect the changes, and then
commit the result, or park, requeue or release the job. `outcome` has what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import IO, Any

import structlog

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
from orchestrator.jobs.result import JobResult, ResultSoFar
from orchestrator.jobs.store.admission import Admission
from orchestrator.jobs.store.journal import Journal
from orchestrator.jobs.store.ledger import NOT_UNDERSTOOD, Claim
from orchestrator.jobs.worker_info import WorkerInfo
from workers.agent.services import JobServices
from workers.agent.session_journal import AttemptJournal
from workers.agent.subagent import Subagent, SubagentFactory, limit_failure
from workers.attempt.attempt import Attempt
from workers.attempt.opening import opened
from workers.attempt.outcome import Outcome, commit, result_of
from workers.heartbeat import Heartbeats, HeldLease, elapsed_clock
from workers.sandbox import Sandbox, SandboxDied, SandboxProvider, SandboxSpec

log = structlog.get_logger(__name__)

CHANGES_SECONDS = 60.0
"""For the change list of a job that ended by itself."""
HURRIED_CHANGES_SECONDS = 1.0
"""For the change list of a cancelled or late job: with it and the removal of the container, the job
ends within two seconds."""
FULL_HOST_SECONDS = 0.5
"""Before a worker asks again for a slot on a full host, or for a job that waits for its own host."""
COMMIT_RETRY_SECONDS = 0.25
"""Between two tries to record the end of an attempt while Redis does not answer."""
RETRY_PAUSE_SECONDS = 2.0
"""Before the second attempt; each later pause is four times as long. So three attempts outlast the
restart of a Docker engine, and a host in trouble does not use up the attempts of all queued jobs."""
MAX_RETRY_PAUSE_SECONDS = 30.0
"""The longest pause: the sixth would otherwise take half an hour."""


Progress = Callable[[str], None]
"""Receives one line about what the job is doing, for a dashboard; it must not block."""


class ShuttingDown(JobFailure):
    """The worker stops; its jobs are released without using up an attempt."""


class JobRunner:
    """Runs attempts of jobs, many at once.

    Args:
        services: what all jobs of this worker share.
        journal: the journals of all jobs.
        admission: dispatches the next jobs when one has ended.
        provider: opens the sandboxes.
        heartbeats: renews the leases.
        subagents: makes the agents.
        default_image: the image of an agent whose definition names none.
        lease_seconds: the length of a lease.
        me: this worker's registration, as it is now.
    """

    def __init__(
        self,
        services: JobServices,
        *,
        journal: Journal,
        admission: Admission,
        provider: SandboxProvider,
        heartbeats: Heartbeats,
        subagents: SubagentFactory,
        default_image: str,
        lease_seconds: float,
        me: Callable[[], WorkerInfo],
    ) -> None:
        self._services = services
        self._ledger = services.ledger
        self._blobs = services.blobs
        self._journal = journal
        self._admission = admission
        self._provider = provider
        self._heartbeats = heartbeats
        self._subagents = subagents
        self._default_image = default_image
        self._lease_seconds = lease_seconds
        self._me = me

    async def run(self, job_id: str, progress: Progress) -> JobResult | None:
        """Run the next attempt of a job.

        Returns the job's result, or None when the attempt did not end the job.

        Args:
            job_id: the id that a message of the queue announced.
            progress: receives the agent's steps.
        """
        claimed_at = elapsed_clock()
        claim = await self._claim(job_id)
        if claim is None:
            return None
        with structlog.contextvars.bound_contextvars(
            job=job_id, attempt=claim.attempt, agent=claim.spec.agent
        ):
            log.info("attempt started")
            outcome = await self._attempt(claim, claimed_at, progress)
            result = await self._conclude(claim, outcome, elapsed_clock() - claimed_at)
            log.info("attempt ended", state=result.state if result else "not final")
        with contextlib.suppress(LedgerUnavailable):  # the reaper dispatches when Redis is back
            await self._admission.pump()
        return result

    async def _claim(self, job_id: str) -> Claim | None:
        try:
            claim = await self._ledger.claim(job_id, self._me(), self._lease_seconds)
        except LedgerUnavailable as failure:  # dispatched again, like a job whose message was lost
            log.warning("claim failed", job=job_id, error=str(failure))
            return None
        if isinstance(claim, Claim):
            return claim
        log.info("claim refused", job=job_id, reason=claim)
        if claim in {"host full", "waits for its host"} or claim.startswith(NOT_UNDERSTOOD):
            await asyncio.sleep(FULL_HOST_SECONDS)
        return None

    async def _attempt(self, claim: Claim, claimed_at: float, progress: Progress) -> Outcome:
        """Do the work under a lease and a deadline; either can end it at any time."""
        if self._me().draining:  # the message was under way when the worker began to stop
            return Outcome(failure=ShuttingDown("Its worker stops."))
        try:
            definition = self._services.definitions[claim.spec.agent]
        except UnknownAgent as failure:
            return Outcome(failure=failure)
        attempt = Attempt(claim, definition, self._services.limits_of(claim.spec), claimed_at)
        with self._heartbeats.holding(claim, attempt.stop) as lease, attempt.deadline():
            lease.renewed(claimed_at)
            journal = AttemptJournal(self._journal, self._blobs, lease, progress)
            outcome = await attempt.run(self._work_and_pause(attempt, lease, journal))
        return replace(outcome, messages_read=journal.messages_read)

    async def _work_and_pause(
        self, attempt: Attempt, lease: HeldLease, journal: AttemptJournal
    ) -> Outcome:
        """Work; before a retry that may succeed, pause, while the job keeps its slot here."""
        outcome = await self._work(attempt, lease, journal)
        failure, claim = outcome.failure, attempt.claim
        is_retried = isinstance(failure, LedgerUnavailable) or (
            failure is not None and failure.retryable and claim.attempt < claim.spec.max_attempts
        )
        if is_retried and attempt.stopped_by is None and lease.is_held:
            try:
                await asyncio.sleep(retry_pause_seconds(claim.attempt))
            except asyncio.CancelledError:
                return replace(outcome, failure=attempt.acknowledge())
        return outcome

    async def _work(self, attempt: Attempt, lease: HeldLease, journal: AttemptJournal) -> Outcome:
        """Open the sandbox, run the agent, collect the changes; whatever happens, return them."""
        outcome = Outcome()
        try:
            async with opened(
                self._provider,
                self._sandbox_spec(attempt),
                claim=attempt.claim,
                host=self._me().host,
                journal=journal,
                blobs=self._blobs,
            ) as sandbox:
                agent = self._subagents.create(
                    attempt.claim.spec,
                    attempt.definition,
                    attempt.limits,
                    ends_at=attempt.ends_at,
                    sandbox=sandbox,
                    journal=journal,
                    lease=lease,
                )
                outcome = Outcome(sandbox=sandbox.kind, checkpoints=agent.checkpoints)
                outcome = await self._run_agent(agent, attempt, sandbox, outcome)
                outcome = await self._with_changes(outcome, attempt, lease, sandbox)
        except asyncio.CancelledError:
            return replace(outcome, failure=attempt.acknowledge())
        except Exception as error:  # noqa: BLE001 - whatever it is, the attempt ends in order
            return replace(outcome, failure=attempt.stopped_by or _as_failure(error))
        return outcome

    def _sandbox_spec(self, attempt: Attempt) -> SandboxSpec:
        return SandboxSpec(
            job_id=attempt.claim.spec.id,
            attempt=attempt.claim.attempt,
            image=attempt.definition.image or self._default_image,
            limits=attempt.limits,
            snapshot=attempt.claim.spec.snapshot,
        )

    async def _run_agent(
        self, agent: Subagent, attempt: Attempt, sandbox: Sandbox, outcome: Outcome
    ) -> Outcome:
        """Run the agent to its answer, or until it waits for a person or for children."""
        failure: JobFailure | None
        try:
            answer = await agent.run()
            outcome = replace(outcome, summary=answer.summary, output=answer.output)
            children = answer.children
            if answer.approvals or answer.children:
                with await sandbox.changes() as bundle:
                    await agent.checkpoints.keep(bundle)
                    children = await agent.children.on_files_of(bundle, answer.children)
            outcome = replace(outcome, approvals=answer.approvals, children=children)
            failure = limit_failure(answer)
        except asyncio.CancelledError:
            failure = attempt.acknowledge()
        except Exception as error:  # noqa: BLE001 - whatever it is, the changes are reported
            failure = attempt.stopped_by or _as_failure(error)
        return replace(outcome, failure=failure, usage=agent.usage)

    async def _with_changes(
        self, outcome: Outcome, attempt: Attempt, lease: HeldLease, sandbox: Sandbox
    ) -> Outcome:
        """Return the outcome with the changes, however the agent ended, unless the job resumes."""
        resumes = outcome.waits or isinstance(outcome.failure, NotUnderstood)
        if resumes or not lease.is_held or _leaves_job(attempt.stopped_by):
            return outcome
        seconds = HURRIED_CHANGES_SECONDS if attempt.stopped_by else CHANGES_SECONDS
        try:
            try:
                files, changes = await self._store_changes(sandbox, seconds)
            except asyncio.CancelledError:  # stopped just now: what can be had in a hurry
                outcome = replace(outcome, failure=attempt.acknowledge())
                if _leaves_job(attempt.stopped_by):
                    return outcome
                files, changes = await self._store_changes(sandbox, HURRIED_CHANGES_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("changes not collected", error=type(error).__name__)
            return replace(outcome, failure=outcome.failure or _as_failure(error))
        return replace(outcome, files=files, changes=changes)

    async def _store_changes(
        self, sandbox: Sandbox, seconds: float
    ) -> tuple[tuple[FileChange, ...], str | None]:
        """Put the change bundle into the blob store; the list of files, and the blob's id.

        Raises:
            SandboxDied: it takes too long. An engine that hangs may answer the next attempt.
        """
        try:
            async with asyncio.timeout(seconds):
                with await sandbox.changes() as bundle:
                    files = await asyncio.to_thread(_files, bundle)
                    if not files:
                        return (), None
                    bundle.seek(0)
                    return files, await self._blobs.put_file(bundle)
        except TimeoutError:
            raise SandboxDied(
                f"The job's changes could not be collected within {seconds:g} s."
            ) from None

    async def _conclude(
        self, claim: Claim, outcome: Outcome, ran_seconds: float
    ) -> JobResult | None:
        """Commit the result, or park, requeue or release the job; the result if it was committed."""
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
            await self._insist(lambda: self._park(claim, outcome))
            return None
        if failure is not None and failure.retryable:
            reason = type(failure).__name__
            if await self._insist(lambda: self._ledger.fail_attempt(job_id, token, reason)):
                log.warning("attempt failed, job requeued", error=reason)
                return None
        return await self._commit(claim, outcome, ran_seconds)

    async def _park(self, claim: Claim, outcome: Outcome) -> bool:
        state = await self._ledger.park(
            claim.spec.id,
            claim.token,
            outcome.approvals,
            outcome.children or (),
            self._services.bounds,
            timeout_seconds=self._services.limits_of(claim.spec).timeout_seconds,
        )
        return state is not None

    async def _commit(self, claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult | None:
        """Commit the job's result and remove what it no longer needs."""
        if outcome.sandbox is None:
            outcome = await self._with_earlier_work(claim.spec.id, outcome)
        result = result_of(claim, outcome, ran_seconds)
        data = {"error": result.error.model_dump()} if result.error else {}
        read = outcome.messages_read
        if not await self._insist(
            lambda: commit(self._ledger, self._journal, claim, result, data, messages_read=read)
        ):
            return None
        if outcome.checkpoints is not None:
            await outcome.checkpoints.drop()
        try:
            await self._provider.discard(claim.spec.id)
        except SandboxFailure as failure:  # the job has ended; the reaper removes its files
            log.warning("files not discarded", error=type(failure).__name__)
        return result

    async def _with_earlier_work(self, job_id: str, outcome: Outcome) -> Outcome:
        """Return the outcome of an attempt without a sandbox, with the last checkpoint's changes."""
        earlier: list[ResultSoFar] = []

        async def read() -> bool:
            earlier.append(await self._ledger.so_far(job_id))
            return True

        if not await self._insist(read):
            return outcome
        so_far = earlier[0]
        return replace(
            outcome,
            files=so_far.files_modified,
            changes=so_far.changes,
            usage=so_far.usage,
            sandbox=so_far.sandbox,
        )

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Repeat a call of the ledger while Redis does not answer; False after two leases."""
        until = elapsed_clock() + 2 * self._lease_seconds
        while True:
            try:
                return await ask()
            except LedgerUnavailable:
                if elapsed_clock() > until:
                    return False
                await asyncio.sleep(COMMIT_RETRY_SECONDS)


def retry_pause_seconds(attempt: int) -> float:
    """Return how long to wait after an attempt that failed."""
    return float(min(RETRY_PAUSE_SECONDS * 4 ** (attempt - 1), MAX_RETRY_PAUSE_SECONDS))


def _leaves_job(stopped_by: JobFailure | None) -> bool:
    """Whether the job is another attempt's now, or will be."""
    return isinstance(stopped_by, (LeaseLost, ShuttingDown))


def _files(bundle: IO[bytes]) -> tuple[FileChange, ...]:
    with ChangeBundle.open(bundle) as opened_bundle:
        return opened_bundle.changes.summary()


def _as_failure(error: BaseException) -> JobFailure:
    """Return the failure inside an exception: ADK wraps what a plugin raises.

    An unknown exception is reported by its type only: its text may hold a prompt or a file's
    content.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JobFailure):
            return cause
        cause = cause.__cause__ or cause.__context__
    log.error("attempt failed unexpectedly", error=type(error).__name__, exc_info=error)
    return AgentFailed(f"The agent's run failed unexpectedly ({type(error).__name__}).")
