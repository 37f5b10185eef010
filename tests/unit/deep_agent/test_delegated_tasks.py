"""What comes back from delegated tasks: one record each, combined, in time, with their names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.runners import Runner

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent.approval import answers_message, pending_approvals
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.create import create_deep_agent
from fanout.orchestrator.deep_agent.delegation import child as one_child
from fanout.orchestrator.deep_agent.delegation import subagents
from fanout.orchestrator.deep_agent.delegation.roster import SubAgentLimits
from fanout.orchestrator.deep_agent.delegation.task_record import TaskRecord, combined_answer
from fanout.orchestrator.deep_agent.delegation.task_tools import DelegationStyle
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.running import Run, texts
from tests.unit.deep_agent.talking import recorder, seen
from tests.unit.deep_agent.test_subagents import asks, names, parent, worker

S1_FIELDS = {"task_id", "success", "summary", "files_modified", "execution_time"}
"""Of a result, beside `error` where there is one."""


def many(*items: dict[str, Any]) -> dict[str, Any]:
    return call("tasks", tasks=list(items))


def item(subagent_type: str = "worker", **more: Any) -> dict[str, Any]:
    return {"description": "do it", "subagent_type": subagent_type, **more}


def writes(name: str) -> dict[str, Any]:
    return calls(call("write_file", file_path=f"/workspace/{name}", content="x"))


async def test_a_record_says_what_became_of_a_task(tmp_path: Path) -> None:
    child = worker(writes("new"), says("long thoughts\n\n## Summary\nIt is new."))
    run = await Run(parent(asks()), subagents=[child], backend=DirectoryBackend(tmp_path)).to_end()
    (record,) = run.results
    assert record.keys() >= S1_FIELDS | {"status", "merge", "execution_time", "usage"}
    assert (record["status"], record["success"]) == ("success", True)
    assert record["summary"] == "It is new."
    assert record["files_modified"] == [{"path": "/workspace/new", "change": "added"}]
    assert record["merge"] == {"applied": 1, "conflicts": []}
    assert record["execution_time"] > 0
    assert (record["usage"]["model_calls"], record["usage"]["tool_calls"]) == (2, 1)
    assert "error" not in record


async def test_a_failure_has_the_same_fields() -> None:
    run = await Run(parent(asks()), subagents=[worker({"raise": "lost"})]).to_end()
    (record,) = run.results
    assert record.keys() >= S1_FIELDS | {"status", "error"}
    assert (record["status"], record["success"], record["summary"]) == ("error", False, "")
    assert record["files_modified"] == []


async def test_a_structured_answer_is_in_the_record_as_a_value() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    child = worker(says('{"n": 3}'), output_schema=schema)
    run = await asyncio.to_thread(Run, parent(asks()), subagents=[child])
    await run.to_end()
    assert run.results[0]["output"] == {"n": 3}


async def test_many_tasks_have_one_answer_that_counts_those_that_are_done() -> None:
    team = [worker(says("well"), name="good"), worker({"raise": "lost"}, name="bad")]
    run = await Run(
        parent(many(item("good"), item("bad"), {"task": "x"}, item("nobody"))), subagents=team
    ).to_end()
    (combined,) = run.results
    assert (combined["status"], combined["success"]) == ("partial", False)
    assert combined["summary"] == "Completed 1 of 4 tasks."
    assert [record["success"] for record in combined["results"]] == [True, False, False, False]
    errors = [record.get("error", "") for record in combined["results"]]
    assert "tasks[2]: description" in errors[2]
    assert "There is no subagent_type 'nobody'" in errors[3]
    ids = [record["task_id"] for record in combined["results"][:2]]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("errors", "status", "success"),
    [([], "success", True), ([None, None], "success", True), (["x", "y"], "error", False)],
)
def test_a_combined_answer_succeeds_only_if_all_do(
    errors: list[str | None], status: str, success: bool
) -> None:
    combined = combined_answer([TaskRecord(error=error).answer() for error in errors])
    assert (combined["status"], combined["success"]) == (status, success)


async def test_each_of_many_tasks_may_ask_a_person_and_none_is_done_twice(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    quick = worker(writes("made"), says("made it"), name="quick")
    askers = [
        worker(calls(call("delete_file", file_path=f"/workspace/{n}")), says(f"no {n}"), name=n)
        for n in "ab"
    ]
    run = Run(
        parent(many(item("quick"), item("a"), item("b"))),
        subagents=[quick, *askers],
        backend=DirectoryBackend(tmp_path),
        interrupt_on={"delete_file": True},
    )
    await run.to_end()
    for asked in "ab":
        session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
        assert session is not None
        (pending,) = pending_approvals(session.events)
        assert pending.agent == asked
        answer = answers_message([(pending, ApprovalAnswer(decision="approve"))])
        runner = Runner(app=run.app, session_service=run.sessions)
        async for event in runner.run_async(user_id="u", session_id="s", new_message=answer):
            if event.content:
                run.events.append(event)
    assert run.results[-1]["summary"] == "Completed 3 of 3 tasks."
    assert [one["summary"] for one in run.results[-1]["results"]] == ["made it", "no a", "no b"]
    assert names(tmp_path) == ["made"]
    assert len(quick["model"].requests) == 2


async def test_a_task_without_a_limit_has_that_of_its_agent() -> None:
    child = worker(says("late", delay_seconds=30))
    limits = SubAgentLimits(timeout_seconds=0.2)
    run = await Run(parent(asks()), subagents=[child], subagent_limits=limits).to_end()
    assert run.results[0]["error"] == "It was stopped after 0.2 seconds."


async def test_many_tasks_end_together_also_those_that_wait_for_a_place() -> None:
    child = worker(says("late", delay_seconds=30))
    limits = SubAgentLimits(max_concurrent=1, tasks_timeout_seconds=0.3)
    run = await Run(
        parent(many(item(), item())), subagents=[child], subagent_limits=limits
    ).to_end()
    errors = sorted(record["error"] for record in run.results[0]["results"])
    assert "was stopped after 0.3" in errors[1] or "was stopped after 0.2" in errors[1]
    assert "not begun" in errors[0]


async def test_sub_agents_hand_their_limits_down() -> None:
    inner = worker(says("late", delay_seconds=30), name="inner")
    outer = worker(calls(asks("deep", "inner")), says("up"), name="outer", subagents=[inner])
    limits = SubAgentLimits(timeout_seconds=2)
    await Run(
        parent(asks("x", "outer", timeout_seconds=20)), subagents=[outer], subagent_limits=limits
    ).to_end()
    assert "stopped after 2 seconds" in seen(outer["model"])


@pytest.mark.parametrize("bad", [{"max_concurrent": 0}, {"timeout_seconds": -1}])
def test_a_limit_that_is_not_above_zero_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has to be above zero"):
        SubAgentLimits(**bad)


async def test_a_child_that_ignores_its_end_is_left_behind_and_what_it_does_later_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (one_child, subagents):
        monkeypatch.setattr(module, "ABANDON_SECONDS", 0.1)
    released, ended = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        """Work on, whatever happens."""
        while not released.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        ended.set()
        return "done after all"

    child = worker(
        writes("early"),
        calls(call("stubborn")),
        writes("late"),
        says("x"),
        tools=[stubborn],
        built_in_tools=["write_file"],
    )
    run = await Run(
        parent(asks(timeout_seconds=0.3)), subagents=[child], backend=DirectoryBackend(tmp_path)
    ).to_end()
    released.set()
    assert "stopped after 0.3 seconds" in run.results[0]["error"]
    await ended.wait()
    await asyncio.sleep(0.2)
    assert names(tmp_path) == []


async def test_the_text_of_children_is_streamed_with_their_names() -> None:
    words = "I shall look at all of the files before I say anything about them."
    one, two = (worker(says(words), name=name) for name in ("one", "two"))
    made = asks("x", "one"), asks("x", "two")
    run = await Run(parent(*made), subagents=[one, two], streaming=True).to_end()
    for name in ("one", "two"):
        heard = [
            event for event in run.events if (event.custom_metadata or {}).get("subagent") == name
        ]
        assert len(heard) > 1
        assert "".join(map(texts, heard)) == words
        assert {event.author for event in heard} == {name}
        assert all(event.partial for event in heard)


async def test_the_text_of_a_childs_child_keeps_its_name() -> None:
    inner = worker(says("words from far below"), name="inner")
    outer = worker(calls(asks("deep", "inner")), says("up"), name="outer", subagents=[inner])
    run = await Run(parent(asks("x", "outer")), subagents=[outer], streaming=True).to_end()
    heard = [e for e in run.events if (e.custom_metadata or {}).get("subagent") == "inner"]
    assert "".join(map(texts, heard)) == "words from far below"


async def test_tools_of_a_specification_replace_the_built_in_ones() -> None:
    async def lookup() -> str:
        """Look it up."""
        return "found"

    own = worker(says("a"), name="own", tools=[lookup])
    both = worker(says("b"), name="both", tools=[lookup], built_in_tools=["ls"])
    plain = worker(says("c"), name="plain")
    await Run(
        parent(*(asks("x", name) for name in ("own", "both", "plain"))),
        subagents=[own, both, plain],
        tools=[lookup],
    ).to_end()
    assert own["model"].requests[0].tools_dict.keys() == {"lookup"}
    assert both["model"].requests[0].tools_dict.keys() == {"lookup", "ls"}
    assert {"read_file", "write_todos"} <= plain["model"].requests[0].tools_dict.keys()
    assert "lookup" not in plain["model"].requests[0].tools_dict


def test_tools_and_names_that_two_would_share_are_refused() -> None:
    with pytest.raises(ValueError, match="has the name of a tool"):
        create_deep_agent(recorder("p", [says("x")]), subagents=[worker(name="tasks")])


@pytest.mark.parametrize(
    ("style", "policy", "asks_a_person"),
    [
        ("task", {"task": True}, True),
        ("task", {"task": True, "tasks": False}, False),
        ("agent_tools", {"worker": True}, True),
        ("agent_tools", {"ls": True}, False),
    ],
)
async def test_who_guards_one_task_guards_many(
    style: DelegationStyle, policy: dict[str, bool], asks_a_person: bool
) -> None:
    run = Run(parent(many(item())), subagents=[worker()], delegation=style, interrupt_on=policy)
    await run.to_end()
    asked = [approval.tool for approval in pending_approvals(run.events)]
    assert asked == (["tasks"] if asks_a_person else [])


async def test_a_childs_own_word_does_not_loosen_what_its_parent_guards() -> None:
    run = Run(
        parent(many(item())),
        subagents=[worker()],
        inherited_interrupt_on={"task": True},
        interrupt_on={"tasks": False},
    )
    await run.to_end()
    assert [approval.tool for approval in pending_approvals(run.events)] == ["tasks"]
