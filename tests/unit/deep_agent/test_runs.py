"""A deep agent in ADK's Runner: every mistake becomes text, infrastructure failures end the run."""

import asyncio
from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits
from fanout.orchestrator.deep_agent.create import create_deep_agent
from fanout.orchestrator.deep_agent.delegation.roster import agent_identifier
from fanout.orchestrator.deep_agent.failures import ModelRefused, ModelUnresponsive, ScriptFailed
from fanout.orchestrator.deep_agent.models.tokens import ModelUsage
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted, texts


class SandboxGone(Exception):
    pass


async def explode() -> dict[str, Any]:
    """Fail."""
    raise KeyError("a bug")


async def lose_sandbox() -> dict[str, Any]:
    """Fail for good."""
    raise SandboxGone("the container is gone")


async def add(a: int, b: int, tool_context: ToolContext) -> dict[str, Any]:
    """Add."""
    return {"sum": a + b}


async def test_every_mistake_with_tools_comes_back_as_text_and_the_run_goes_on() -> None:
    model = scripted(
        [
            {
                "calls": [
                    call("explode"),
                    call("nosuch"),
                    call("ls"),
                    call("add", a=1),
                    call("add", a=1, b=2),
                    call("read_file", file_path="/none"),
                ]
            },
            {"text": "done"},
        ]
    )
    run = await Run(model, tools=[explode, add]).to_end()
    exploded, unknown, missing, half, good, absent = run.results
    assert exploded == {"status": "error", "error": "explode failed: KeyError: 'a bug'"}
    assert "nosuch" in unknown["error"]
    assert "read_file" in unknown["error"]
    assert "path: Field required" in missing["error"]
    assert "b" in half["error"]
    assert good == {"sum": 3}
    assert absent["error"] == "Error: file not found: /none"
    assert run.text == "done"


async def test_a_fatal_error_comes_out_of_the_run_as_itself() -> None:
    model = scripted([{"calls": [call("lose_sandbox")]}, {"text": "never"}])
    with pytest.raises(SandboxGone, match="the container is gone"):
        await Run(model, tools=[lose_sandbox], fatal_errors=(SandboxGone,)).to_end()


async def test_unreadable_and_empty_replies_are_sent_back_and_the_model_recovers() -> None:
    model = scripted([{"malformed": True}, {"text": ""}, {"text": "good now"}])
    run = await Run(model).to_end()
    assert run.text == "good now"
    assert [result["status"] for result in run.results] == ["error", "error"]


async def test_a_model_that_never_gets_readable_ends_with_an_error_code() -> None:
    run = await Run(scripted([{"malformed": True}] * 9)).to_end()
    assert run.events[-1].error_code == "MALFORMED_REPLY"
    assert len(run.results) == 3


async def test_overload_is_retried_and_a_refusal_is_not() -> None:
    run = await Run(scripted([{"text": "ok", "error": {"status": 503, "times": 3}}])).to_end()
    assert run.text == "ok"
    with pytest.raises(ModelRefused, match="401"):
        await Run(scripted([{"text": "ok", "error": {"status": 401}}])).to_end()
    with pytest.raises(ModelUnresponsive, match="429"):
        await Run(scripted([{"text": "ok", "error": {"status": 429, "times": 99}}])).to_end()


async def test_a_bug_in_the_client_is_a_refusal_and_a_used_up_script_says_where() -> None:
    with pytest.raises(ModelRefused, match=r"refused the request \(broken\)"):
        await Run(scripted([{"raise": "broken"}])).to_end()
    with pytest.raises(
        ScriptFailed, match=r"conversations\.0 .* has no reply 2: the script ran out after 1"
    ):
        await Run(scripted([{"calls": [call("read_todos")]}])).to_end()


async def test_streamed_text_comes_in_pieces_and_once_whole() -> None:
    text = "a long enough text to be cut into several pieces by the model"
    run = await Run(scripted([{"text": text}]), streaming=True).to_end()
    pieces = [texts(event) for event in run.events if event.partial]
    assert len(pieces) > 1
    assert "".join(pieces) == text
    assert run.text == text


async def test_a_prompt_with_braces_is_taken_literally() -> None:
    run = await Run(
        scripted([{"text": "ok"}]), instruction='Answer {"json": {name}} {missing}'
    ).to_end()
    assert run.text == "ok"


async def test_state_files_and_todos_live_in_the_session() -> None:
    todos = [{"content": "a", "status": "in_progress"}, {"content": "b", "status": "pending"}]
    model = scripted(
        [
            {
                "calls": [
                    call("write_file", file_path="/a", content="1"),
                    call("write_file", file_path="/b", content="2"),
                ]
            },
            {"calls": [call("write_todos", todos=todos)]},
            {"calls": [call("ls", path="/"), call("read_todos")]},
            {"text": "done"},
        ]
    )
    run = await Run(model).to_end()
    assert run.results[2] == {"status": "success", "count": 2}
    assert [entry["path"] for entry in run.results[3]["entries"]] == ["/a", "/b"]
    assert run.results[4] == {"todos": todos}
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    assert session.state["todos"] == todos
    assert session.state["file:/a"]["content"] == "1"


async def test_two_lists_of_todos_in_one_reply_are_both_refused() -> None:
    todos = [{"content": "a", "status": "in_progress"}]
    model = scripted(
        [
            {"calls": [call("write_todos", todos=todos), call("write_todos", todos=[])]},
            {"text": "x"},
        ]
    )
    run = await Run(model).to_end()
    assert ["more than once" in result["error"] for result in run.results] == [True, True]


@pytest.mark.parametrize(
    ("todos", "words"),
    [
        ("buy milk", "must be a list"),
        ([3], "Item 1 must be an object"),
        ([{"foo": 1}], "non-empty content"),
        ([{"content": "", "status": "pending"}], "non-empty content"),
        ([{"content": "a", "status": "banana"}], "pending, in_progress, completed"),
        ([{"content": "a"}], "needs a status"),
        ([{"content": "a", "status": "pending"}] * 101, "100 steps"),
        ([{"content": "x" * 1001, "status": "pending"}], "1000 characters"),
    ],
)
async def test_todos_of_a_wrong_shape_are_refused_with_what_to_mend(todos: Any, words: str) -> None:
    run = await Run(
        scripted([{"calls": [call("write_todos", todos=todos)]}, {"text": "x"}])
    ).to_end()
    assert run.results[0]["status"] == "error"
    assert words in run.results[0]["error"]


async def test_the_soft_rules_of_todos_are_advice() -> None:
    done = [{"content": "a", "status": "completed"}, {"content": "b", "status": "in_progress"}]
    again = [{"content": "a", "status": "pending"}, {"content": "b", "status": "pending"}]
    model = scripted(
        [{"calls": [call("write_todos", todos=list_)]} for list_ in (done, again)] + [{"text": "x"}]
    )
    run = await Run(model).to_end()
    assert run.results[0] == {"status": "success", "count": 2}
    assert run.results[1]["status"] == "success"
    assert len(run.results[1]["advice"]) == 3


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_an_answer_that_does_not_fit_its_schema_is_sent_back_once() -> None:
    run = await Run(
        scripted([{"text": "It is five."}, {"text": '{"n": 5}'}]), output_schema=SCHEMA
    ).to_end()
    assert run.text == '{"n": 5}'
    assert "not JSON" in run.results[0]["error"]
    run = await Run(
        scripted([{"text": '{"n": "x"}'}, {"text": "{}"}]), output_schema=SCHEMA
    ).to_end()
    assert run.events[-1].error_code == "OUTPUT_NOT_VALID"
    assert "'n' is a required property" in str(run.events[-1].error_message)


async def test_a_fenced_answer_is_accepted() -> None:
    run = await Run(
        scripted([{"text": 'Here:\n```json\n{"n": 1}\n```'}]), output_schema=SCHEMA
    ).to_end()
    assert len(run.events) == 1


def looping(replies: int) -> Any:
    usage = {"input_tokens": 100, "output_tokens": 10}
    return scripted(
        [
            {"text": f"step {n}", "calls": [call("read_todos")], "usage": usage}
            for n in range(replies)
        ]
    )


async def test_the_last_model_call_must_sum_up_and_no_more_are_made() -> None:
    budget = Budget(BudgetLimits(max_model_calls=3))
    run = await Run(looping(9), budget=budget).to_end()
    assert budget.usage.model_calls == 3
    assert budget.reached == "The limit max_model_calls=3 is reached (2 used)."
    assert run.text.startswith("step 2")
    assert "max_model_calls=3" in run.text
    assert len(run.results) == 2


async def test_tokens_end_a_run_before_they_are_passed() -> None:
    budget = Budget(BudgetLimits(max_tokens=500))
    await Run(looping(9), budget=budget).to_end()
    assert budget.usage.tokens == 440
    assert budget.reached
    assert "max_tokens=500" in budget.reached


async def test_money_ends_a_run_when_prices_are_known() -> None:
    budget = Budget(BudgetLimits(max_cost_usd=0.05), price=lambda _, used: used.tokens * 0.0001)
    await Run(looping(9), budget=budget).to_end()
    assert budget.usage.cost_usd == pytest.approx(0.044)
    assert "max_cost_usd=0.05" in str(budget.reached)


async def test_tool_calls_over_the_limit_are_refused_and_then_the_run_ends() -> None:
    budget = Budget(BudgetLimits(max_tool_calls=2))
    model = scripted(
        [{"calls": [call("read_todos")] * 3}, {"text": "summing up", "calls": [call("read_todos")]}]
    )
    run = await Run(model, budget=budget).to_end()
    assert [result.get("status") for result in run.results] == [None, None, "error"]
    assert budget.usage.tool_calls == 2
    assert run.text.startswith("summing up")


async def test_a_used_up_budget_makes_no_call_at_all_and_a_run_within_it_reaches_nothing() -> None:
    used = ModelUsage(model_calls=5, input_tokens=10)
    budget = Budget(BudgetLimits(max_model_calls=5), used=used)
    run = await Run(looping(9), budget=budget).to_end()
    assert "max_model_calls=5" in run.text
    assert budget.usage == used
    budget = Budget(BudgetLimits(max_model_calls=5), used=ModelUsage(model_calls=1))
    await Run(scripted([{"text": "done"}]), budget=budget).to_end()
    assert budget.reached is None
    assert budget.usage.model_calls == 2


async def test_tools_of_one_reply_run_at_once() -> None:
    together = asyncio.Barrier(8)

    async def meet(number: int) -> dict[str, Any]:
        """Wait for the others."""
        async with asyncio.timeout(60):
            await together.wait()
        return {}

    meetings = [call("meet", number=number) for number in range(8)]
    run = await Run(scripted([{"calls": meetings}, {"text": "x"}]), tools=[meet]).to_end()
    assert run.text == "x"


def test_built_in_tools_are_chosen_by_name_and_unknown_names_are_refused() -> None:
    agent = create_deep_agent(scripted([{"text": "x"}]), built_in_tools=["ls", "read_file"])
    assert [getattr(tool, "name", None) for tool in agent.tools] == ["ls", "read_file"]
    with pytest.raises(ValueError, match="No such built-in tool: shell"):
        create_deep_agent(scripted([{"text": "x"}]), built_in_tools=["shell"])


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("general-purpose", "general_purpose"),
        ("user", "agent_user"),
        ("2nd", "agent_2nd"),
        ("", "agent_"),
    ],
)
def test_names_become_identifiers(name: str, identifier: str) -> None:
    assert agent_identifier(name) == identifier
