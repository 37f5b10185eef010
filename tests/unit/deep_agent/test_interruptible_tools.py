"""Tools off the event loop are the same tools: arguments, state, errors, steps, confirmations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import Field

from fanout.orchestrator.deep_agent import create_deep_agent, in_own_loop, interruptible_tools
from fanout.orchestrator.deep_agent.interruptible_tools import interruptible
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def greet(
    name: Annotated[str, Field(description="Whom")], times: int = 1, *, tool_context: ToolContext
) -> dict[str, Any]:
    """Greet someone."""
    tool_context.state["greeted"] = name
    return {"hello": name * times, "who": WHO.get(), "thread": threading.current_thread().name}


async def count_alone(to: int) -> list[int]:
    """Count without waiting."""
    return list(range(to))


async def where() -> str:
    """Say where it runs."""
    await asyncio.sleep(0)
    return threading.current_thread().name


@in_own_loop
async def apart(name: str, *, tool_context: ToolContext) -> str:
    """Run apart."""
    await asyncio.sleep(0)
    tool_context.state["apart"] = name
    return threading.current_thread().name


def fails() -> None:
    """Fail."""
    raise LookupError("not there")


def stops() -> None:
    """Stop an iteration that is not one."""
    raise StopIteration


def leaves() -> None:
    """Leave, as the command of a library does."""
    raise SystemExit(2)


async def leaves_later() -> None:
    """Leave on the event loop."""
    await asyncio.sleep(0)
    raise SystemExit(2)


async def results(*made: dict[str, Any], **agent: Any) -> list[dict[str, Any]]:
    run = await Run(scripted([{"calls": list(made)}, {"text": "x"}]), **agent).to_end()
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    return [*run.results, dict(session.state)]


async def test_a_plain_function_runs_in_a_thread_with_its_callers_context() -> None:
    WHO.set("me")
    result, state = await results(call("greet", name="a", times=2), tools=[greet])

    assert result == {"hello": "aa", "who": "me", "thread": "tool"}
    assert state["greeted"] == "a"


async def test_an_async_function_stays_on_the_loop_unless_it_never_awaits_or_is_set_apart() -> None:
    made = [call("where"), call("apart", name="b"), call("count_alone", to=3)]
    one, two, three, state = await results(*made, tools=[where, apart, count_alone])

    assert one["result"] == threading.current_thread().name
    assert two["result"] == "tool"
    assert three["result"] == [0, 1, 2]
    assert state["apart"] == "b"


async def test_what_a_thread_raises_is_an_error_result() -> None:
    one, two, _ = await results(call("fails"), call("stops"), tools=[fails, stops])

    assert one["error"] == "fails failed: LookupError: not there"
    assert "StopIteration" in two["error"]


@pytest.mark.parametrize("tool", [leaves, leaves_later, in_own_loop(leaves_later)])
async def test_a_tool_that_leaves_ends_neither_the_run_nor_the_program(tool: Any) -> None:
    one, _ = await results(call(tool.__name__), tools=[tool])

    assert one["error"].endswith("failed: RuntimeError: The tool raised SystemExit(2).")


async def test_steps_of_generators_arrive_in_order() -> None:
    def plain() -> Iterator[str]:
        """Step."""
        yield "one"

    async def waiting() -> AsyncGenerator[str]:
        """Step."""
        await asyncio.sleep(0)
        yield "two"

    async def quick() -> AsyncGenerator[str]:
        """Step."""
        yield "three"

    made = [call("plain"), call("waiting"), call("quick")]
    *found, _ = await results(*made, tools=[plain, waiting, quick])
    assert [str(result) for result in found] == [
        str({"result": text}) for text in ("one", "two", "three")
    ]


@pytest.mark.parametrize("function", [greet, apart, where, fails])
def test_the_model_sees_the_same_declaration(function: Any) -> None:
    assert interruptible(function)._get_declaration() == FunctionTool(function)._get_declaration()


async def test_a_tool_keeps_its_class_its_attributes_and_its_confirmation() -> None:
    tool = LongRunningFunctionTool(greet)
    same = interruptible(tool)
    assert isinstance(same, LongRunningFunctionTool)
    assert type(same).__name__ == "LongRunningFunctionTool"
    assert same.is_long_running
    assert interruptible(same) is same
    same.description = "changed"
    assert tool.description == "changed"

    guarded = FunctionTool(fails, require_confirmation=True)
    result, _ = await results(call("fails"), tools=[guarded])
    assert "requires confirmation" in result["error"]


async def test_threads_are_bounded_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptible_tools, "MAX_TOOL_THREADS", 2)
    running, most = 0, 0
    lock, enough = threading.Lock(), threading.Event()

    def work(number: int) -> int:
        """Work."""
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        enough.wait(0.05)
        with lock:
            running -= 1
        return number

    made = [call("work", number=number) for number in range(6)]
    *found, _ = await results(*made, tools=[work])
    assert [result["result"] for result in found] == list(range(6))
    assert most == 2


async def test_it_works_with_a_runner_of_another_app() -> None:
    agent = create_deep_agent(
        scripted([{"calls": [call("greet", name="a")]}, {"text": "x"}]), [greet]
    )
    assert isinstance(agent, LlmAgent)
    runner = InMemoryRunner(agent=agent, app_name="theirs")
    await runner.session_service.create_session(app_name="theirs", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    found = [
        response.response
        async for event in runner.run_async(user_id="u", session_id="s", new_message=message)
        for response in event.get_function_responses()
    ]
    assert [each and each["thread"] for each in found] == ["tool"]
