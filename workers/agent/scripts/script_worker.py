"""A job that runs a script instead of an agent: one attempt of it.

The script is run from its beginning in each attempt, with the results that the journal has, and
goes on from there. When all its branches wait, the attempt ends, and the job is parked: it holds no
slot and no process.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import IO, Any

from pydantic import JsonValue

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.failures import (
    JobFailure,
    ScriptAborted,
    ScriptDiverged,
    ScriptIncomplete,
    UnknownJob,
)
from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, Usage, Verification
from fanout.orchestrator.jobs.spec import JobSpec, Limits, StartFiles
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.outage import through_outage
from fanout.orchestrator.scripts.agents import script_agents
from fanout.orchestrator.scripts.program import InvalidScript, interpreter_version
from fanout.orchestrator.scripts.run import ScriptError, ScriptValue, run_script
from fanout.orchestrator.scripts.values import Spent
from fanout.orchestrator.shortening import count

from ...heartbeat import HeldLease, elapsed_clock
from ...sandbox import LazySandbox
from ..answer import AgentAnswer
from ..checkpoint import Checkpoints
from ..delegation.child_jobs import ChildJobs
from ..delegation.children import AwaitedTasks
from ..delegation.collector import Collector
from ..history import History
from ..services import JobServices
from ..session_journal import AttemptJournal
from ..shared_limits import JobUsage, SharedBudget
from ..verification import max_reworks, run_verification
from .earlier_answers import EarlierAnswers
from .file_calls import FileCalls
from .script_calls import ScriptCalls
from .script_jobs import ScriptJobs, fits_schema
from .script_journal import ScriptJournal, results_of_jobs

MAX_REASONS = 5
"""Why calls were not run: the first different reasons."""


class ScriptWorker:
    """One attempt of a job that runs a script; see `JobWorker`.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        definition: The definition under whose policies and limits the script runs.
        limits: The job's limits.
        ends_at: When the job's time is over, on `elapsed_clock`.
        sandbox: The sandbox of the job's own files.
        journal: The attempt's journal.
        lease: The attempt's lease.
        default_model: The model if neither a job nor its agent's definition names one.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        definition: AgentDefinition,
        limits: Limits,
        *,
        ends_at: float,
        sandbox: LazySandbox,
        journal: AttemptJournal,
        lease: HeldLease,
        default_model: str,
    ) -> None:
        self._services = services
        self._lease = lease
        self._default_model = default_model
        self._spec = spec
        self._definition = definition
        self._limits = limits
        self._sandbox = sandbox
        self._journal = journal
        self._ends_at = ends_at
        self._began_at = elapsed_clock()
        self._is_first = True
        self._shared = SharedBudget(services, spec)
        self._used = JobUsage(self._shared)
        self._children = ChildJobs(
            services,
            spec,
            definition,
            sandbox=sandbox,
            lease=lease,
            ends_at=ends_at,
            used=self._used.charged,
        )
        self._verify_merges = spec.verify_merges or definition.verify_merges
        self._collector = Collector(
            services,
            sandbox,
            journal,
            self._children,
            lease=lease,
            verify_merges=self._verify_merges,
            max_reworks=max_reworks(spec, definition),
            ends_at=ends_at,
        )
        self._checkpoints = Checkpoints(
            sandbox, services.blobs, services.ledger, lease, used=self._used.own, interval_seconds=0
        )
        self._steps = ScriptJournal(journal, services.blobs, self._store_summary)

    @property
    def usage(self) -> Usage:
        """What the script itself has used of models: nothing."""
        return self._used.own()

    async def run(self) -> AgentAnswer:
        """Run the script until it ends or waits.

        Raises:
            JobFailure: It has failed.
        """
        self._journal.activity.begin("script")
        history = await self._journal.history()
        self._checkpoints.load_checkpoints(history.checkpoints)
        self._steps.load(await self._journal.entries_so_far())
        await self._children.load_tree_model()
        await self._collector.resume(history)
        await self._shared.read(self._used.budget.usage)
        source = (await self._services.blobs.get(str(self._spec.script))).decode()
        calls = await self._calls(history)
        try:
            return await self._run(source, calls)
        except (ScriptError, InvalidScript) as error:
            self._check_replayed()
            await calls.flush()
            await self._end(calls)
            raise ScriptAborted(f"The script failed: {error}") from None
        finally:
            await uninterrupted(calls.close())

    async def _run(self, source: str, calls: ScriptCalls) -> AgentAnswer:
        self._is_first = self._steps.interpreter is None
        version = await asyncio.to_thread(interpreter_version)
        agents = script_agents(self._spec, self._services.definitions) if self._is_first else None
        await self._steps.start(version)
        ended = await run_script(
            source,
            self._spec.script_inputs,
            calls,
            seed=self._spec.id,
            agents=agents,
            printed=calls.printed,
        )
        await calls.flush()
        if not isinstance(ended, ScriptValue):
            return await self._waits(calls)
        self._check_replayed()
        await calls.look()
        if await calls.land_phase():
            return await self._waits(calls)
        return await self._answer(ended.value, calls)

    async def _store_summary(self, summary: str) -> None:
        claim, summaries = self._lease.claim, self._services.ledger.script_summaries
        await through_outage(partial(summaries.write, claim.spec.id, claim.token, summary))

    def _check_replayed(self) -> None:
        """Refuse an end before all that earlier attempts have done.

        Raises:
            ScriptDiverged: There is more.
        """
        if not self._steps.is_replayed:
            raise ScriptDiverged(
                "The script, run again from its beginning, ended before all that it had done "
                "before: nothing was started. Start it anew."
            )

    async def _calls(self, history: History) -> ScriptCalls:
        kept, landed = await self._earlier_script()
        jobs = ScriptJobs(
            self._services, self._spec, self._children, self._limits.max_calls or 1_000
        )
        files = FileCalls(
            self._sandbox,
            self._definition,
            self._spec.interrupt_on,
            ends_at=self._ends_at,
            spent=self._spent,
        )
        return ScriptCalls(
            self._spec,
            jobs,
            EarlierAnswers(self._services, self._spec, jobs, self._default_model),
            self._steps,
            files,
            self._collector,
            self._services.blobs,
            history,
            snapshot=self._snapshot,
            checkpoint=self._checkpoint,
            kept=kept,
            kept_landed=landed,
        )

    async def _earlier_script(self) -> tuple[dict[str, Any], frozenset[str]]:
        """Return what the script that this one continues has done: results, and landed jobs."""
        if self._spec.continues is None:
            return {}, frozenset()
        try:
            entries = await self._services.journal.read(self._spec.continues)
        except UnknownJob:
            return {}, frozenset()
        landed = frozenset(
            str(entry.data["id"])
            for entry in entries
            if entry.type is EventType.CHILD_LANDED and entry.data.get("outcome") == "in"
        )
        return dict(results_of_jobs(entries)), landed

    async def _snapshot(self) -> StartFiles:
        """Return what the calls of the next phase start from: the job's files as they are."""
        if not self._sandbox.is_wanted and self._spec.changes is None:
            return self._spec.start
        return await self._children.snapshots.now()

    async def _checkpoint(self) -> None:
        """Store the job's files, if there are any, before what changed them is in the journal."""
        if self._sandbox.is_open:
            with await self._sandbox.changes() as bundle:
                await self._checkpoints.store(bundle)

    async def _spent(self) -> Spent:
        (used,) = await self._services.ledger.usage([self._spec.id])
        await self._shared.read(self._used.budget.usage)
        spent = {name: float(value) for name, value in used.model_dump().items() if value}
        left = self._children.left()
        return Spent(spent, {name: float(max(value, 0)) for name, value in left.items()})

    async def _waits(self, calls: ScriptCalls) -> AgentAnswer:
        await self._steps.summarise()
        approvals = calls.approvals(self._definition.name)
        tasks = calls.awaited(self._replay_seconds(calls))
        if not approvals and not tasks.started:
            raise ScriptAborted("The script failed: it waits for nothing that could arrive.")
        return AgentAnswer(approvals=approvals, tasks=tasks)

    def _replay_seconds(self, calls: ScriptCalls) -> float:
        """Return how long the replay took; the first attempt has nothing to replay."""
        return 0.0 if self._is_first else calls.replayed_at - self._began_at

    async def _end(self, calls: ScriptCalls) -> dict[str, JsonValue]:
        """Cancel what nobody waits for, and write the counts of the end; return them."""
        await calls.look()
        cancelled = await calls.cancel_rest()
        made = list(calls.calls.values())
        never = [one for one in made if one.refusal]
        answered = sum(one.is_settled and one.was_ok and not one.refusal for one in made)
        settled = sum(one.is_settled and not one.refusal for one in made)
        reasons: list[JsonValue] = [*dict.fromkeys(one.refusal for one in never)]
        counts: dict[str, JsonValue] = {
            "asked": len(made),
            "answered": answered,
            "failed": settled - answered,
            "cancelled": cancelled,
            "never_run": len(never),
            "kept": sum(one.is_kept for one in made),
            "reused": sum(bool(one.reuses) for one in made),
            "reasons": reasons[:MAX_REASONS],
        }
        await self._steps.end(counts)
        await self._steps.summarise()
        return counts

    async def _answer(self, value: Any, calls: ScriptCalls) -> AgentAnswer:
        counts = await self._end(calls)
        answer = AgentAnswer(summary=_summary(value, counts), output=value)
        failure: JobFailure | None = None
        if counts["never_run"]:
            failure = ScriptIncomplete(_incomplete(counts))
        elif self._spec.output_schema and not fits_schema(self._spec.output_schema, value):
            failure = ScriptAborted("The script's value does not fit its job's output_schema.")
        if failure is not None:
            return replace(answer, failure=failure)
        return await self._verified(answer)

    async def _verified(self, answer: AgentAnswer) -> AgentAnswer:
        """Verify the job's files at the end, where the job has a command for it."""
        command = self._spec.verify or self._definition.verify
        verified: Verification | None = None
        if command is not None:
            verified = await run_verification(self._sandbox, command, ends_at=self._ends_at)
            line = f"verification: exit code {verified.exit_code}"
            await self._journal.note(EventType.VERIFY, verified.model_dump(), line)
            answer = replace(answer, verified=verified)
        if self._verify_merges is not None and self._verify_merges != command:
            merged = await self._collector.verify_at_end(self._verify_merges)
            answer = replace(answer, merged=merged)
        return answer

    async def keep(self, bundle: IO[bytes], tasks: AwaitedTasks | None) -> AwaitedTasks | None:
        """See `JobWorker.keep`: a script without a sandbox has no files of its own."""
        if self._sandbox.is_open:
            await self._checkpoints.store(bundle)
        return tasks

    async def abandon(self) -> None:
        """See `JobWorker.abandon`: its children are cancelled with it by the ledger."""


def _summary(value: Any, counts: dict[str, JsonValue]) -> str:
    """Return what people read of a script's end: its value if it is a text, and its counts."""
    done = f"{counts['answered']} of {count(int(str(counts['asked'])), 'call')} answered"
    others = [
        f"{counts[name]} {name}"
        for name in ("failed", "cancelled", "kept", "reused")
        if counts[name]
    ]
    counted = ", ".join([done, *others])
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    if not isinstance(value, str) and len(text) > MAX_SUMMARY_CHARACTERS // 2:
        text = ""
    return f"{text}\n\n({counted})".strip()[:MAX_SUMMARY_CHARACTERS]


def _incomplete(counts: dict[str, JsonValue]) -> str:
    reasons = counts["reasons"]
    listed = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    return (
        f"{counts['never_run']} of {counts['asked']} calls of the script were never run: {listed}. "
        f"{counts['answered']} were answered, {counts['failed']} failed."
    )
