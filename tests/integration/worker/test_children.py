"""Agents on real workers that delegate.

One that waits for children holds nothing, and gets their changes.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.integration.scripts import DONE, call, calls, conversation, says, shell, write_script
from tests.integration.worker.approvals import file_of, journal, parked
from tests.integration.worker.children import (
    DELEGATING,
    LEAD,
    answers,
    children_of,
    delegates,
    task,
    until,
)
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

QUICK = {"description": "quick"}
LINES = "".join(f"line {number}\n" for number in range(1, 8))

TALK = {"description": "says much", "subagent_type": "talker"}
SCRIPT = (
    conversation(
        "two edits",
        shell("printf x > old.txt"),
        delegates("edit the first", "edit the last"),
        shell("cat notes.txt >> seen.txt"),
        DONE,
    ),
    conversation(
        "edit the first",
        shell("sed -i '1s/.*/FIRST/' notes.txt; rm -f old.txt; ln -s notes.txt l"),
        DONE,
    ),
    conversation(
        "edit the last", shell("sed -i '7s/.*/LAST/' notes.txt; mkdir e; chmod +x notes.txt"), DONE
    ),
    conversation("edit the same", shell("sed -i '1s/.*/SAME/' notes.txt"), DONE),
    conversation("a conflict", calls(task("edit the first"), task("edit the same")), DONE),
    conversation("nests 0", delegates("nests 1", agent="lead"), DONE),
    conversation("nests 1", delegates("nests 2", agent="lead"), DONE),
    conversation("nests 2", delegates("nests 3", agent="lead"), DONE),
    conversation(
        "nests 3", delegates("nests 4", agent="lead"), shell("echo deep > deep.txt"), DONE
    ),
    conversation("with a failure", delegates("does fail", "edit the first"), DONE),
    conversation("does fail", {"raise": "broken"}),
    conversation("one slow", delegates("is slow"), DONE),
    conversation("is slow", shell("sleep 30"), DONE),
    conversation("is late", calls(task("is slow", timeout_seconds=0.5)), DONE),
    conversation(
        "many",
        calls(call("tasks", tasks=[QUICK, {"description": " "}, QUICK])),
        calls(call("tasks", tasks=[QUICK] * 4), call("tasks", tasks=[])),
        calls(call("task", description="quick", subagent_type="nobody")),
        delegates("quick", "quick"),
        DONE,
    ),
    conversation("quick", shell("true"), DONE),
    conversation("asked first", delegates("is to be edited"), DONE),
    conversation(
        "much to say",
        calls(call("tasks", tasks=[TALK] * 3)),
        calls(call("grep", pattern="the end", path="/task_results")),
        DONE,
    ),
    conversation("says much", says(json.dumps({"words": ["word " * 20] * 280 + ["the end"]}))),
)


MODELS = (
    conversation("models 0", calls(task("models 1", "owner"), task("models 2", "heir")), DONE),
    conversation("models 1", delegates("models 2"), DONE),
    conversation("models 2", DONE),
)
"""Of two models, neither of which is the installation's."""
OWNER = """
name: owner
description: Delegates, with a model of its own.
instruction: Do it.
model: scripted:{script}
subagents: [general-purpose]
"""
HEIR = """
name: heir
description: Has the model of those that delegate to it.
instruction: Do it.
model: inherit
"""


@pytest.fixture(scope="module")
def place(install_for_module: Installer) -> Installation:
    folder = install_for_module.folder
    own = write_script(folder, *MODELS).rename(folder / "own.script.yaml")
    agents = {
        **DELEGATING,
        "owner": OWNER.format(script=own),
        "heir": HEIR,
        "lead": LEAD.replace("[lead,", "[lead, talker, owner, heir,"),
    }
    return install_for_module(
        *SCRIPT, agents=agents, workers=1, concurrency=2, FANOUT_LIMITS__MAX_CHILDREN="3"
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text(LINES)
    return tmp_path


def lead(description: str, **fields: object) -> JobSpec:
    return make_spec(description, agent="lead", **fields)


async def test_two_children_edit_different_lines_of_one_file(
    client: JobClient, workspace: Path
) -> None:
    spec = lead("two edits", labels={"k": "v"}, priority=3, max_attempts=5)
    job_id = await client.submit(spec, workspace=workspace)
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    merged = LINES.replace("line 1", "FIRST").replace("line 7", "LAST")
    assert await file_of(client, job_id, "notes.txt") == merged
    assert await file_of(client, job_id, "seen.txt") == merged  # the agent saw it, too
    changed = {file.path for file in result.files_modified}
    assert changed == {"notes.txt", "seen.txt", "l", "e"}
    assert (result.attempts, result.usage.model_calls) == (1, 4)
    children = await children_of(client, job_id)
    passed_on = [(child.labels, child.priority, child.max_attempts) for child in children]
    assert passed_on == [({"k": "v"}, 3, 5)] * 2
    assert [(child.depth, child.root_id) for child in children] == [(1, job_id)] * 2
    first, last = await answers(client, job_id)
    assert (first["status"], first["task_id"]) == ("success", children[0].id)
    assert first["merge"] == {"applied": 3, "conflicts": []}
    assert last["merge"]["applied"] == 2
    assert first["summary"] == "Done as asked."
    submitted = await journal(client, job_id, EventType.CHILD_SUBMITTED)
    assert [event.data["id"] for event in submitted] == [child.id for child in children]
    assert len(await journal(client, job_id, EventType.CHILD_FINISHED)) == 2


async def test_the_model_of_a_run_is_that_of_all_agents_below_it_that_name_none(
    client: JobClient, tmp_path: Path
) -> None:
    chosen = f"scripted:{write_script(tmp_path, *MODELS)}"
    job_id = await client.submit(lead("models 0", model=chosen))
    result = await client.wait(job_id, 60)
    assert result.success, result.error
    owner, heir = await children_of(client, job_id)
    assert (owner.agent, owner.model) == ("owner", None)
    assert (heir.agent, heir.model) == ("heir", chosen)
    below = await client.tree(owner.id)
    assert [(one.agent, one.model) for one in below if one.parent_id == owner.id] == [
        ("general-purpose", chosen)
    ]
    again = await client.submit(JobSpec(continues=heir.id, description="models 2"))
    assert (await client.get(again)).model == chosen
    await client.wait(again, 60)


async def test_children_of_a_job_without_a_model_have_none(client: JobClient) -> None:
    job_id = await client.submit(lead("a conflict"))
    await client.wait(job_id, 60)
    assert {one.model for one in await client.tree(job_id)} == {None}


async def test_a_conflict_is_told_and_nothing_is_overwritten(
    client: JobClient, workspace: Path
) -> None:
    job_id = await client.submit(lead("a conflict"), workspace=workspace)
    assert (await client.wait(job_id, 60)).success

    first, same = await answers(client, job_id)
    assert first["merge"]["applied"]
    assert [conflict["path"] for conflict in same["merge"]["conflicts"]] == ["notes.txt"]
    assert (await file_of(client, job_id, "notes.txt")).startswith("FIRST\n")


async def test_agents_delegate_three_deep_and_no_deeper(client: JobClient) -> None:
    job_id = await client.submit(lead("nests 0"))
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    assert await file_of(client, job_id, "deep.txt") == "deep\n"
    tree = await client.tree(job_id)
    assert [record.depth for record in tree] == [0, 1, 2, 3]
    (refusal,) = await answers(client, tree[3].id)
    assert refusal["status"] == "error"
    assert "3 deep at the most" in refusal["error"]


async def test_a_child_that_fails_is_an_error_answer(client: JobClient, workspace: Path) -> None:
    job_id = await client.submit(lead("with a failure"), workspace=workspace)
    assert (await client.wait(job_id, 60)).success

    failed, done = await answers(client, job_id)
    assert (failed["status"], done["status"]) == ("error", "success")
    assert failed["error"].startswith("failed: ")


async def test_a_childs_time_runs_while_its_parents_stands_still(client: JobClient) -> None:
    job_id = await client.submit(lead("is late", limits=Limits(timeout_seconds=20)))
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    (answer,) = await answers(client, job_id)
    assert answer["error"].startswith("timed_out: ")


async def test_cancelling_a_waiting_job_cancels_its_children(client: JobClient) -> None:
    job_id = await client.submit(lead("one slow"))
    record = await until(client, job_id, JobState.WAITING)
    assert record.waiting_for == "children: 0 of 1"
    (child,) = await children_of(client, job_id)
    await until(client, child.id, JobState.RUNNING)

    await client.cancel(job_id)

    assert (await client.wait(job_id, 60)).state is JobState.CANCELLED
    assert (await client.wait(child.id, 60)).state is JobState.CANCELLED


async def test_a_cancelled_child_sends_its_parent_on(client: JobClient) -> None:
    job_id = await client.submit(lead("one slow"))
    await until(client, job_id, JobState.WAITING)
    (child,) = await children_of(client, job_id)

    await client.cancel(child.id)

    assert (await client.wait(job_id, 60)).success
    (answer,) = await answers(client, job_id)
    assert answer["error"].startswith("cancelled: ")


async def test_a_result_that_is_too_long_is_stored_in_a_file(place: Installation) -> None:
    async with place.client() as client:
        job_id = await client.submit(lead("much to say"))
        result = await client.wait(job_id, 60)
        shown = [
            dict(answer["result"])
            for event in await journal(client, job_id, EventType.TOOL_RESULT)
            for answer in event.data.get("results") or []
        ]

    assert result.success, place.workers[0].tail()
    waiting, stored, found = shown
    assert waiting["status"] == "waiting_for_tasks"
    assert stored["success"] is True
    assert stored["results"].startswith("[3]{task,agent,")
    assert "/task_results/" in str(found)


async def test_one_task_too_many_is_refused_in_words(client: JobClient) -> None:
    job_id = await client.submit(lead("many"))
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    three, four, none = await answers(client, job_id, "tasks")
    assert [one["status"] for one in three["results"]] == ["success", "error", "success"]
    assert "description is empty" in three["results"][1]["error"]
    assert "A job may have 3 children" in four["error"]
    assert (three["status"], three["success"]) == ("partial", False)
    assert three["summary"] == "Completed 2 of 3 tasks."
    assert none == {
        "status": "success",
        "success": True,
        "summary": "Completed 0 of 0 tasks.",
        "results": [],
    }
    nobody, third, fourth = await answers(client, job_id)
    assert "There is no subagent_type 'nobody'" in nobody["error"]
    assert (third["status"], fourth["status"]) == ("success", "error")
    assert "a job may have 3 children" in fourth["error"]
    assert len(await children_of(client, job_id)) == 3


async def test_a_childs_budgets_are_what_is_left_of_its_parents(client: JobClient) -> None:
    job_id = await client.submit(
        lead("one slow", limits=Limits(max_model_calls=5, max_tool_calls=4))
    )
    await until(client, job_id, JobState.WAITING)
    (child,) = await children_of(client, job_id)
    await client.cancel(job_id)

    assert (child.limits.max_model_calls, child.limits.max_tool_calls) == (4, 3)


async def test_a_task_runs_as_the_person_who_approved_it_edited_it(client: JobClient) -> None:
    job_id = await client.submit(make_spec("asked first", agent="guarded-lead"))
    (approval,) = await parked(client, job_id)
    assert await children_of(client, job_id) == []

    await client.answer(approval.id, "edit", arguments={"description": "quick"})

    assert (await client.wait(job_id, 60)).success
    (child,) = await children_of(client, job_id)
    assert child.description == "quick"
    assert child.interrupt_on == {"task": ("approve", "edit", "reject")}
    (answer,) = await answers(client, job_id)
    assert answer["status"] == "success"
    assert "changed the arguments" in answer["approval"]


@pytest.fixture
def crowded(install: Installer) -> Installation:
    return install(
        conversation("top", delegates("middle", agent="lead"), DONE),
        conversation("middle", delegates("bottom"), DONE),
        conversation("bottom", DONE),
        agents=DELEGATING,
        workers=1,
        concurrency=2,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_fifty_jobs_in_three_levels_do_not_lock_each_other_out(crowded: Installation) -> None:
    async with crowded.client() as client:
        await crowded.ready(client)
        ids = await client.submit_many([(lead("top"), None) for _ in range(17)])
        results = await asyncio.gather(*(client.wait(job_id, 100) for job_id in ids))

        assert all(result.success for result in results)
        assert len(await client.tree(ids[0])) == 3
