"""An agent with `scripts: true` runs a script: a job of its own, of which it gets the value."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord, JobState
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import call, calls, conversation, says, shell
from tests.integration.worker.test_scripts import until_ended

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

HEAD = "name: {}\ndescription: Delegates.\ninstruction: Do it.\nsubagents: [general-purpose]\n{}"
AGENTS = {
    "planner": HEAD.format("planner", "scripts: true\n"),
    "guarded": HEAD.format("guarded", "scripts: true\ninterrupt_on: {task: true}\n"),
    "plain": HEAD.format("plain", ""),
}
FAN_OUT = """
import asyncio
phase("Write")
done = await asyncio.gather(*[agent(f"write {name}") for name in inputs["names"]])
phase("Look")
{"files": await files("*.txt"), "ok": [one.ok for one in done]}
"""
LARGE = '"x" * 30_000'
UNKNOWN = 'await agent("x", agent="reviewer")'


def runs(script: str, **inputs: Any) -> dict[str, Any]:
    return calls(call("run_script", script=script, **({"inputs": inputs} if inputs else {})))


SCRIPT = (
    conversation("^fan out", runs(FAN_OUT, names=["a", "b"]), says("## Summary\n{{last_result}}")),
    conversation("^large", runs(LARGE), says("## Summary\n{{last_result}}")),
    conversation("^fails", runs("1 / 0"), says("## Summary\n{{last_result}}")),
    conversation("^mistaken", runs(UNKNOWN), runs('"right"'), says("## Summary\n{{last_result}}")),
    conversation(
        "^write (\\w+)", shell("echo {{1}} > {{1}}.txt"), says("## Summary\nSECRET WORDS.")
    ),
)

bench = bench_fixture(*SCRIPT, agents=AGENTS, real_redis=True, retry_pause_seconds=0.01)


async def result_of(bench: Bench, task: str, agent: str = "planner") -> JobResult:
    spec = make_spec(task, agent=agent)
    await bench.submit(spec)
    return await until_ended(bench, spec.id)


async def tree(bench: Bench, job_id: str) -> list[JobRecord]:
    return await bench.ledger.get_many(await bench.tree_ids(job_id))


async def test_an_agent_gets_the_value_of_its_script_and_none_of_its_answers(bench: Bench):
    result = await result_of(bench, "fan out")

    assert result.error is None
    assert '"value": {"files": ["a.txt", "b.txt"], "ok": [true, true]}' in result.summary
    assert "SECRET" not in result.summary
    assert {file.path for file in result.files_modified} == {"a.txt", "b.txt"}
    records = {one.description: one for one in await tree(bench, result.job_id)}
    script = next(one for one in records.values() if one.script)
    assert (script.agent, script.parent_id, script.depth) == ("planner", result.job_id, 1)
    assert records["write a"].parent_id == script.id


async def test_a_large_value_is_cut_and_says_so(bench: Bench):
    result = await result_of(bench, "large")

    assert len(result.summary) < 25_000
    assert "The value has 30,002 characters" in result.summary


async def test_an_agent_reads_why_its_script_failed(bench: Bench):
    result = await result_of(bench, "fails")

    assert result.state is JobState.SUCCEEDED
    assert "line 1: ZeroDivisionError" in result.summary


async def test_faults_are_answered_at_once_and_no_job_is_made_of_them(bench: Bench):
    result = await result_of(bench, "mistaken")

    assert '"value": "right"' in result.summary
    assert len([one for one in await tree(bench, result.job_id) if one.script]) == 1


async def test_an_agent_whose_tasks_a_person_approves_runs_no_scripts(bench: Bench):
    result = await result_of(bench, "fails", "guarded")

    assert "A person approves each task of guarded" in result.summary


async def test_only_agents_with_scripts_have_the_tool(bench: Bench):
    result = await result_of(bench, "fails", "plain")

    assert "run_script" in result.summary
    assert not [one for one in await tree(bench, result.job_id) if one.script]
