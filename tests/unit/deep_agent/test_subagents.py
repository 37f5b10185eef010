"""Sub-agents in process: what they see, what comes back, what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import InMemoryRunner, Runner
from google.adk.tools.base_toolset import BaseToolset

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent.approval import answers_message, pending_approvals
from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits
from fanout.orchestrator.deep_agent.create import create_deep_agent
from fanout.orchestrator.deep_agent.delegation.roster import SubAgentLimits, SubAgentSpec
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.running import Run, texts
from tests.unit.deep_agent.talking import first_message, recorder, seen


def worker(*replies: dict[str, Any], name: str = "worker", **more: Any) -> SubAgentSpec:
    spec = {
        "name": name,
        "description": f"{name} works.",
        "model": recorder(name, list(replies) or [says("x")]),
        **more,
    }
    return SubAgentSpec(**spec)


def asks(description: str = "do it", subagent_type: str = "worker", **more: Any) -> dict[str, Any]:
    return call("task", description=description, subagent_type=subagent_type, **more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def parent(*made: dict[str, Any]) -> Any:
    return recorder("parent", [calls(*made), says("done")])


async def test_a_child_gets_its_description_and_context_and_gives_back_its_last_message() -> None:
    child = worker({"text": "first thoughts", "calls": [call("ls", path="/")]}, says("there are 3"))
    model = parent(asks("count", context="in /a"))
    run = await Run(model, subagents=[child]).to_end("the parent's secret")
    assert run.results[0]["status"] == "success"
    assert run.results[0]["summary"] == "there are 3"
    assert "secret" not in seen(child["model"])
    assert first_message(child["model"]) == "count\n\n<context>\nin /a\n</context>"
    assert "first thoughts" not in seen(model)


async def test_its_progress_is_seen_at_once_and_never_by_the_model() -> None:
    child = worker(calls(call("ls", path="/")), says("x"))
    run = await Run(parent(asks()), subagents=[child]).to_end()
    partial = [event for event in run.events if event.partial]
    assert [texts(event) for event in partial] == ["worker ls\n"]
    assert (partial[0].custom_metadata or {})["subagent"] == "worker"


@pytest.mark.parametrize("spelling", ["general-purpose", "general_purpose"])
async def test_a_general_purpose_sub_agent_may_be_defined_and_called_in_both_spellings(
    spelling: str,
) -> None:
    mine = worker(says("mine"), name=spelling)
    made = [asks("one", "general-purpose"), asks("two", "general_purpose")]
    run = await Run(parent(*made), subagents=[mine]).to_end()
    assert [result["summary"] for result in run.results] == ["mine", "mine"]


def test_inherit_means_the_parents_model() -> None:
    child = {"name": "child", "description": "d", "model": "inherit"}

    create_deep_agent("gemini-2.5-flash", subagents=[child])


async def test_the_general_purpose_one_has_its_parents_model_and_tools() -> None:
    async def lookup() -> str:
        """Look it up."""
        return "found"

    model = recorder(
        "same",
        [calls(call("task", description="part")), calls(call("lookup")), says("end of both")],
    )
    run = await Run(model, tools=[lookup], subagents=[]).to_end()
    # One model with one script: the child's first reply is the script's first, a task that it
    # cannot give.
    assert run.results[0]["status"] == "success"
    child_request = next(request for request in model.requests if first_text(request) == "part")
    assert {"lookup", "read_file", "write_todos"} <= child_request.tools_dict.keys()
    assert "task" not in child_request.tools_dict


def first_text(request: Any) -> str:
    return "".join(part.text or "" for part in request.contents[0].parts)


async def test_several_run_at_once_and_no_more_than_the_limit() -> None:
    running = {"now": 0, "most": 0, "order": []}

    async def work(number: int) -> str:
        """Work."""
        running["order"].append(number)
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(0.05)
        running["now"] -= 1
        return "ok"

    children = [
        worker(calls(call("work", number=number)), says("x"), name=f"w{number}", tools=[work])
        for number in range(5)
    ]
    run = await Run(
        parent(*(asks("go", f"w{n}") for n in range(5))),
        subagents=children,
        subagent_limits=SubAgentLimits(max_concurrent=2),
    ).to_end()
    assert [result["status"] for result in run.results] == ["success"] * 5
    assert running["most"] == 2
    assert sorted(running["order"]) == [0, 1, 2, 3, 4]
    assert set(running["order"][:2]) == {0, 1}, (
        "two that run side by side may reach their tool in any order"
    )


async def test_one_that_fails_ends_neither_its_siblings_nor_its_parent(tmp_path: Path) -> None:
    async def explode() -> str:
        """Explode."""
        raise RuntimeError("boom")

    bad = worker(
        calls(call("write_file", file_path="/workspace/half", content="x")),
        {"raise": "lost"},
        name="bad",
    )
    odd = worker(calls(call("explode")), says("went on"), name="odd", tools=[explode])
    good = worker(
        calls(call("write_file", file_path="/workspace/whole", content="x")),
        says("made"),
        name="good",
    )
    run = await Run(
        parent(asks("a", "bad"), asks("b", "odd"), asks("c", "good")),
        subagents=[bad, odd, good],
        backend=DirectoryBackend(tmp_path),
    ).to_end()
    assert [result["status"] for result in run.results] == ["error", "success", "success"]
    assert run.results[1]["summary"] == "went on"
    assert names(tmp_path) == ["whole"]
    assert run.text == "done"


class Fatal(Exception):
    """What no agent can do anything about."""


async def test_a_fatal_error_in_a_child_ends_its_parents_run_too() -> None:
    async def lose() -> str:
        """Lose."""
        raise Fatal

    child = worker(calls(call("lose")), says("x"), tools=[lose])
    with pytest.raises(Fatal):
        await Run(parent(asks()), subagents=[child], fatal_errors=(Fatal,)).to_end()


async def test_a_time_limit_stops_a_child_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    child = worker(
        calls(call("write_file", file_path="/workspace/half", content="x")),
        says("late", delay_seconds=30),
    )
    model = parent(asks(timeout_seconds=0.2))
    run = await Run(model, subagents=[child], backend=DirectoryBackend(tmp_path)).to_end()
    assert run.results[0]["status"] == "error"
    assert "stopped after 0.2 seconds" in run.results[0]["error"]
    assert not names(tmp_path)


async def test_cancelling_the_parent_cancels_its_children_at_once() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def wait_for_ever() -> str:
        """Wait."""
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    child = worker(calls(call("wait_for_ever")), says("x"), tools=[wait_for_ever])
    run = asyncio.create_task(Run(parent(asks()), subagents=[child]).to_end())
    await begun.wait()
    run.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(run, return_exceptions=True)
        await stopped.wait()
    assert run.cancelled()


async def test_what_children_use_counts_in_their_parents_budget() -> None:
    child = worker(*[calls(call("ls", path="/"))] * 20, says("never"))
    budget = Budget(BudgetLimits(max_model_calls=5))
    await Run(parent(asks()), subagents=[child], budget=budget).to_end()
    assert budget.usage.model_calls == 5
    assert budget.reached


async def test_what_children_use_counts_in_the_run_that_they_belong_to() -> None:
    opened: list[Budget] = []

    def opens(events: Sequence[Event]) -> Budget:
        opened.append(Budget(BudgetLimits(max_model_calls=5)))
        return opened[-1]

    child = worker(*[calls(call("ls", path="/"))] * 20, says("never"))
    run = Run(parent(asks()), subagents=[child], budget=opens)
    await run.to_end()
    assert [budget.usage.model_calls for budget in opened] == [5]


async def test_a_wrong_name_or_an_empty_description_is_answered_in_words() -> None:
    run = await Run(parent(asks("x", "nobody"), asks(" ")), subagents=[worker()]).to_end()
    assert (
        run.results[0]["error"]
        == "There is no subagent_type 'nobody'; there are: worker, general-purpose."
    )
    assert "description is empty" in run.results[1]["error"]


async def test_each_sub_agent_is_a_tool_of_its_own_where_that_is_wanted() -> None:
    child = worker(says("done it"), name="code-reviewer")
    model = recorder(
        "parent", [calls(call("code_reviewer", description="look", context="here")), says("done")]
    )
    run = await Run(model, subagents=[child], delegation="agent_tools").to_end()
    assert run.results[0]["summary"] == "done it"
    tools = model.requests[0].tools_dict
    assert "general_purpose" in tools
    assert "task" not in tools
    assert "code-reviewer works." in tools["code_reviewer"].description


async def test_a_ready_agent_serves_too_and_is_bound_by_its_parents_policy() -> None:
    ran = []

    async def deploy() -> str:
        """Deploy."""
        ran.append(1)
        return "deployed"

    ready = LlmAgent(
        name="ready",
        description="d",
        model=recorder("ready", [calls(call("deploy")), says("x")]),
        tools=[deploy],
    )
    run = Run(
        parent(asks("x", "ready")), tools=[deploy], subagents=[ready], interrupt_on={"deploy": True}
    )
    await run.to_end()
    assert not ran
    assert [approval.tool for approval in pending_approvals(run.events)] == ["deploy"]


class Connection(BaseToolset):
    """A toolset that knows whether it was closed."""

    closed = False

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        del readonly_context
        return []

    async def close(self) -> None:
        self.closed = True


async def test_the_parents_runner_closes_what_its_sub_agents_have_opened() -> None:
    own, nested = Connection(), Connection()
    inner = worker(name="inner", tools=[nested])
    agent = create_deep_agent(
        recorder("p", [says("x")]), subagents=[worker(tools=[own], subagents=[inner])]
    )
    await InMemoryRunner(agent=agent, app_name="fanout").close()
    assert (own.closed, nested.closed) == (True, True)


class Stubborn(Connection):
    async def close(self) -> None:
        raise RuntimeError("the server hangs")


async def test_one_that_cannot_be_closed_keeps_no_other_open() -> None:
    last = Connection()
    agent = create_deep_agent(
        recorder("p", [says("x")]),
        subagents=[worker(tools=[Stubborn()]), worker(name="other", tools=[last])],
    )
    await InMemoryRunner(agent=agent, app_name="fanout").close()
    assert last.closed


async def test_a_childs_end_leaves_its_toolset_open_for_the_next_child() -> None:
    own = Connection()
    run = Run(parent(asks("x", "worker"), asks("y", "worker")), subagents=[worker(tools=[own])])
    await run.to_end()
    assert [result["status"] for result in run.results] == ["success", "success"]
    assert not own.closed


@pytest.mark.parametrize(
    ("team", "message"),
    [
        ([worker(), worker()], "Two sub-agents are named worker"),
        ([worker(name="read_file")], "has the name of a tool"),
        ([{"name": "x"}], "needs a name and a description"),
        ([{"name": "x", "description": "d", "prompt": "p"}], "has no prompt"),
        ([worker(built_in_tools=["nothing"])], "No such built-in tool"),
        ([worker(built_in_tools=["execute"])], "cannot have a shell"),
        (
            [worker(subagents=[worker(subagents=[worker(subagents=[])], name="b")], name="a")],
            "levels deep; 3 are allowed",
        ),
    ],
)
def test_a_team_that_cannot_work_is_refused_when_it_is_made(team: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_deep_agent(recorder("p", [says("x")]), subagents=team)


async def test_children_may_have_children_where_their_specification_says_so() -> None:
    inner = worker(says("from below"), name="inner")
    outer = worker(calls(asks("deep", "inner")), says("passed on"), name="outer", subagents=[inner])
    run = await Run(parent(asks("x", "outer")), subagents=[outer]).to_end()
    assert run.results[0]["summary"] == "passed on"
    assert first_message(inner["model"]) == "deep"


async def test_built_in_tools_that_the_parent_lacks_are_not_given_to_a_child_that_does_not_ask() -> (
    None
):
    plain, asking = (
        worker(says("a"), name="plain"),
        worker(says("b"), name="asking", built_in_tools=["ls", "grep"]),
    )
    await Run(
        parent(asks("x", "plain"), asks("x", "asking")),
        subagents=[plain, asking],
        built_in_tools=["ls"],
    ).to_end()
    assert plain["model"].requests[0].tools_dict.keys() == {"ls"}
    assert asking["model"].requests[0].tools_dict.keys() == {"ls", "grep"}


async def test_a_childs_answer_must_fit_its_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    child = worker(says("no json"), says('{"n": 3}'), output_schema=schema)
    run = await asyncio.to_thread(Run, parent(asks()), subagents=[child])
    await run.to_end()
    assert run.results[0]["summary"] == '{"n": 3}'


class Guarded:
    """A parent whose child wants to delete files, and a person who answers."""

    def __init__(self, folder: Path, *deletions: str, **agent: Any) -> None:
        self.child = worker(
            calls(
                call("write_file", file_path="/workspace/new", content="n"),
                *(call("delete_file", file_path=f"/workspace/{name}") for name in deletions),
            ),
            says("cleaned"),
        )
        self.run = Run(
            parent(asks()),
            subagents=[self.child],
            backend=DirectoryBackend(folder),
            interrupt_on={"delete_file": True},
            **agent,
        )

    async def answer(self, decision: Mapping[str, Any]) -> None:
        session = await self.run.sessions.get_session(
            app_name="fanout", user_id="u", session_id="s"
        )
        assert session
        pending = pending_approvals(session.events)
        assert len(pending) == 1
        self.asked = pending[0]
        message = answers_message([(pending[0], ApprovalAnswer(**decision))])
        # A new Runner over the same sessions: what another process would have.
        runner = Runner(app=self.run.app, session_service=self.run.sessions)
        async for event in runner.run_async(user_id="u", session_id="s", new_message=message):
            if event.content:
                self.run.events.append(event)


async def test_a_childs_question_is_asked_in_its_parents_run_and_it_goes_on_when_answered(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("a")
    team = Guarded(tmp_path, "a")
    await team.run.to_end()
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "new").exists()
    asked_before = len(team.child["model"].requests)
    await team.answer({"decision": "approve"})
    assert (team.asked.tool, team.asked.arguments) == ("delete_file", {"file_path": "/workspace/a"})
    assert team.asked.agent == "worker"
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "new").exists()
    assert len(team.child["model"].requests) == asked_before + 1
    assert team.run.text == "done"


async def test_two_questions_of_one_child_are_asked_one_after_the_other(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    team = Guarded(tmp_path, "a", "b")
    await team.run.to_end()
    await team.answer({"decision": "reject", "message": "keep it"})
    assert team.asked.arguments == {"file_path": "/workspace/a"}
    await team.answer({"decision": "approve"})
    assert team.asked.arguments == {"file_path": "/workspace/b"}
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
    assert "keep it" in seen(team.child["model"])
    assert team.run.text == "done"
