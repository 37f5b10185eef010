"""The `task` tool against a real Redis and a real worker."""

from __future__ import annotations

import asyncio
import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from google.genai import types

from fanout.orchestrator.adk.task_toolset import ClientTasks, session_root_id
from fanout.orchestrator.jobs.failures import UnknownJob
from fanout.orchestrator.jobs.spec import new_job_id
from tests.integration.coordinator.driving import (
    Coordination,
    Run,
    event_text,
    journal,
    task,
)
from tests.integration.scripts import call, calls, says
from tests.services import WAITS, Installation

pytestmark = pytest.mark.redis


async def test_several_calls_in_one_reply_run_at_once(
    coordination: Coordination, shared_place: Installation
) -> None:
    tasks = [task(f"run: {WAITS}; echo {n} > made-{n}.txt") for n in range(4)]
    run, _ = await asyncio.gather(coordination.run(calls(*tasks)), shared_place.let_end(4))

    assert [result["status"] for result in run.results] == ["success"] * 4
    assert sorted(path.name for path in coordination.workspace.glob("made-*")) == [
        f"made-{n}.txt" for n in range(4)
    ]
    assert run.text == "all done"


async def test_a_result_has_exactly_the_fields_that_are_promised(
    coordination: Coordination,
) -> None:
    run = await coordination.run(calls(task("run: echo new > new.txt; echo more >> kept.txt")))

    (result,) = run.results
    assert sorted(result.pop("usage")) == [
        "cached_tokens",
        "input_tokens",
        "model_calls",
        "output_tokens",
        "tool_calls",
    ]
    assert result.pop("execution_time") > 0
    (record,) = await coordination.client.tree(run.root_id)
    assert result == {
        "status": "success",
        "success": True,
        "task_id": record.id,
        "agent": "general-purpose",
        "summary": "ran echo new > new.txt; echo more >> kept.txt",
        "files_modified": [
            {"path": "kept.txt", "change": "modified"},
            {"path": "new.txt", "change": "added"},
        ],
        "merge": {"applied": 2, "conflicts": []},
    }


async def test_progress_comes_before_the_result_and_names_its_job(
    coordination: Coordination,
) -> None:
    run = await coordination.run(calls(task("run: true")))

    (record,) = await coordination.client.tree(run.root_id)
    lines = [event_text(event).strip() for event in run.progress]
    assert lines == [
        f"general-purpose {word}" for word in ("queued", "running", "execute", "succeeded")
    ]
    assert {(event.custom_metadata or {})["job_id"] for event in run.progress} == {record.id}
    last_progress = max(number for number, event in enumerate(run.events) if event.partial)
    answered = next(
        number for number, event in enumerate(run.events) if event.get_function_responses()
    )
    assert last_progress < answered


async def test_a_result_stands_in_the_session_once(coordination: Coordination) -> None:
    run = await coordination.run(
        calls(
            task("run: true # canary-one"),
            call("tasks", tasks=[{"description": "run: true # canary-two"}]),
        )
    )

    session = await coordination.session(run)
    for canary in ("canary-one", "canary-two"):
        holding = [
            event for event in session.events if f"ran true # {canary}" in event.model_dump_json()
        ]
        assert len(holding) == 1
        assert (holding[0].content or types.Content()).model_dump_json().count(
            f"ran true # {canary}"
        ) == 1
        # The file from which it can be read when the conversation has become too long.
        assert json.dumps(holding[0].actions.state_delta).count(f"ran true # {canary}") == 1
    assert {event_text(event).split()[-1] for event in run.progress} >= {"queued", "succeeded"}


def lines(*changed: str) -> str:
    """A text of nine numbered lines, some of them changed.

    `4=four` makes the fourth line `four`.
    """
    text = [f"line {number}" for number in range(1, 10)]
    for change in changed:
        number, words = change.split("=")
        text[int(number) - 1] = words
    return "\n".join(text) + "\n"


async def test_edits_of_different_lines_of_one_file_all_arrive(coordination: Coordination) -> None:
    shared = coordination.workspace / "shared.txt"
    shared.write_text(lines())
    edits = {2: "two", 5: "five", 8: "eight"}
    run = await coordination.run(
        calls(
            *(
                task(f"run: sleep 0.5; sed -i '{n}s/.*/{word}/' shared.txt")
                for n, word in edits.items()
            )
        )
    )

    assert [result["merge"] for result in run.results] == [{"applied": 1, "conflicts": []}] * 3
    assert shared.read_text() == lines("2=two", "5=five", "8=eight")


async def test_edits_of_the_same_line_are_a_conflict_and_the_first_stays(
    coordination: Coordination,
) -> None:
    shared = coordination.workspace / "shared.txt"
    shared.write_text(lines())
    run = await coordination.run(
        calls(
            task("run: sleep 0.5; sed -i '5s/.*/first/' shared.txt"),
            task("run: sleep 1.5; sed -i '5s/.*/second/' shared.txt; echo other > other.txt"),
        )
    )

    first, second = (result["merge"] for result in run.results)
    assert first == {"applied": 1, "conflicts": []}
    assert second["applied"] == 1
    assert [conflict["path"] for conflict in second["conflicts"]] == ["shared.txt"]
    assert second["conflicts"][0]["reason"]
    assert shared.read_text() == lines("5=first")


async def test_a_sub_agent_that_fails_leaves_nothing_in_the_workspace(
    coordination: Coordination,
) -> None:
    run = await coordination.run(
        calls(
            task("fail after: echo half > half.txt; echo spoiled > kept.txt"),
            task("run: echo ok > ok.txt"),
        )
    )

    failed, other = run.results
    assert failed["status"] == "error"
    assert failed["error"].startswith("failed: ")
    assert {file["path"] for file in failed["files_modified"]} == {"half.txt", "kept.txt"}
    assert failed["merge"] == {"applied": 0, "conflicts": []}
    assert other["status"] == "success"
    assert sorted(path.name for path in coordination.workspace.iterdir()) == ["kept.txt", "ok.txt"]
    assert (coordination.workspace / "kept.txt").read_text() == "kept\n"


async def test_a_task_over_its_time_comes_back_as_an_error(coordination: Coordination) -> None:
    run = await coordination.run(calls(task("run: sleep 600", timeout_seconds=1)))

    (result,) = run.results
    assert result["status"] == "error"
    assert result["error"].startswith("timed_out: ")
    assert result["execution_time"] < 100


async def test_the_sub_agent_is_told_its_description_and_context_only(
    coordination: Coordination,
) -> None:
    run = await coordination.run(calls(task("plan and run: true", context="canary-context")))

    (record,) = await coordination.client.tree(run.root_id)
    told = [
        event.data["text"]
        for event in await journal(coordination.client, record.id)
        if event.data.get("author") == "user" and "text" in event.data
    ]
    assert told == ["plan and run: true\n\n<context>\ncanary-context\n</context>"]


async def test_a_sub_agents_plan_and_messages_stay_with_it(coordination: Coordination) -> None:
    run = await coordination.run(calls(task("plan and run: true")))

    (result,) = run.results
    assert result["summary"] == "planned and ran"
    session = await coordination.session(run)
    seen = "".join(event.model_dump_json() for event in [*run.events, *session.events]) + str(
        session.state
    )
    assert not [
        word for word in ("canary-todo", "canary-message", "canary-thought") if word in seen
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"description": "run: true", "subagent_type": "nobody"},
            "there are: general-purpose, refactorer",
        ),
        ({"description": "  "}, "description is empty"),
        ({}, "description"),
        ({"description": 5}, "description"),
        ({"description": ["run: true"]}, "description"),
        ({"description": "run: true", "context": None}, "context"),
        ({"description": "run: true", "subagent_type": None}, "subagent_type"),
        ({"description": "run: true", "subagent_type": ["x"]}, "subagent_type"),
        ({"description": "run: true", "timeout_seconds": "soon"}, "timeout_seconds"),
        ({"description": "run: true", "timeout_seconds": -1}, "timeout_seconds"),
        ({"description": "run: true", "timeout_seconds": 0}, "timeout_seconds"),
        ({"description": "run: true", "deadline": 5}, "deadline"),
        ({"description": "x" * 200_001}, "description"),
    ],
)
async def test_a_wrong_call_is_answered_in_words_and_makes_no_job(
    coordination: Coordination, arguments: dict[str, Any], words: str
) -> None:
    run = await coordination.run(calls(call("task", **arguments)))

    (result,) = run.results
    assert result["status"] == "error"
    assert words in result.get("error", "")
    assert run.text == "all done"
    with pytest.raises(UnknownJob):
        await coordination.client.tree(run.root_id)


async def test_a_workspace_that_vanished_is_an_answer(coordination: Coordination) -> None:
    shutil.rmtree(coordination.workspace)
    run = await coordination.run(
        calls(task("run: true"), call("start_task", description="run: true"))
    )

    assert [result["status"] for result in run.results] == ["error", "error"]
    assert all("name a folder that exists" in result["error"] for result in run.results)


async def test_a_workspace_that_vanishes_while_the_job_runs_is_an_answer(
    coordination: Coordination,
) -> None:
    run = Run(await coordination.new_session())
    runner = coordination.runner(calls(task("run: sleep 1; echo new > new.txt")), says("all done"))
    going = asyncio.create_task(coordination.drive(runner, run))
    await coordination.until_progress(run, "execute")
    shutil.rmtree(coordination.workspace)
    await going

    (result,) = run.results
    assert result["status"] == "error"
    assert result["task_id"]
    assert "name a folder that exists" in result["error"]


async def test_the_same_call_is_the_same_job(coordination: Coordination) -> None:
    agents = {"general-purpose": "Anything."}
    tasks = ClientTasks(coordination.client, coordination.workspace, agents, {})
    context: Any = SimpleNamespace(
        function_call_id="call-1", session=SimpleNamespace(id=new_job_id(), user_id="u")
    )
    item = {"description": "run: echo x >> kept.txt"}
    answers: list[Any] = [
        [step async for step in tasks.run([item], context, combined=False)][-1] for _ in range(2)
    ]

    assert answers[0]["task_id"] == answers[1]["task_id"]
    assert len(await coordination.client.tree(session_root_id(context))) == 1
    assert (coordination.workspace / "kept.txt").read_text() == "kept\nx\n"
