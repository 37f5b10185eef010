"""Answers the calls of a script: from the journal as far as that goes, and then anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fanout.orchestrator.approvals import DECISIONS, Decision, fingerprint
from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.approvals import Approval, approval_id
from fanout.orchestrator.jobs.spec import JobSpec, StartFiles
from fanout.orchestrator.scripts.calls import BadCall, ScriptCall
from fanout.orchestrator.scripts.program import AGENT_FAILED
from fanout.orchestrator.scripts.run import CallAnswers, SettledCall, Waits
from fanout.orchestrator.scripts.values import Handle, LandReport, Result
from fanout.orchestrator.workspace.blobs import BlobStore

from ...heartbeat import elapsed_clock
from ..delegation.children import AwaitedTasks
from ..delegation.collector import Collector
from ..history import History
from .earlier_answers import EarlierAnswers
from .file_calls import FileCalls
from .script_jobs import REFUSED, JobCall, ScriptJobs
from .script_journal import ScriptJournal, read_result

SOON_CHILDREN = 32
"""With no more children left, a script goes on as soon as one has ended."""
WAKE_SHARE = 10.0
"""With more it goes on after that many times as long as its last replay took: replays take a tenth
of the time of a worker at the most, and results that arrive until then are settled together."""
MIN_WAKE_SECONDS, MAX_WAKE_SECONDS = 0.25, 20.0
"""The shortest such wait, and the longest: only the replay of thousands of results takes so long
that it is reached."""


class ScriptCalls(CallAnswers):
    """The calls of a script during one attempt.

    Args:
        spec: The script's job.
        jobs: The jobs of its calls.
        answers: Those of earlier scripts that have answered equal calls.
        journal: Its steps.
        files: Its calls that work on files.
        collector: Lands what its calls have changed.
        blobs: Where large results are stored.
        history: What the job's journal has besides the script.
        snapshot: Stores the job's files as they are, for the calls of the next phase.
        checkpoint: Stores the job's files before something that has changed them is in the journal.
        kept: Results of the script that this one continues, by the keys of the calls.
        kept_landed: The jobs whose changes that one has landed.
    """

    def __init__(
        self,
        spec: JobSpec,
        jobs: ScriptJobs,
        answers: EarlierAnswers,
        journal: ScriptJournal,
        files: FileCalls,
        collector: Collector,
        blobs: BlobStore,
        history: History,
        *,
        snapshot: Callable[[], Awaitable[StartFiles]],
        checkpoint: Callable[[], Awaitable[None]],
        kept: Mapping[str, Mapping[str, Any]],
        kept_landed: frozenset[str],
    ) -> None:
        self._spec = spec
        self._jobs = jobs
        self._answers = answers
        self._journal = journal
        self._files = files
        self._collector = collector
        self._blobs = blobs
        self._history = history
        self._snapshot = snapshot
        self._checkpoint = checkpoint
        self._kept = kept
        self._kept_landed = kept_landed
        self.calls: dict[str, JobCall] = {}
        """The calls that become jobs, by key, in the order in which they were made."""
        self._by_job: dict[str, JobCall] = {}
        self._new: list[JobCall] = []
        """Those that are to be started."""
        self._earlier: list[JobCall] = []
        """Those that an earlier attempt has made, until it is known whether it has started them."""
        self._asks: dict[str, ScriptCall] = {}
        self._lands: dict[str, ScriptCall] = {}
        self._firsts: dict[str, ScriptCall] = {}
        self._own: dict[str, ScriptCall] = {}
        """Calls that this job does itself, and has not begun."""
        self._ready: list[JobCall] = []
        """Calls whose jobs have ended, last one first."""
        self._working: dict[str, asyncio.Task[SettledCall]] = {}
        """Those that it has begun."""
        self._phase, self._start = "", spec.start
        self._of_phase: list[JobCall] = []
        self.printed: list[str] = []
        """What the script has printed and logged, until it is written."""
        self._awaited_landing: list[str] = []
        self.replayed_at = 0.0
        """When the script was where the last attempt has ended, on `elapsed_clock`."""

    # The calls

    async def made(self, call: ScriptCall) -> None:
        """See `CallAnswers.made`."""
        self._jobs.check(call)
        if call.job_count:
            self._add_jobs(call)
            return
        self._journal.call(call, (), self._phase)
        if call.function == "ask":
            self._asks[call.key] = call
        elif call.function == "land":
            self._check_land(call)
            self._lands[call.key] = call
        elif call.function == "first":
            self._check_first(call)
            self._firsts[call.key] = call
        else:
            self._files.check(call)
            self._own[call.key] = call

    def _add_jobs(self, call: ScriptCall) -> JobCall:
        one = self._jobs.job_call(call, self._start, self._phase)
        if call.key in self._kept:
            one.is_kept, one.winner = True, str(self._kept[call.key]["job"])
        self.calls[call.key] = one
        self._by_job |= dict.fromkeys(one.ids, one)
        self._of_phase.append(one)
        known = self._journal.call(call, one.ids, self._phase)
        if known is None:
            self._answers.name(one, self._answers.digest(one))
            if one.digest:
                self._journal.note(call.key, given=one.digest)
            self._new.append(one)
        else:
            self._answers.name(one, str(known.get("given") or ""))
            if known.get("reuses"):
                one.reuses = one.winner = str(known["reuses"])
            self._earlier.append(one)
        return one

    def _check_first(self, call: ScriptCall) -> None:
        settled = {one.ids[0] for one in self.calls.values() if one.is_settled}
        if all(handle.id in settled for handle in call.arguments["handles"]):
            raise BadCall("first(): all these handles have been awaited: leave them out.")

    def _check_land(self, call: ScriptCall) -> None:
        known = {job_id for one in self.calls.values() for job_id in (*one.ids, one.winner)}
        for result in _results(call):
            if result.id and result.id not in known:
                raise BadCall("land() takes results of calls of this script.")

    async def at_once(self, call: ScriptCall) -> Any:
        """See `CallAnswers.at_once`."""
        if call.function == "start":
            self._jobs.check(call)
            one = self._add_jobs(call)
            return Handle(one.ids[0], call.label)
        if call.function == "log":
            self.printed += str(call.arguments["text"]).splitlines()
            return None
        return await self._begin_phase(call)

    async def _begin_phase(self, call: ScriptCall) -> Waits | None:
        """End the phase before: its calls have ended, and what they changed has landed."""
        start = self._journal.phase()
        if start is None:
            await self._write()
            if not await self._phase_has_ended() or await self.land_phase():
                return Waits()
            await self._checkpoint()
            start = await self._snapshot()
            await self._journal.begin_phase(str(call.arguments["name"]), start)
        self._phase, self._start, self._of_phase = str(call.arguments["name"]), start, []
        return None

    async def _phase_has_ended(self) -> bool:
        calls = [one for one in self._of_phase if one.awaited]
        await self._jobs.look(calls)
        for one in calls:
            await self._jobs.outcome(one)  # a judge may have to be asked
        return not any(one.awaited for one in self._of_phase if not one.winner)

    async def land_phase(self) -> bool:
        """Land the changes of the phase's calls, in their order; return whether some are reworked.

        Raises:
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        ids = []
        for one in self._of_phase:
            if one.call.arguments["files"] != "land" or one.refusal:
                continue
            winner = one.winner or (one.ids[0] if len(one.ids) == 1 else "")
            if winner and winner not in self._kept_landed:
                ids.append(winner)
        return await self._land(ids)

    async def _land(self, ids: Sequence[str]) -> bool:
        await self._journal.summarise()
        pending = await self._collector.land([*ids])
        self._awaited_landing = [
            self._collector.newest(one) for one in pending if self._collector.newest(one) != one
        ]
        return bool(self._awaited_landing)

    # Their results

    async def next(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        """See `CallAnswers.next`."""
        known = await self._journal.next_result(pending)
        if known is not None:
            settled, entry = known
            self._note_settled(settled, entry)
            return settled
        await self._write()
        live = await self._next_live(pending)
        if live is not None:
            await self._settle(live)
        return live

    async def _settle(self, settled: SettledCall) -> None:
        """Write the result of a call."""
        notes: dict[str, Any] = {}
        if isinstance(settled.value, Result):
            one = self._made_by(settled)
            notes = _notes(one, settled.value)
            self._note_settled(settled, notes)
            if one.was_ok and one.needs_jobs:
                await self._answers.remember(one)
        await self._journal.result(settled, **notes)

    def _made_by(self, settled: SettledCall) -> JobCall:
        """Return the call whose jobs have this result; for `first` that is a started one."""
        return self.calls.get(settled.call.key) or self._by_job[settled.value.id]

    def _note_settled(self, settled: SettledCall, entry: Mapping[str, Any]) -> None:
        """Note that a call that became jobs has its result.

        Args:
            settled: The result.
            entry: What the journal has of it.
        """
        result = settled.value
        if not isinstance(result, Result):
            return
        one = self._made_by(settled)
        one.is_settled, one.was_ok = True, result.ok
        one.winner = str(entry.get("job") or result.id)
        one.is_kept = bool(entry.get("kept"))
        one.reuses = one.winner if entry.get("reused") else ""
        self._by_job[one.winner] = one
        if entry.get("changes"):
            self._collector.adopt(one.winner, str(entry["changes"]))
        if result.state == REFUSED:
            one.refusal = result.error

    async def _write(self) -> None:
        """Write what the script has done since, and begin the calls that it has made."""
        self.replayed_at = self.replayed_at or elapsed_clock()
        await self._journal.log(self.printed)
        await self._answers.find(self._new)
        for one in self._new:
            if one.reuses:
                one.winner = one.reuses
                self._journal.note(one.call.key, reuses=one.reuses)
        await self._journal.flush()
        earlier, self._earlier = [one for one in self._earlier if one.awaited], []
        missing = await self._jobs.missing(earlier) if earlier else []
        new, self._new = [*missing, *self._new], []
        if new:
            await self._journal.summarise()
        await self._jobs.begin(new)

    async def _next_live(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        for key in [one for one in self._own if one in pending]:
            self._working[key] = asyncio.create_task(self._files.answer(self._own.pop(key)))
        while True:
            settled = await self._arrived(pending)
            working = [task for key, task in self._working.items() if key in pending]
            if settled is not None or not working:
                return settled
            await self._journal.summarise()
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)

    async def _arrived(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        """Return a result that has arrived; None if there is none."""
        for key in [one for one, task in self._working.items() if task.done() and one in pending]:
            settled = self._working.pop(key).result()
            if settled.call.function == "run":
                await self._checkpoint()
            return settled
        for key, call in self._asks.items():
            if key in pending and (answered := self._answered(call)) is not None:
                return answered
        for key in [one for one in self._lands if one in pending]:
            if (landed := await self._landed(pending[key])) is not None:
                return landed
        return await self._of_ready(pending) or await self._looked(pending)

    async def _looked(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        """Look which jobs have ended, and return a result of one.

        A wake-up with a thousand results looks once, and once more when all of them are settled.
        """
        await self._jobs.look([one for one in self.calls.values() if one.awaited])
        open_calls = [one for one in self.calls.values() if not one.is_settled]
        await self._jobs.load_earlier(open_calls)
        self._ready = [one for one in open_calls if one.refusal or one.ended or not one.needs_jobs]
        self._ready.reverse()
        return await self._of_ready(pending)

    async def _of_ready(self, pending: Mapping[str, ScriptCall]) -> SettledCall | None:
        while self._ready:
            one = self._ready.pop()
            call = pending.get(one.call.key) or self._first_of(one, pending)
            if call is not None and not one.is_settled:
                settled = await self._of_jobs(call, one)
                if settled is not None:
                    return settled
        return None

    def _first_of(self, one: JobCall, pending: Mapping[str, ScriptCall]) -> ScriptCall | None:
        """Return the pending call of `first` that waits for a started call, if one does."""
        for call in self._firsts.values():
            ids = (handle.id for handle in call.arguments["handles"])
            if call.key in pending and one.ids[0] in ids:
                return call
        return None

    async def _of_jobs(self, call: ScriptCall, one: JobCall) -> SettledCall | None:
        if one.is_kept:
            kept = await read_result(self._kept[one.call.key], call, self._blobs)
            if (
                one.winner in self._kept_landed
                or await self._jobs.keep(one)
                or not kept.value.files
            ):
                return replace(kept, value=replace(kept.value, id=one.ids[0]))
            found = await self._jobs.anew(one)
        else:
            found = await (self._jobs.reused(one) if one.reuses else self._jobs.outcome(one))
        if found is None:
            return None
        error = ""
        if one.call.is_checked and not found.ok:
            why = found.error or found.state
            error = f"{call.label}: {why}" if call.function != "first" else f"{found.label}: {why}"
        return SettledCall(call, found, error)

    # Landing, and questions to people

    async def _landed(self, call: ScriptCall) -> SettledCall | None:
        jobs = {one.id: self._by_job[one.id].winner for one in _results(call) if one.ok}
        if await self._land([one for one in jobs.values() if one not in self._kept_landed]):
            return None
        outcomes = {one: self._collector.landed(job) or {} for one, job in jobs.items()}
        landed = [one for one, found in outcomes.items() if found.get("outcome") in ("in", None)]
        conflicts = [
            str(found.get("reason") or f"{one} conflicts in {_paths(found)}")
            for one, found in outcomes.items()
            if found.get("outcome") == "out" or found.get("conflicts")
        ]
        del self._lands[call.key]
        await self._checkpoint()
        return SettledCall(call, LandReport(not conflicts, landed, conflicts))

    def _answered(self, call: ScriptCall) -> SettledCall | None:
        answer = self._history.answers.get(approval_id(self._spec.id, call.key))
        if answer is None:
            return None
        options = [*(call.arguments["options"] or ())]
        if answer.decision == "respond":
            return SettledCall(call, str(answer.response))
        if len(options) == 2:  # noqa: PLR2004 - yes or no
            return SettledCall(call, options[answer.decision != "approve"])
        return SettledCall(call, None, f"the question was rejected: {answer.message}", AGENT_FAILED)

    def approvals(self, agent: str) -> tuple[Approval, ...]:
        """Return the questions for which the script waits, as those of an agent of that name."""
        return tuple(
            _approval(self._spec.id, call, agent)
            for call in self._asks.values()
            if self._answered(call) is None
        )

    # The end

    def awaited(self, replay_seconds: float) -> AwaitedTasks:
        """Return the jobs for which the script waits.

        Args:
            replay_seconds: How long it took until the script was where the last attempt has ended.
        """
        ids = [job_id for one in self.calls.values() for job_id in one.awaited]
        delay = 0.0
        if len(ids) > SOON_CHILDREN:
            delay = max(MIN_WAKE_SECONDS, min(replay_seconds * WAKE_SHARE, MAX_WAKE_SECONDS))
        started = tuple(dict.fromkeys([*ids, *self._awaited_landing]))
        return AwaitedTasks(started=started, any_seconds=delay)

    async def flush(self) -> None:
        """Write what is still to be written, and begin what was called last.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        await self._write()

    async def look(self) -> None:
        """Learn which jobs have ended, before the others are cancelled."""
        await self._jobs.look([one for one in self.calls.values() if one.awaited])

    async def close(self) -> None:
        """End the calls that this job does itself."""
        for task in self._working.values():
            await cancel_and_wait(task)
        self._working.clear()

    async def cancel_rest(self) -> int:
        """Cancel what nobody waits for any more, and return how many calls that were."""
        count = 0
        for one in self.calls.values():
            if one.awaited:
                count += bool(await self._jobs.cancel(one.awaited))
        return count


def _notes(one: JobCall, result: Result) -> dict[str, Any]:
    """Return what the entry of a result has besides: whose it is, and whether it is an old one."""
    if one.needs_jobs:
        return {"job": result.id}
    kind = "kept" if one.is_kept else "reused"
    return {"job": one.winner, kind: True, **({"changes": one.changes} if one.changes else {})}


def _results(call: ScriptCall) -> list[Result]:
    given = call.arguments["results"]
    return [given] if isinstance(given, Result) else [*given]


def _paths(landed: Mapping[str, Any]) -> str:
    listed = landed.get("conflicts") or ()
    return ", ".join(str(one["path"]) for one in listed if isinstance(one, Mapping)) or "a file"


def _approval(job_id: str, call: ScriptCall, agent: str) -> Approval:
    options = [*(call.arguments["options"] or ())]
    arguments: dict[str, Any] = {"question": call.arguments["question"], "options": options}
    offered: tuple[Decision, ...] = ("reject", "respond")
    if len(options) == 2:  # noqa: PLR2004 - yes or no
        offered = ("approve", "reject", "respond")
    return Approval(
        id=approval_id(job_id, call.key),
        job_id=job_id,
        agent=agent,
        call_id=call.key,
        tool="ask",
        arguments=arguments,
        decisions=tuple(one for one in DECISIONS if one in offered),
        sha256=fingerprint("ask", arguments),
    )
