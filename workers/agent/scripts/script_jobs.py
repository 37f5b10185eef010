"""The jobs that the calls of a script become: their specifications, their start, their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fanout.orchestrator.deep_agent import OutputMismatch, OutputSchema
from fanout.orchestrator.delegation.calls import job_id_of_call
from fanout.orchestrator.delegation.submission_check import check_script_command
from fanout.orchestrator.jobs.failures import (
    BlobMissing,
    ChoiceRefused,
    InvalidJob,
    LimitReached,
    UnknownJob,
)
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import CALL_LABEL, PHASE_LABEL, JobSpec, StartFiles
from fanout.orchestrator.jobs.state import TERMINAL_STATES
from fanout.orchestrator.output_schema import InvalidOutputSchema, check_schemas
from fanout.orchestrator.scripts.calls import BEST_OF, BadCall, ScriptCall
from fanout.orchestrator.scripts.values import Result

from ..delegation.child_jobs import ChildJobs
from ..services import JobServices

STARTS_AT_ONCE = 16
"""The connections to Redis that one script may use at once."""
REFUSED = "refused"
"""The state of a call whose jobs were never started."""
JUDGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"best": {"type": "integer", "minimum": 1}, "why": {"type": "string"}},
    "required": ["best"],
    "additionalProperties": False,
}
JUDGED_CHARACTERS = 4_000
"""What a judge reads of each candidate."""


@dataclass
class JobCall:
    """A call that becomes jobs."""

    call: ScriptCall
    ids: tuple[str, ...]
    """The jobs, in order."""
    start: StartFiles
    """The files from which they start: those at the beginning of the call's phase."""
    phase: str
    judge: str = ""
    """The job that chooses the best, once it was asked for."""
    refusal: str = ""
    """Why its jobs were not started."""
    winner: str = ""
    """The job whose result is the call's, once it has one."""
    is_settled: bool = False
    """Whether the call has its result."""
    is_kept: bool = False
    """Whether its result is one of the script that this one continues."""
    reuses: str = ""
    """The job of an earlier script whose result it has."""
    digest: str = ""
    """The digest of what its job is given (`EarlierAnswers`)."""
    name: str = ""
    """The same, with how many equal calls came before it."""
    changes: str | None = None
    """The bundle of what the job has changed whose earlier result it has."""
    was_ok: bool = False
    ended: set[str] = field(default_factory=set)
    """Those of its jobs that are known to have ended."""

    @property
    def needs_jobs(self) -> bool:
        """Whether it has no earlier result."""
        return not (self.is_kept or self.reuses)

    @property
    def awaited(self) -> list[str]:
        """The jobs that have not ended as far as is known."""
        if self.is_settled or self.refusal or not self.needs_jobs:
            return []
        return [one for one in (*self.ids, *filter(None, [self.judge])) if one not in self.ended]


class ScriptJobs:
    """The jobs of one script, during one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The script's job.
        jobs: Makes and submits its children.
        max_calls: The most jobs that the script may ask for.
    """

    def __init__(
        self, services: JobServices, spec: JobSpec, jobs: ChildJobs, max_calls: int
    ) -> None:
        self._services = services
        self._spec = spec
        self._jobs = jobs
        self._max_calls = max_calls
        self._asked = 0
        self._connections = asyncio.Semaphore(STARTS_AT_ONCE)
        self._results: dict[str, JobResult] = {}
        """Those of jobs that are known to have ended."""
        most_of_tree = max(services.bounds.max_tree_children, 2 * max_calls)
        self._bounds = services.bounds.model_copy(
            update={"max_children": 2 * max_calls, "max_tree_children": most_of_tree}
        )
        """What binds the calls of a conversation does not bind a script, which has `max_calls`;
        judges and reworks are further children."""

    def check(self, call: ScriptCall) -> None:
        """Refuse a command that the caller of the script may not choose.

        Raises:
            BadCall: The text says what may be chosen.
        """
        arguments, definitions = call.arguments, self._services.definitions
        agent = str(arguments.get("agent", self._spec.agent))
        if agent not in definitions:
            return  # the call is refused
        try:
            for name, argument in (("verify", "verify"), ("run", "command")):
                command = arguments.get(argument)
                check_script_command(self._spec, definitions[agent], name, command)
        except ChoiceRefused as error:
            raise BadCall(f"{call.function}(): {error}") from None

    def job_call(self, call: ScriptCall, start: StartFiles, phase: str) -> JobCall:
        """Return the jobs that a call becomes; the same ones in each attempt."""
        self._asked += call.job_count
        ids = tuple(self._id(call, str(number)) for number in range(call.job_count))
        made = JobCall(call, ids, start, phase)
        if self._asked > self._max_calls:
            made.refusal = (
                f"the script asks for more than {self._max_calls:,} jobs (limits.max_calls)"
            )
        return made

    def _id(self, call: ScriptCall, which: str) -> str:
        return job_id_of_call(self._spec.id, f"script/{call.key}/{which}")

    async def begin(self, calls: Sequence[JobCall]) -> None:
        """Start the jobs of these calls; a call whose jobs cannot start gets its `refusal`.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        ready = [one for one in calls if one.needs_jobs and not (one.refusal or one.is_settled)]
        begun = await asyncio.gather(*map(self._begin, ready), return_exceptions=True)
        for failure in begun:
            if failure is not None:
                raise failure

    async def _begin(self, one: JobCall) -> None:
        async with self._connections:
            try:
                self._check_room()
                for number, job_id in enumerate(one.ids):
                    await self._start(one, job_id, number, _item(one.call))
            except (LimitReached, InvalidJob) as failure:
                one.refusal = str(failure)

    def _check_room(self) -> None:
        """Refuse jobs that have no budget left, or would be too deep.

        Raises:
            LimitReached: The text says what is used up.
        """
        self._jobs.check_room(0)

    def child(self, one: JobCall) -> JobSpec:
        """Return the first job of a call.

        Raises:
            InvalidJob: It cannot start.
        """
        return self._child(one, one.ids[0], 0, _item(one.call))

    def _child(
        self, one: JobCall, job_id: str, number: int, item: Mapping[str, Any], **fields: Any
    ) -> JobSpec:
        child = self._jobs.child(one.call.key, number, item)
        if isinstance(child, Exception):
            raise child if isinstance(child, InvalidJob) else InvalidJob(str(child))
        arguments = one.call.arguments
        fields.setdefault("output_schema", arguments["output_schema"])
        labels = {PHASE_LABEL: one.phase, CALL_LABEL: str(arguments["label"])}
        given = {name: value for name, value in fields.items() if value is not None}
        if arguments["model"]:
            given["model"] = arguments["model"]
        child = child.model_copy(
            update={
                "id": job_id,
                "labels": {**child.labels, **{name: text for name, text in labels.items() if text}},
                **given,
                **one.start.update(),
            }
        )
        self._services.check(child)
        return child

    async def _start(
        self, one: JobCall, job_id: str, number: int, item: Mapping[str, Any], **fields: Any
    ) -> None:
        child = self._child(one, job_id, number, item, **fields)
        if child.output_schema is not None:
            try:
                await asyncio.to_thread(check_schemas, [child.output_schema])
            except InvalidOutputSchema as error:
                raise InvalidJob(str(error)) from None
        await self._jobs.submit(child, self._bounds)

    async def missing(self, calls: Sequence[JobCall]) -> list[JobCall]:
        """Return those of an earlier attempt's calls whose jobs it has not started.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        states = await self._services.ledger.states([one.ids[-1] for one in calls])
        return [one for one, state in zip(calls, states, strict=True) if state is None]

    async def look(self, calls: Sequence[JobCall]) -> None:
        """Learn which of the jobs of these calls have ended.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        ids = [job_id for one in calls for job_id in one.awaited]
        states = await self._services.ledger.states(ids)
        ended = {
            job_id
            for job_id, state in zip(ids, states, strict=True)
            if state is None or state in TERMINAL_STATES
        }
        await self._load([*ended])
        for one in calls:
            one.ended |= ended.intersection(one.awaited)

    async def load_earlier(self, calls: Sequence[JobCall]) -> None:
        """Read the results of the earlier jobs that these calls use, as far as they are stored.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        ids = [one.winner for one in calls if not one.needs_jobs]
        await self._load([job_id for job_id in ids if job_id not in self._results])

    async def _load(self, job_ids: Sequence[str]) -> None:
        results = await self._services.ledger.results(job_ids)
        self._results |= {one.job_id: one for one in results if one is not None}

    async def outcome(self, one: JobCall) -> Result | None:
        """Return the result of a call; None while it has to wait.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        if one.refusal:
            return Result(one.ids[0], False, REFUSED, error=one.refusal, label=one.call.label)
        if one.call.kind == BEST_OF:
            return await self._best(one)
        if one.ids[0] not in one.ended:
            return None
        one.winner = one.ids[0]
        return self._result(one, one.ids[0])

    def _result(self, one: JobCall, job_id: str) -> Result:
        """Return the result of a job that has ended, as the script sees it."""
        found = self._results.get(job_id)
        if found is None:
            return Result(job_id, False, "lost", error="its job is not stored any more")
        return _seen(found, one.call.label)

    async def reused(self, one: JobCall) -> Result | None:
        """Return the result of the earlier job that a call reuses.

        A call whose earlier job is gone by now is made anew, and has the result of its own.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        found = self._results.get(one.reuses)
        if found is not None and found.success and await self._keep(one, found):
            return replace(_seen(found, one.call.label), id=one.ids[0])  # as handles have it
        return await self.anew(one)

    async def anew(self, one: JobCall) -> Result | None:
        """Make a call whose earlier result cannot be used; as `outcome`.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        one.is_kept, one.reuses, one.winner = False, "", ""
        await self.begin([one])
        await self.look([one])
        return await self.outcome(one)

    async def keep(self, one: JobCall) -> bool:
        """Keep what the job of an earlier result has changed; return whether it is stored."""
        found = self._results.get(one.winner)
        return found is not None and await self._keep(one, found)

    async def _keep(self, one: JobCall, found: JobResult) -> bool:
        """Keep a job's changes as long as the script's own; return whether they are stored."""
        if found.changes:
            try:
                await self._services.blobs.keep(found.changes)
            except BlobMissing:
                return False
        one.changes = found.changes
        return True

    async def _best(self, one: JobCall) -> Result | None:
        """Return the best candidate: the first that succeeds, or the one that the judge chooses."""
        ended = [job_id for job_id in one.ids if job_id in one.ended]
        results = [self._result(one, job_id) for job_id in ended]
        passed = [found for found in results if found.ok]
        has_judge = bool(one.call.arguments["judge"])
        if passed and (not has_judge or (len(ended) == len(one.ids) and len(passed) == 1)):
            return await self._chosen(one, passed[0])
        if len(ended) < len(one.ids):
            return None
        if not passed:
            last = results[-1]
            error = f"none of {len(one.ids)} passed; the last: {last.error or last.state}"
            return Result(last.id, False, last.state, error=error, label=one.call.label)
        return await self._judged(one, passed)

    async def _chosen(self, one: JobCall, best: Result) -> Result:
        one.winner = best.id
        await self.cancel([job_id for job_id in one.ids if job_id not in one.ended])
        return best

    async def _judged(self, one: JobCall, passed: Sequence[Result]) -> Result | None:
        """Return what the judge has chosen; None while it has to wait.

        Of a judge that fails nothing is expected: then it is the first that passed.
        """
        if not one.judge:
            try:
                await self._start(
                    one,
                    self._id(one.call, "judge"),
                    len(one.ids),
                    _judge_item(one.call, passed),
                    output_schema=JUDGE_SCHEMA,
                )
            except (LimitReached, InvalidJob):
                return await self._chosen(one, passed[0])
            one.judge = self._id(one.call, "judge")
            await self.look([one])
        if one.judge not in one.ended:
            return None
        verdict = self._results.get(one.judge)
        number = 1
        if verdict is not None and verdict.success and isinstance(verdict.output, dict):
            number = int(str(verdict.output.get("best", 1)))
        return await self._chosen(one, passed[min(number, len(passed)) - 1])

    async def cancel(self, job_ids: Collection[str]) -> int:
        """Cancel jobs, and return how many had not ended.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        count = 0
        for job_id in job_ids:
            try:
                count += not (await self._services.ledger.cancel(job_id)).is_terminal
            except UnknownJob:
                continue
        return count


def _item(call: ScriptCall) -> dict[str, Any]:
    """Return the arguments of a call as those of a task."""
    arguments = call.arguments
    return {
        "description": arguments["task"],
        "subagent_type": arguments["agent"],
        "context": arguments["context"],
        "timeout_seconds": arguments["timeout_seconds"],
        "verify": arguments["verify"],
    }


def _judge_item(call: ScriptCall, passed: Sequence[Result]) -> dict[str, Any]:
    candidates = [
        f"## Candidate {number}\n\n{_judged_text(one)}" for number, one in enumerate(passed, 1)
    ]
    return {
        "description": (
            "Choose the best of these candidates for a task. What to decide by: "
            f"{call.arguments['judge']}\n\nThe task was:\n\n{call.arguments['task']}"
        ),
        "context": "\n\n".join(candidates),
        "subagent_type": call.arguments["agent"],
    }


def _judged_text(result: Result) -> str:
    output = "" if result.output is None else json.dumps(result.output)
    files = ", ".join(result.files[:50])
    parts = [result.summary, output, f"Changed files: {files}" if files else ""]
    return "\n\n".join(filter(None, parts))[:JUDGED_CHARACTERS]


def _seen(found: JobResult, label: str) -> Result:
    """Return a job's result as a script sees it."""
    usage = found.usage
    return Result(
        id=found.job_id,
        ok=found.success,
        state=str(found.state),
        summary=found.summary,
        output=found.output,
        error=found.error.message if found.error else "",
        files=[file.path for file in found.files_modified],
        verified=None if found.verified is None else found.verified.exit_code == 0,
        cost_usd=usage.cost_usd,
        tokens=usage.input_tokens + usage.output_tokens,
        seconds=found.execution_seconds,
        label=label,
    )


def fits_schema(schema: dict[str, Any], value: Any) -> bool:
    """Return whether a script's value fits its job's `output_schema`."""
    try:
        OutputSchema(schema).parse(json.dumps(value))
    except (OutputMismatch, ValueError):
        return False
    return True
