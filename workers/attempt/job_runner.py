"""One attempt of a job, from its claim to its commit.

`JobRunner.run` shows the sequence: claim the job, run the agent in a sandbox, collect the changes,
and then commit the result, or park, requeue or release the job. `attempt` defines what is
committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import uuid4

import structlog

from fanout.orchestrator.jobs.failures import (
    InvalidJob,
    JobFailure,
    LeaseLost,
    LeaseNotRenewed,
    LedgerFull,
    LedgerUnavailable,
    NotUnderstood,
    SandboxFailure,
    model_wait_over,
)
from fanout.orchestrator.jobs.result import (
    CollectionState,
    JobResult,
    ResultSoFar,
    Unfinished,
)
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.admission import Admission
from fanout.orchestrator.jobs.store.ledger import NOT_UNDERSTOOD, Claim, ModelWait
from fanout.orchestrator.jobs.totals import (
    ATTEMPT_FAILURES,
    ATTEMPTS_ENDED,
    ATTEMPTS_STARTED,
    LEASES_LOST,
)
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from fanout.orchestrator.tracing.spans import OpenSpan, span
from fanout.orchestrator.turns import working_for

from ..agent.activity import Activities
from ..agent.answer import JobWorker, answer_failure
from ..agent.delegation.children import AwaitedTasks
from ..agent.services import JobServices
from ..agent.session_journal import AttemptJournal
from ..agent.subagent import SubagentFactory
from ..agent_gate import AgentGate
from ..heartbeat import Heartbeats, HeldLease, ShuttingDown, elapsed_clock
from ..host_fitness import HostFitness
from ..sandbox import HostFault, LazySandbox, Sandbox, SandboxProvider
from .attempt import Attempt, AttemptOutcome, commit, find_failure, make_result
from .changes import ChangeCollections, with_stray_commits
from .environments import JobEnvironments
from .known_files import StartReader
from .opening import lazy_sandbox
from .traced import ClaimTimes, traced_attempt

log = structlog.get_logger(__name__)

WAITS_FOR_ANOTHER = ("host full", "waits for its host", "waits for its worker")
"""The refused claims of jobs that run elsewhere, or later."""
ANOTHER_HAS_IT = "another worker has it"
FULL_HOST_SECONDS = 0.5
"""The pause before a worker claims again on a full host, or a job that waits for its own host."""
COMMIT_RETRY_SECONDS = 0.25
"""The pause between two tries to record the end of an attempt while Redis does not answer."""
RETRY_PAUSE_SECONDS = 2.0
"""The pause before the second attempt; each later one is four times as long. Three attempts outlast
the restart of a Docker engine; a faulty host does not use up the attempts of all queued jobs."""
MAX_RETRY_PAUSE_SECONDS = 30.0
"""The longest pause: the sixth would otherwise take half an hour."""
SETTLE_SECONDS = 3.0
"""The part of a worker's ten seconds at its end for discarding files."""
CLAIMS_AT_ONCE = 16
"""The part of the 64 connections to Redis for claims: when a thousand jobs arrive at once, the
running ones continue, and a job that waits for its turn has neither a lease nor a running time
limit."""
COMMITS_AT_ONCE = 8
"""When a thousand jobs are cancelled, all share one processor: with more at once none would end
sooner, and one round of the loop would take longer."""

Progress = Callable[[str], None]
"""Receives one line about what the job is doing, for a dashboard; it must not block."""


class JobRunner:
    """Runs attempts of jobs, many at once.

    Args:
        services: What all jobs of this worker share.
        admission: Dispatches the next jobs when one has ended.
        provider: Opens the sandboxes.
        heartbeats: Renews the leases.
        fitness: Says whether this host can open sandboxes.
        environments: Prepare the environments.
        subagents: Makes the agents.
        activities: Write what the jobs do at this moment.
        collections: Collects the changes.
        collect_later: Has the changes of a job collected that has ended without them.
        on_claim: Is called when the head of the queue has changed.
        default_image: The image of an agent whose definition names none.
        lease_seconds: The length of a lease.
        full_wait_seconds: How long a job may wait that was given back because Redis was full.
        registration: Returns this worker's current registration.
    """

    def __init__(
        self,
        services: JobServices,
        *,
        admission: Admission,
        provider: SandboxProvider,
        heartbeats: Heartbeats,
        fitness: HostFitness,
        environments: JobEnvironments,
        subagents: SubagentFactory,
        activities: Activities,
        collections: ChangeCollections,
        collect_later: Callable[[], None],
        on_claim: Callable[[], None],
        default_image: str,
        lease_seconds: float,
        full_wait_seconds: float,
        registration: Callable[[], WorkerInfo],
    ) -> None:
        self._services = services
        self._ledger = services.ledger
        self._blobs = services.blobs
        self._collections = collections
        self._collect_later = collect_later
        self._on_claim = on_claim
        self._journal = services.journal
        self._admission = admission
        self._provider = provider
        self._heartbeats = heartbeats
        self._fitness = fitness
        self._subagents = subagents
        self._activities = activities
        self._default_image = default_image
        self._lease_seconds = lease_seconds
        self._full_wait_seconds = full_wait_seconds
        self._registration = registration
        self._claims = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self._commits = asyncio.Semaphore(COMMITS_AT_ONCE)
        self._agent_gate = AgentGate()
        self._stop_turns = asyncio.Lock()
        self._attempts: set[Attempt] = set()
        self._discarding: set[asyncio.Task[None]] = set()
        self._start_reader = StartReader(services.blobs)
        self._environments = environments

    async def run(
        self, job_id: str, progress: Progress, dispatch: str = "", sent_at: object = None
    ) -> JobResult | Unfinished:
        """Run the next attempt of a job.

        Returns the job's result, or why the job has not ended with it. A failure of the attempt is
        recorded in the ledger and not raised.

        Args:
            job_id: The job, as a message of the queue names it.
            progress: Receives the agent's steps.
            dispatch: The number of the dispatch that the message is of; empty: not checked.
            sent_at: When the message was sent, as it says, in seconds since the epoch.
        """
        asked_at = time.time()
        claimed = await self._claim(job_id, dispatch)
        if isinstance(claimed, str):
            return Unfinished(claimed, has_run=False)
        claim, claimed_at = claimed
        times = ClaimTimes.of(sent_at, asked_at, time.time())
        spec = claim.spec
        with (
            structlog.contextvars.bound_contextvars(
                job=job_id, attempt=claim.attempt, agent=spec.agent
            ),
            working_for(f"{spec.tenant}/{spec.owner}"),
        ):
            async with traced_attempt(
                self._ledger, claim, self._registration().name, times
            ) as trace:
                log.info("attempt started")
                self._services.totals.add(ATTEMPTS_STARTED)
                outcome = await self._attempt(claim, claimed_at, progress)
                ran_seconds = elapsed_clock() - claimed_at - outcome.stood_still_seconds
                result = await self._conclude(claim, outcome, ran_seconds)
                self._count(outcome, result)
                ended = result.state if isinstance(result, JobResult) else "not final"
                _note_end(trace, outcome, result)
                log.info("attempt ended", state=ended)
        with contextlib.suppress(LedgerUnavailable):  # the reaper dispatches when Redis is back
            await self._admission.pump()
        return result

    def _count(self, outcome: AttemptOutcome, result: JobResult | Unfinished) -> None:
        """Count the end of an attempt."""
        totals, failure = self._services.totals, outcome.failure
        if isinstance(result, JobResult):
            totals.add(ATTEMPTS_ENDED, result.state)
        else:
            is_parked = failure is None and outcome.waits
            totals.add(ATTEMPTS_ENDED, "waiting" if is_parked else "repeated")
        if failure is not None:
            totals.add(ATTEMPT_FAILURES, type(failure).__name__)
        if isinstance(failure, LeaseLost):
            is_own = isinstance(failure, LeaseNotRenewed)
            totals.add(LEASES_LOST, "not_renewed" if is_own else "taken")

    async def _claim(self, job_id: str, dispatch: str) -> tuple[Claim, float] | str:
        """Claim a job in its turn.

        Returns the claim and when it was first asked for, on `elapsed_clock`; or why it was
        refused.
        """
        try:
            async with self._claims:
                asked_at = elapsed_clock()
                claim = await self._ask_for_claim(job_id, dispatch)
        except LedgerUnavailable as failure:  # dispatched again, like a job whose message was lost
            log.warning("claim failed", job=job_id, error=str(failure))
            return "Redis did not respond"
        if isinstance(claim, Claim):
            self._on_claim()
            return claim, asked_at
        log.info("claim refused", job=job_id, reason=claim)
        if claim in WAITS_FOR_ANOTHER or claim.startswith(NOT_UNDERSTOOD):
            await asyncio.sleep(FULL_HOST_SECONDS)
        return claim

    async def _ask_for_claim(self, job_id: str, dispatch: str) -> Claim | str:
        """Claim a job, and ask again while Redis does not answer: it may have given the claim.

        Nobody would renew that one, and it would use up an attempt.

        Raises:
            LedgerUnavailable: Redis has given none, or this worker stops.
        """
        request = uuid4().hex
        while True:
            try:
                return await self._ledger.claim(
                    job_id, self._registration(), self._lease_seconds, dispatch, request
                )
            except LedgerUnavailable as failure:
                has_refused = isinstance(failure, LedgerFull) or not failure.retryable
                if has_refused or self._registration().draining:
                    raise
            await asyncio.sleep(COMMIT_RETRY_SECONDS)

    async def _attempt(self, claim: Claim, claimed_at: float, progress: Progress) -> AttemptOutcome:
        """Run the attempt's work under a lease and a deadline, each of which can stop it."""
        worker = self._registration()
        if worker.draining:  # the message was on its way when the worker began to take none
            why = (
                f"Its worker takes no jobs: {worker.unfit}."
                if worker.unfit
                else "Its worker stops."
            )
            return AttemptOutcome(failure=ShuttingDown(why))
        await self._services.refresh()
        try:
            definition = self._services.definitions[claim.spec.agent]
            self._services.check(claim.spec)
            limits = self._services.limits_of(claim.spec)
        except InvalidJob as failure:
            return AttemptOutcome(failure=failure)
        attempt = Attempt(claim, definition, limits, claimed_at, self._stop_turns)
        with (
            self._heartbeats.hold(claim, attempt.stop) as lease,
            self._activities.of(claim) as activity,
            attempt.deadline(),
        ):
            lease.mark_renewed(claimed_at)
            journal = AttemptJournal(
                self._journal,
                self._blobs,
                lease,
                progress,
                approvers=self._services.approvers,
                activity=activity,
                totals=self._services.totals,
            )
            self._attempts.add(attempt)
            try:
                outcome = await attempt.run(self._work_and_pause(attempt, lease, journal))
            finally:
                self._attempts.discard(attempt)
        return replace(
            outcome,
            has_sandbox=attempt.has_sandbox,
            stood_still_seconds=attempt.stood_still_seconds,
            messages_read=journal.messages_read,
            context=journal.context_stats,
        )

    def give_back_openings(self, why: str) -> None:
        """Give back the jobs that wait for a sandbox: this host opens none.

        Args:
            why: What is wrong with the host, for people.
        """
        for attempt in list(self._attempts):
            if attempt.opens_sandbox:
                attempt.stop(HostFault(f"Its host failed: {why}."))

    async def _work_and_pause(
        self, attempt: Attempt, lease: HeldLease, journal: AttemptJournal
    ) -> AttemptOutcome:
        """Run the work; if the attempt is going to be repeated, pause before its end.

        The job keeps its slot on this worker during the pause.
        """
        outcome = await self._work(attempt, lease, journal)
        is_retried = attempt.is_repeated(outcome.failure)
        if is_retried and attempt.stopped_by is None and lease.is_held:
            try:
                await asyncio.sleep(retry_pause_seconds(attempt.claim.attempt))
            except asyncio.CancelledError:
                return replace(outcome, failure=attempt.acknowledge())
        return outcome

    async def _work(
        self, attempt: Attempt, lease: HeldLease, journal: AttemptJournal
    ) -> AttemptOutcome:
        """Run the agent in a sandbox and collect the changes; failures are in the outcome."""
        outcome = AttemptOutcome()
        try:
            async with (
                self._agent_gate.turns() as turns,
                lazy_sandbox(
                    self._provider,
                    attempt,
                    self._services,
                    default_image=self._default_image,
                    host=self._registration().host,
                    journal=journal,
                    start_reader=self._start_reader,
                    environments=self._environments,
                ) as sandbox,
            ):
                agent = self._subagents.create(
                    attempt.claim.spec,
                    attempt.definition,
                    attempt.limits,
                    ends_at=attempt.ends_at,
                    sandbox=sandbox,
                    journal=journal,
                    lease=lease,
                    turns=turns,
                )
                outcome = AttemptOutcome(has_run=True)
                outcome = await self._run_agent(agent, attempt, sandbox, outcome)
                if sandbox.is_open or (sandbox.is_wanted and attempt.stopped_by is None):
                    outcome = await self._with_changes(outcome, attempt, lease, sandbox)
                leaves_files = sandbox.is_wanted or not attempt.is_first
                outcome = replace(outcome, sandbox=sandbox.kind, leaves_files=leaves_files)
        except asyncio.CancelledError:
            return replace(outcome, failure=attempt.acknowledge())
        except Exception as error:  # noqa: BLE001 - any failure becomes the attempt's outcome
            return replace(outcome, failure=await self._find_cause(error, attempt))
        return outcome

    async def _find_cause(self, error: Exception, attempt: Attempt) -> JobFailure:
        """Return why an attempt has failed: it was stopped, its host failed, or it did itself."""
        if attempt.stopped_by is not None:
            return attempt.stopped_by
        failure = find_failure(error)
        try:
            fault = await self._fitness.find_fault(
                failure, attempt.claim.spec.id, was_opened=attempt.has_sandbox
            )
        except asyncio.CancelledError:
            return attempt.acknowledge()
        return fault or failure

    async def _run_agent(
        self, agent: JobWorker, attempt: Attempt, sandbox: LazySandbox, outcome: AttemptOutcome
    ) -> AttemptOutcome:
        """Run the agent until it answers, or waits for a person or for children."""
        failure: JobFailure | None
        try:
            answer = await agent.run()
            summary, tasks = answer.summary, answer.tasks
            waits = bool(answer.approvals or tasks or (answer.model and sandbox.is_open))
            if sandbox.is_open and not waits:
                since = attempt.claim.submitted_at
                summary = await with_stray_commits(summary, sandbox, since)
            outcome = replace(
                outcome, summary=summary, output=answer.output, verified=answer.verification
            )
            if waits:
                with await sandbox.changes() as bundle:
                    tasks = await agent.keep(bundle, tasks)
            outcome = replace(outcome, approvals=answer.approvals, tasks=tasks, model=answer.model)
            failure = answer_failure(answer)
        except asyncio.CancelledError:
            failure = attempt.acknowledge()
        except Exception as error:  # noqa: BLE001 - the changes are reported after any failure
            failure = await self._find_cause(error, attempt)
        if failure is not None and not (
            _is_continued_elsewhere(failure) or attempt.is_repeated(failure)
        ):
            await agent.abandon()
        return replace(outcome, failure=failure, usage=agent.usage)

    async def _with_changes(
        self, outcome: AttemptOutcome, attempt: Attempt, lease: HeldLease, sandbox: Sandbox
    ) -> AttemptOutcome:
        """Return the outcome with the job's changes, unless the job is going to be resumed."""
        resumes = outcome.waits or isinstance(outcome.failure, (NotUnderstood, HostFault))
        if resumes or not lease.is_held or _is_continued_elsewhere(attempt.stopped_by):
            return outcome
        try:
            try:
                with span("collect changes"):
                    collected = await self._collections.of_attempt(attempt, sandbox)
            except asyncio.CancelledError:  # stopped meanwhile: try again with less time
                outcome = replace(outcome, failure=attempt.acknowledge())
                if _is_continued_elsewhere(attempt.stopped_by):
                    return outcome
                collected = await self._collections.of_attempt(attempt, sandbox)
        except Exception as error:  # noqa: BLE001 - any failure becomes the attempt's outcome
            log.warning("changes not collected", error=type(error).__name__)
            if attempt.stopped_by is not None:
                return replace(outcome, collection=CollectionState.PENDING)
            return replace(outcome, failure=outcome.failure or find_failure(error))
        return outcome.with_changes(collected)

    async def _conclude(
        self, claim: Claim, outcome: AttemptOutcome, ran_seconds: float
    ) -> JobResult | Unfinished:
        """Commit the result, or park, requeue or release the job."""
        failure, job_id, token = outcome.failure, claim.spec.id, claim.token
        if isinstance(failure, LeaseLost) and not isinstance(failure, LeaseNotRenewed):
            return Unfinished(ANOTHER_HAS_IT, has_run=True)
        if isinstance(failure, (LeaseNotRenewed, ShuttingDown, NotUnderstood, LedgerUnavailable)):
            unread_by = self._registration().name if isinstance(failure, NotUnderstood) else ""
            starves = self._full_wait_seconds if isinstance(failure, LedgerFull) else 0
            with span("release"):
                is_released = await self._retry_in_outage(
                    lambda: self._ledger.release(
                        job_id, token, str(failure), unread_by=unread_by, starves_seconds=starves
                    )
                )
            if isinstance(failure, LeaseNotRenewed) and not is_released:
                return Unfinished(ANOTHER_HAS_IT, has_run=True)
            return Unfinished("given back to the queue", has_run=True)
        if failure is not None and failure.depends_on_host and not outcome.has_sandbox:
            if await self._refuse(claim, failure):
                return Unfinished("not possible on this host: queued again", has_run=True)
            return await self._end(claim, outcome, ran_seconds)
        if isinstance(failure, HostFault):
            if await self._give_back(claim, outcome, failure):
                return Unfinished("its host failed: queued again", has_run=True)
            failure = failure.cause or failure  # too often: it may be the job
            outcome = replace(outcome, failure=failure)
        if failure is None and outcome.model is not None:
            return await self._wait_for_model(claim, outcome, outcome.model, ran_seconds)
        if failure is None and outcome.waits:
            with span("park") as parked:
                parked.note(approvals=len(outcome.approvals))
                parked.note(children=len(outcome.tasks.children) if outcome.tasks else 0)
                await self._retry_in_outage(lambda: self._park(claim, outcome))
            awaited = "a decision" if outcome.approvals else "its tasks"
            return Unfinished(f"waits for {awaited}", has_run=True)
        if failure is not None and failure.retryable:
            reason = type(failure).__name__
            if await self._retry_in_outage(
                lambda: self._ledger.fail_attempt(job_id, token, reason)
            ):
                log.warning("attempt failed, job requeued", error=reason)
                return Unfinished("the attempt failed: queued again", has_run=True)
        return await self._end(claim, outcome, ran_seconds)

    async def _end(
        self, claim: Claim, outcome: AttemptOutcome, ran_seconds: float
    ) -> JobResult | Unfinished:
        with span("commit"):
            result = await self._commit(claim, outcome, ran_seconds)
        return result or Unfinished("its end could not be recorded", has_run=True)

    async def _give_back(self, claim: Claim, outcome: AttemptOutcome, fault: HostFault) -> bool:
        log.warning("host failed", error=str(fault))
        return await self._retry_in_outage(
            lambda: self._ledger.give_back(
                claim.spec.id, claim.token, str(fault), has_run=outcome.has_sandbox
            )
        )

    async def _refuse(self, claim: Claim, failure: JobFailure) -> bool:
        log.warning("sandbox not opened", error=str(failure))
        return await self._retry_in_outage(
            lambda: self._ledger.refuse(
                claim, self._registration(), str(failure), is_final=not failure.retryable
            )
        )

    async def _wait_for_model(
        self, claim: Claim, outcome: AttemptOutcome, wait: ModelWait, ran_seconds: float
    ) -> JobResult | Unfinished:
        """Park a job whose models are closed, or end it if it has waited for too long."""
        states: list[JobState | None] = []

        async def park() -> bool:
            pool = self._registration().pool
            states.append(await self._ledger.park_for_model(claim, wait, pool))
            return True

        with span("park"):
            await self._retry_in_outage(park)
        if states and states[-1] is JobState.FAILED:
            over = replace(
                outcome,
                failure=model_wait_over(wait.closed.sentence),
                collection=CollectionState.PENDING if outcome.has_sandbox else outcome.collection,
            )
            return await self._end(claim, over, ran_seconds)
        return Unfinished("waits for its model", has_run=True)

    async def _park(self, claim: Claim, outcome: AttemptOutcome) -> bool:
        tasks = outcome.tasks or AwaitedTasks()
        state = await self._ledger.park(
            claim.spec.id,
            claim.token,
            outcome.approvals,
            tasks.children,
            self._services.bounds,
            started=tasks.started,
            wake_at=tasks.until,
            wake_any=tasks.any_seconds,
            timeout_seconds=self._services.limits_of(claim.spec).timeout_seconds,
        )
        return state is not None

    async def _commit(
        self, claim: Claim, outcome: AttemptOutcome, ran_seconds: float
    ) -> JobResult | None:
        """Commit the job's result, and begin to remove what it no longer needs."""
        if not outcome.has_run or outcome.collection is CollectionState.PENDING:
            outcome = await self._with_earlier_work(claim.spec.id, outcome)
        result = make_result(claim, outcome, ran_seconds)
        data = {"error": result.error.model_dump()} if result.error else {}
        read = outcome.messages_read

        async def record() -> bool:
            async with self._commits:
                return await commit(
                    self._ledger, self._journal, claim, result, data, messages_read=read
                )

        if not await self._retry_in_outage(record):
            return None
        if result.collection is CollectionState.PENDING:
            self._collect_later()
            return result
        if outcome.leaves_files:
            discarding = asyncio.create_task(self._discard(claim.spec.id))
            self._discarding.add(discarding)
            discarding.add_done_callback(self._discarding.discard)
        return result

    async def _discard(self, job_id: str) -> None:
        try:
            await self._provider.discard(job_id)
        except SandboxFailure as failure:  # the reaper removes the files of an ended job
            log.warning("files not discarded", error=type(failure).__name__)

    async def settle(self) -> None:
        """Wait for the files of ended jobs to be discarded; what takes long is left to a reaper."""
        if self._discarding:
            await asyncio.wait(self._discarding, timeout=SETTLE_SECONDS)

    async def _with_earlier_work(self, job_id: str, outcome: AttemptOutcome) -> AttemptOutcome:
        """Return the outcome of an attempt without its changes with the last checkpoint's."""
        earlier: list[ResultSoFar] = []

        async def read() -> bool:
            earlier.append(await self._ledger.so_far(job_id))
            return True

        if not await self._retry_in_outage(read):
            return outcome
        so_far = earlier[0]
        if not outcome.has_run:
            outcome = replace(outcome, usage=so_far.usage, sandbox=so_far.sandbox)
        return outcome.with_changes(so_far)

    async def _retry_in_outage(self, ask: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Repeat a call of the ledger while Redis does not answer.

        False when this worker stops meanwhile, after two leases.
        """
        until = elapsed_clock() + 2 * self._lease_seconds
        while True:
            try:
                return await ask()
            except LedgerUnavailable:
                worker = self._registration()
                if elapsed_clock() > until and worker.draining and not worker.unfit:
                    return False
                await asyncio.sleep(COMMIT_RETRY_SECONDS)


def retry_pause_seconds(attempt: int) -> float:
    """Return how long to wait after an attempt that failed.

    Args:
        attempt: The number of the attempt, from 1.
    """
    return float(min(RETRY_PAUSE_SECONDS * 4 ** (attempt - 1), MAX_RETRY_PAUSE_SECONDS))


def _note_end(trace: OpenSpan, outcome: AttemptOutcome, result: JobResult | Unfinished) -> None:
    """Put what became of an attempt into its span."""
    usage = outcome.usage
    trace.set("gen_ai.usage.input_tokens", usage.input_tokens)
    trace.set("gen_ai.usage.output_tokens", usage.output_tokens)
    trace.note(model_calls=usage.model_calls, tool_calls=usage.tool_calls)
    if isinstance(result, JobResult):
        trace.note(state=str(result.state), files=result.files_count)
    else:
        trace.note(state="not final")
    if outcome.failure is not None:
        trace.fail(type(outcome.failure).__name__)


def _is_continued_elsewhere(stopped_by: JobFailure | None) -> bool:
    """Return whether another attempt continues the job."""
    return isinstance(stopped_by, (LeaseLost, ShuttingDown, NotUnderstood, HostFault))
