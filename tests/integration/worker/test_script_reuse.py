"""Scripts with `reuse`: calls that jobs of earlier scripts have answered start no jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinitions,
    load_agent_definitions,
)
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.test_script_faults import DiesAtOwnEntry, to_its_end
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, says, shell
from tests.integration.worker.test_scripts import (
    entries,
    files_of,
    run,
    scripted,
    until_ended,
)

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

SCRIPT = (
    conversation("^review", says("## Summary\nIt is fine.")),
    conversation("^write", shell("echo made > made.txt"), DONE),
    conversation("^append", shell("echo more >> made.txt"), DONE),
    conversation(
        "^tint", shell("echo red > colour.txt"), says("Red."), shell("echo blue > colour.txt"), DONE
    ),
    conversation("^break", {"raise": "broken"}),
)

bench = bench_fixture(*SCRIPT, real_redis=True, retry_pause_seconds=0.01)

TWO_PHASES = """
phase("write")
await agent("write it")
phase("append")
await agent("append to it")
await agent("append to it")
phase("end")
[await files(), await read("made.txt")]
"""


async def started(bench: Bench, result: JobResult) -> int:
    """How many jobs a script has started."""
    return len(await bench.tree_ids(result.job_id)) - 1


async def counts(bench: Bench, result: JobResult) -> dict[str, Any]:
    (ended,) = await entries(bench, result.job_id, EventType.SCRIPT_ENDED)
    return dict(ended.data)


async def test_what_is_reused_lands_and_shapes_later_phases_as_if_it_had_been_run(
    bench: Bench,
) -> None:
    first = await run(bench, TWO_PHASES)
    again = await run(bench, TWO_PHASES, reuse=True)

    assert (first.error, again.error) == (None, None)
    assert again.output == first.output == [["made.txt"], "made\nmore\n"]
    assert await started(bench, again) == 0
    assert (await counts(bench, again))["reused"] == 3
    assert [one.path for one in again.files_modified] == ["made.txt"]


REVIEW = '(await agent("review it", check=False)).state'
BROKEN = '(await agent("break it", check=False)).state'


async def test_equal_calls_of_one_script_have_a_result_each(bench: Bench) -> None:
    await run(bench, '[(await agent("review it")).id for _ in range(2)]')
    again = await run(bench, '[(await agent("review it")).id for _ in range(3)]', reuse=True)

    assert len(set(again.output)) == 3
    assert await started(bench, again) == 1


async def test_a_started_call_that_is_reused_is_known_by_its_handle(bench: Bench) -> None:
    source = """
handles = [start("review a"), start("review b")]
ended = [(await first(handles)).id]
ended.append((await first([one for one in handles if one.id not in ended])).id)
sorted(ended) == sorted(one.id for one in handles)
"""
    first = await run(bench, source)
    again = await run(bench, source, reuse=True)

    assert (first.output, again.output) == (True, True)
    assert await started(bench, again) == 0


async def test_a_failed_call_is_made_again(bench: Bench) -> None:
    first = await run(bench, BROKEN)
    again = await run(bench, BROKEN, reuse=True)

    assert first.output == again.output == "failed"
    assert await started(bench, again) == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"tenant": "others"}, id="tenant"),
        pytest.param({"owner": "eve"}, id="owner"),
        pytest.param({"model": "scripted:other"}, id="model"),
        pytest.param({"interrupt_on": {"execute": True}}, id="policy"),
    ],
)
async def test_what_another_owner_model_or_policy_has_answered_is_not_reused(
    bench: Bench, other: dict[str, Any]
) -> None:
    await run(bench, REVIEW)
    again = await run(bench, REVIEW, reuse=True, **other)

    assert await started(bench, again) == 1
    assert (await counts(bench, again))["reused"] == 0


async def test_a_job_of_another_owner_is_not_reused_whoever_names_it_in_the_index(
    bench: Bench,
) -> None:
    theirs = await run(bench, REVIEW, owner="eve")
    (secret,) = (await bench.tree_ids(theirs.job_id))[1:]
    mine = await run(bench, REVIEW)
    (own,) = (await bench.tree_ids(mine.job_id))[1:]
    index = bench.keys.answered_call("*")
    async for key in bench.redis.scan_iter(index):
        if await bench.redis.get(key) == own:
            await bench.redis.set(key, secret)

    again = await run(bench, REVIEW, reuse=True)

    assert await started(bench, again) == 1
    assert (await counts(bench, again))["reused"] == 0


async def test_a_changed_definition_is_asked_again(bench: Bench) -> None:
    await run(bench, REVIEW)
    agents = await asyncio.to_thread(load_agent_definitions)
    other = agents["general-purpose"].model_copy(update={"instruction": "Be brief."})
    bench.configure(definitions=AgentDefinitions({**agents, "general-purpose": other}))

    again = await run(bench, REVIEW, reuse=True)

    assert await started(bench, again) == 1


async def test_a_result_that_is_deleted_is_not_reused_and_nothing_of_it_stays(
    bench: Bench,
) -> None:
    await run(bench, REVIEW)
    await bench.ledger.forget(-1)
    assert [key async for key in bench.redis.scan_iter(bench.keys.answered_call("*"))] == []

    again = await run(bench, REVIEW, reuse=True)

    assert (again.output, await started(bench, again)) == ("succeeded", 1)


async def test_what_was_decided_to_be_reused_lands_although_its_job_is_deleted_meanwhile(
    bench: Bench,
) -> None:
    source = """
import asyncio
phase("write")
await asyncio.gather(agent("write it"), ask("Go on?"))
phase("end")
await files()
"""
    await run(bench, 'phase("write")\nawait agent("write it")')
    spec = await scripted(bench, source, reuse=True)
    await bench.work_off()
    assert await bench.ledger.forget(-1) == 2

    (approval,) = await bench.ledger.approvals()
    await bench.ledger.answer(approval.id, ApprovalAnswer(decision="respond", response="yes"))
    await bench.admission.pump()
    again = await until_ended(bench, spec.id)

    assert (again.error, again.output) == (None, ["made.txt"])
    assert await started(bench, again) == 0


async def test_what_is_reused_is_verified_and_sent_back_as_if_it_had_been_run(
    bench: Bench,
) -> None:
    source = 'await agent("tint it")\nphase("end")\nawait read("colour.txt")'
    first = await run(bench, source)
    again = await run(bench, source, reuse=True, verify_merges="! grep -q red colour.txt")

    assert (first.output, again.error, again.output) == ("red\n", None, "blue\n")
    (rework,) = (await bench.tree_ids(again.job_id))[1:]
    assert (await bench.ledger.get(rework)).parent_id == again.job_id
    assert (await counts(bench, again))["reused"] == 1


async def test_the_best_of_several_is_reused_with_its_changes(bench: Bench) -> None:
    source = """
best = await best_of(2, "write it", verify="test -e made.txt", files="keep")
report = await land(best)
[best.ok, report.ok, await files()]
"""
    first = await run(bench, source)
    again = await run(bench, source, reuse=True)

    assert first.output == again.output == [True, True, ["made.txt"]]
    assert await started(bench, again) == 0


async def test_kept_changes_of_a_continued_script_land_when_the_edited_one_says_so(
    bench: Bench,
) -> None:
    """A call whose changes are deleted by now is made anew."""
    source = 'kept = await agent("write it", files="keep")\n{then}\nawait files()'
    first = await run(bench, source.replace("{then}", "assert False"))
    files = await files_of(bench, first)
    edited = source.replace("{then}", "report = await land(kept)")
    again = await run(bench, edited, continues=first.job_id, **files)
    (job_id,) = (await bench.tree_ids(first.job_id))[1:]
    await bench.blobs.delete(str((await bench.ended(job_id)).changes))
    anew = await run(bench, edited, continues=first.job_id, **files)

    for result in (again, anew):
        assert (result.error, result.output) == (None, ["made.txt"])
    assert (await started(bench, again), await started(bench, anew)) == (0, 1)


async def test_a_worker_may_die_at_any_entry_and_starts_nothing_that_is_reused(
    bench: Bench,
) -> None:
    first = await run(bench, TWO_PHASES)
    mortal = DiesAtOwnEntry(bench)
    for dies_at in range(1, 60):
        job_id = await submitted(bench, TWO_PHASES)
        mortal.dies_at(job_id, dies_at)
        again = await to_its_end(bench, job_id)
        assert (again.error, again.output) == (None, first.output), dies_at
        assert await started(bench, again) == 0, dies_at
        if not mortal.died:
            break
    assert dies_at > 8


async def submitted(bench: Bench, source: str) -> str:
    blob = await bench.blobs.put(source.encode())
    return await bench.submit(make_spec("a script", script=blob, reuse=True, max_attempts=20))
