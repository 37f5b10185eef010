"""Jobs that run a script: its calls become jobs, its value is the job's answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.delegation.continuation import Continuations
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.scripts.progress import ScriptProgress, ScriptReader
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, says, shell

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

SCRIPT = (
    conversation("^Choose the best", says('{"best": 2}')),
    conversation("^review", says("## Summary\nIt is fine.")),
    conversation("^write (?P<name>\\w+)", shell("echo made > made.txt"), DONE),
    conversation("^append", shell("cat made.txt > seen.txt; echo more >> made.txt"), DONE),
    conversation("^break", {"raise": "broken"}),
)

bench = bench_fixture(*SCRIPT, real_redis=True, retry_pause_seconds=0.01)


async def scripted(bench: Bench, source: str, **fields: Any) -> JobSpec:
    """The job of a script, submitted."""
    blob = await bench.blobs.put(source.encode())
    spec = make_spec("a script", script=blob, **fields)
    await bench.submit(spec)
    return spec


async def run(bench: Bench, source: str, **fields: Any) -> JobResult:
    """The result of a script; all that it starts runs in turn."""
    spec = await scripted(bench, source, **fields)
    return await until_ended(bench, spec.id)


async def until_ended(bench: Bench, job_id: str) -> JobResult:
    for _ in range(200):
        await bench.work_off()
        await bench.ledger.reap()
        await bench.admission.pump()
        if bench.arrived.empty():
            break
    return await bench.ended(job_id)


async def entries(bench: Bench, job_id: str, kind: EventType) -> list[JournalEvent]:
    return [one for one in await bench.journal.read(job_id) if one.type is kind]


async def test_a_script_calls_agents_and_its_value_is_the_answer(bench: Bench) -> None:
    result = await run(
        bench,
        """
import asyncio

async def main():
    found = await asyncio.gather(*[agent(f"review {name}") for name in inputs["names"]])
    log(f"{len(found)} reviewed")
    return {"found": [one.summary for one in found], "ok": all(one.ok for one in found)}
""",
        script_inputs={"names": ["a", "b", "c"]},
    )

    assert result.error is None
    assert result.output == {"found": ["It is fine."] * 3, "ok": True}
    assert result.sandbox is None
    (ended,) = await entries(bench, result.job_id, EventType.SCRIPT_ENDED)
    assert (ended.data["asked"], ended.data["answered"], ended.data["never_run"]) == (3, 3, 0)
    (logged,) = await entries(bench, result.job_id, EventType.SCRIPT_LOG)
    assert logged.data["lines"] == ["3 reviewed"]


async def test_a_failed_call_is_raised_and_others_go_on(bench: Bench) -> None:
    result = await run(
        bench,
        """
import asyncio

async def tried(task):
    try:
        return (await agent(task)).summary
    except AgentFailed as error:
        return "failed"

async def main():
    unchecked = await agent("break it", check=False)
    return [await asyncio.gather(tried("break this"), tried("review that")), unchecked.ok]
""",
    )

    assert result.output == [["failed", "It is fine."], False]


async def test_changes_land_at_the_end_of_their_phase(bench: Bench) -> None:
    result = await run(
        bench,
        """
phase("first")
await agent("write it")
before = await files()
phase("second")
after = await files("*.txt")
await agent("append to it")
phase("third")
done = await run("wc -l < made.txt")
[before, after, await read("seen.txt"), done.output.strip(), done.ok]
""",
    )

    assert result.error is None
    assert result.output == [[], ["made.txt"], "made\n", "2", True]
    assert {one.path for one in result.files_modified} == {"made.txt", "seen.txt"}


async def test_kept_changes_land_when_the_script_says_so(bench: Bench) -> None:
    result = await run(
        bench,
        """
one = await agent("write it", files="keep")
two = await agent("write it", files="discard")
before = await files()
report = await land(one)
[before, report.ok, await files()]
""",
    )

    assert result.output == [[], True, ["made.txt"]]


async def test_a_person_answers_what_a_script_asks(bench: Bench) -> None:
    spec = await scripted(bench, 'await ask("Release it?", options=["yes", "no"])')
    await bench.work_off()
    (approval,) = await bench.ledger.approvals()
    assert (await bench.ledger.get(spec.id)).state is JobState.WAITING
    assert approval.arguments["question"] == "Release it?"

    await bench.ledger.answer(approval.id, ApprovalAnswer(decision="approve"))
    await bench.admission.pump()
    result = await until_ended(bench, spec.id)

    assert result.output == "yes"


async def test_a_script_goes_on_with_other_branches_while_it_asks(bench: Bench) -> None:
    spec = await scripted(
        bench,
        """
import asyncio

async def reviewed():
    await agent("review one")
    return (await agent("review two")).summary

await asyncio.gather(ask("Which one?"), reviewed())
""",
    )
    for _ in range(6):
        await bench.work_off()
        await bench.admission.pump()
    assert len(await bench.tree_ids(spec.id)) == 3
    (approval,) = await bench.ledger.approvals()

    await bench.ledger.answer(approval.id, ApprovalAnswer(decision="respond", response="that"))
    await bench.admission.pump()
    result = await until_ended(bench, spec.id)

    assert result.output == ["that", "It is fine."]


async def test_the_first_of_several_handles_is_awaited_and_the_rest_is_cancelled(
    bench: Bench,
) -> None:
    result = await run(
        bench,
        """
handles = [start("review a"), start("review b")]
done = await first(handles)
[done.ok, done.id in [one.id for one in handles]]
""",
    )

    assert result.output == [True, True]
    (ended,) = await entries(bench, result.job_id, EventType.SCRIPT_ENDED)
    assert ended.data["asked"] == 2


async def test_a_script_that_fails_says_where(bench: Bench) -> None:
    result = await run(bench, 'found = await agent("review a")\nprint("here")\ninputs["none"]\n')

    assert result.error is not None
    assert result.error.type == "ScriptAborted"
    assert "line 3" in result.error.message
    (logged,) = await entries(bench, result.job_id, EventType.SCRIPT_LOG)
    assert logged.data["lines"] == ["here"]


async def test_a_script_whose_calls_were_not_run_does_not_succeed(bench: Bench) -> None:
    result = await run(
        bench,
        """
ok = 0
for number in range(4):
    ok += (await agent(f"review {number}", check=False)).ok
ok
""",
        limits=Limits(max_calls=3),
    )

    assert result.output == 3
    assert result.error is not None
    assert result.error.type == "ScriptIncomplete"
    assert "1 of 4 calls" in result.error.message
    assert "limits.max_calls" in result.error.message


async def test_a_value_has_to_fit_the_schema(bench: Bench) -> None:
    schema = {"type": "object", "required": ["n"]}
    assert (await run(bench, '{"n": 1}', output_schema=schema)).success
    result = await run(bench, "[1]", output_schema=schema)
    assert result.error is not None
    assert "output_schema" in result.error.message


async def test_the_first_candidate_that_passes_is_the_best(bench: Bench) -> None:
    spec = await scripted(
        bench,
        """
best = await best_of(3, "write it", verify="test -e made.txt")
phase("end")
[best.ok, best.verified, await files()]
""",
    )
    await bench.run(bench.arrived.get_nowait())
    ids = (await bench.tree_ids(spec.id))[1:]
    await bench.run(ids[1])
    await bench.run(spec.id)

    result = await until_ended(bench, spec.id)

    assert result.output == [True, True, ["made.txt"]]
    states = sorted([str((await bench.ledger.get(one)).state) for one in ids])
    assert states == ["cancelled", "cancelled", "succeeded"]


async def test_a_script_is_refused_where_a_person_approves_tasks(bench: Bench) -> None:
    spec = await scripted(bench, "1", interrupt_on={"task": True})
    await bench.work_off()
    result = await bench.ended(spec.id)
    assert result.error is not None
    assert "approves each task" in result.error.message


async def test_an_edited_script_runs_only_what_was_edited(bench: Bench) -> None:
    source = """
phase("write")
await agent("write it")
phase("review")
found = await agent("review {what}")
[found.summary, await files()]
"""
    first = await run(bench, source.replace("{what}", "this"))
    assert first.output == ["It is fine.", ["made.txt"]]

    edited = await run(
        bench,
        source.replace("{what}", "that"),
        continues=first.job_id,
        **await files_of(bench, first),
    )

    assert edited.error is None
    assert edited.output == first.output
    (review,) = (await bench.tree_ids(edited.job_id))[1:]
    assert (await bench.ledger.get(review)).description == "review that"
    (ended,) = await entries(bench, edited.job_id, EventType.SCRIPT_ENDED)
    assert (ended.data["asked"], ended.data["kept"]) == (2, 1)


async def files_of(bench: Bench, result: JobResult) -> dict[str, Any]:
    """What a continuation of a job starts from, as a client completes it."""
    agents = await asyncio.to_thread(load_agent_definitions)
    continuations = Continuations(bench.ledger, bench.journal, bench.blobs, agents)
    spec = make_spec("continued", script="0" * 64, continues=result.job_id)
    completed = await continuations.completed(spec)
    assert completed.conversation is None
    return dict(completed.start.update())


async def test_a_judge_chooses_among_those_that_passed(bench: Bench) -> None:
    result = await run(bench, '(await best_of(2, "review it", judge="the longest")).ok')

    assert result.output is True
    descriptions = [
        (await bench.ledger.get(one)).description for one in await bench.tree_ids(result.job_id)
    ]
    assert sum("the longest" in one for one in descriptions) == 1


async def test_many_calls_are_settled_at_few_wake_ups(bench: Bench) -> None:
    """What has arrived is settled at each, and the others stay where they are."""
    source = """
import asyncio
async def main():
    return len(await asyncio.gather(*[agent(f"review {n}") for n in range(60)]))
"""
    result = await run(bench, source)
    assert result.output == 60
    states = await bench.states(result.job_id)
    assert states.count("running") < 20


async def test_a_result_of_a_hundred_calls_is_answered_before_its_siblings_have_ended(
    bench: Bench,
) -> None:
    """And not each one by itself: what arrives together is settled together."""
    source = """
import asyncio

async def reviewed(number):
    await agent(f"review {number}")
    if number == 0:
        await agent("review what the first one has found")

async def main():
    await asyncio.gather(*[reviewed(number) for number in range(100)])
"""
    spec = await scripted(bench, source)
    ran: list[str] = []
    while await bench.ledger.is_live(spec.id):
        ran.append(await bench.arrived.get())
        await bench.run(ran[-1])
        await bench.ledger.reap()
        await bench.admission.pump()

    siblings_before = ran.index(spec.id, 1) - 1
    assert siblings_before < 99
    assert (await bench.ended(spec.id)).success
    assert ran.count(spec.id) < 40


async def test_how_a_script_stands_is_stored_and_what_is_read_of_it_has_no_more_for_more_calls(
    bench: Bench,
) -> None:
    """Whoever watches reads the same from the summary as from the whole journal."""
    source = """
import asyncio
phase("review")
log("begins")
await asyncio.gather(ask("Go on?"), *[agent(f"review {n}", label=f"{n}") for n in range(60)])
phase("end")
"""
    spec = await scripted(bench, source)
    await bench.run(bench.arrived.get_nowait())
    parked = await summarised(bench, spec.id)
    (approval,) = await bench.ledger.approvals()
    await bench.ledger.answer(approval.id, ApprovalAnswer(decision="respond", response="yes"))
    await bench.admission.pump()
    await until_ended(bench, spec.id)
    ended = await summarised(bench, spec.id)

    assert (parked.phases[0].waiting, parked.waits_for_count) == (60, 61)
    assert ended.end is not None
    assert await bench.ledger.forget(-1) == 61
    assert await bench.ledger.script_summaries.read(spec.id) is None


async def summarised(bench: Bench, job_id: str) -> ScriptProgress:
    """How a script stands, as a small text that says the same as its whole journal."""
    summary = await bench.ledger.script_summaries.read(job_id)
    assert summary is not None
    assert len(summary) < 2_000
    reader = ScriptReader()
    for event in await bench.journal.read(job_id):
        reader.add(event)
    assert ScriptProgress.model_validate_json(summary) == reader.progress()
    return reader.progress()
