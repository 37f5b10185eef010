"""Started tasks, waits and continuations, with both halves of the jobs in one process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.delegation.continuation import Continuations
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, call, calls, conversation, says, shell
from tests.integration.worker.children import DELEGATING
from tests.waits import until_reaped

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

ALL = ["{{started}}"]
SCRIPT = (
    conversation(
        "^beside",
        calls(*(call("start_task", description=f"makes {name}") for name in "xy")),
        calls(call("list_tasks"), call("check_task", task_id="{{started_1}}")),
        calls(call("update_task", task_id="{{started_1}}", message="hurry")),
        calls(call("wait_tasks", task_ids=ALL)),
        calls(
            call("check_task", task_id="{{started_2}}"),
            call("cancel_task", task_id="{{started_1}}"),
        ),
        calls(
            call("wait_tasks", task_ids=["nobody"]), call("update_task", task_id="n", message="x")
        ),
        shell("cat x.txt y.txt > all.txt"),
        DONE,
        shell("echo more >> all.txt; cat all.txt"),
        says("## Summary\n{{last_result}}"),
    ),
    conversation(r"makes (\w)", shell("echo {{1}} > {{1}}.txt"), DONE),
    conversation(
        "^waits too short",
        calls(call("start_task", description="makes x")),
        calls(call("wait_tasks", task_ids=ALL, timeout_seconds=0.5)),
        calls(call("cancel_task", task_id="{{started_1}}")),
        DONE,
    ),
    conversation(
        "^by name",
        calls(call("general_purpose", description="makes x"), call("tasks", tasks=[{}])),
        DONE,
    ),
)
NAMED = """
name: named
description: Has a tool for each agent.
instruction: Do it.
subagents: [general-purpose]
delegation: agent_tools
"""


bench = bench_fixture(*SCRIPT, agents={**DELEGATING, "named": NAMED}, real_redis=True)


async def kinds(bench: Bench, job_id: str, kind: EventType) -> list[dict[str, Any]]:
    return [entry.data for entry in await bench.journal.read(job_id) if entry.type is kind]


async def test_tasks_go_on_beside_their_parent_and_are_merged_once(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("beside", agent="lead"))
    await bench.work_off()
    result = await bench.ended(job_id)

    assert result.success, result.error
    merged = await kinds(bench, job_id, EventType.CHILD_LANDED)
    assert [one["applied"] for one in merged] == [1, 1]
    assert {file.path for file in result.files_modified} == {"all.txt", "x.txt", "y.txt"}


async def test_a_job_continues_another_and_one_that_runs_is_refused(bench: Bench) -> None:
    definitions = await asyncio.to_thread(load_agent_definitions)
    continuations = Continuations(bench.ledger, bench.journal, bench.blobs, definitions)
    first = await bench.submit(make_spec("beside", agent="lead"))
    with pytest.raises(InvalidJob, match="has not ended"):
        await continuations.completed(JobSpec(description="more", continues=first))
    await bench.work_off()
    await bench.ended(first)

    spec = await continuations.completed(JobSpec(description="more", continues=first))
    assert (spec.agent, len(spec.layers), bool(spec.conversation)) == ("lead", 1, True)
    second = await bench.submit(spec)
    await bench.work_off()
    result = await bench.ended(second)

    assert result.success, result.error
    assert "x\\ny\\nmore" in result.summary
    assert result.usage.model_calls == 2
    (end,) = [entry for entry in await bench.journal.read(first) if entry.ends_job]
    fork = await continuations.completed(
        JobSpec(description="again", continues=first, at=end.id, agent="lead")
    )
    assert fork.start == spec.start
    with pytest.raises(InvalidJob, match="is not a point to continue from"):
        await continuations.completed(JobSpec(description="x", continues=first, at="1-1"))


async def test_a_wait_ends_with_its_time(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("waits too short", agent="lead"))
    await bench.admission.pump()
    await bench.runner.run(await bench.arrived.get(), lambda _line: None)
    assert (await bench.ledger.get(job_id)).state is JobState.WAITING

    assert job_id in (await until_reaped(bench.ledger)).states
    await bench.work_off()

    assert (await bench.ended(job_id)).success


async def test_an_agent_may_have_a_tool_for_each_other_agent(bench: Bench) -> None:
    job_id = await bench.submit(make_spec("by name", agent="named"))
    await bench.work_off()

    assert [file.path for file in (await bench.ended(job_id)).files_modified] == ["x.txt"]
