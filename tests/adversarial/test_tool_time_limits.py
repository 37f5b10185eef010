"""A time limit holds whatever a tool does: it blocks, ignores its cancellation, or never ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from google.adk.agents import LlmAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from fanout.orchestrator.deep_agent import Budget, BudgetLimits, in_own_loop
from tests.integration.scripts import call, says
from tests.unit.deep_agent.running import Run, scripted
from tests.unit.deep_agent.talking import recorder

pytestmark = pytest.mark.blocks_loop(
    "the tools here block on purpose; the guard would stop them before the harness does"
)

BLOCKS_SECONDS = 40.0
LIMIT_SECONDS = 0.2
RELEASED = threading.Event()
"""Ends the tools that were left to themselves, when a test has ended."""
WAITED_FOR = threading.Event()
"""A tool came to its end before that."""


def block() -> None:
    """Take long."""
    if not RELEASED.wait(BLOCKS_SECONDS):
        WAITED_FOR.set()


@pytest_asyncio.fixture(autouse=True)
async def released() -> AsyncIterator[None]:
    """Ends what a test has left behind before its loop is closed."""
    RELEASED.clear()
    WAITED_FOR.clear()
    yield
    RELEASED.set()


def plain() -> str:
    """Block."""
    block()
    return "late"


async def never_awaits() -> str:
    """Block in a coroutine."""
    block()  # the attack
    return "late"


@in_own_loop
async def awaits_and_blocks() -> str:
    """Await, then block."""
    await asyncio.sleep(0)
    block()  # the attack
    return "late"


async def ignores_cancellation() -> str:
    """Go on for as long as it wants."""
    end = time.monotonic() + BLOCKS_SECONDS
    while time.monotonic() < end and not RELEASED.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    if not RELEASED.is_set():
        WAITED_FOR.set()
    return "late"


async def blocking_steps() -> AsyncGenerator[str]:
    """Block before a step."""
    block()  # the attack
    yield "late"


async def ignoring_steps() -> AsyncGenerator[str]:
    """Ignore the cancellation within a step."""
    yield await ignores_cancellation()


def plain_steps() -> Iterator[str]:
    """Block before a plain step."""
    block()
    yield "late"


class BlockingTool(BaseTool):
    """A tool of a class of its own."""

    def __init__(self) -> None:
        super().__init__(name="own_class", description="Ignore the cancellation.")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name, description=self.description)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        del args, tool_context
        return await ignores_cancellation()


TOOLS: list[Any] = [
    plain,
    FunctionTool(plain),
    never_awaits,
    awaits_and_blocks,
    ignores_cancellation,
    blocking_steps,
    ignoring_steps,
    plain_steps,
    BlockingTool(),
]


def name_of(tool: Any) -> str:
    return str(getattr(tool, "name", None) or tool.__name__)


def labelled(tool: Any) -> str:
    return f"{type(tool).__name__}-{name_of(tool)}"


def delegates(timeout_seconds: float | None, times: int = 1) -> Any:
    made = call(
        "task", description="do it", subagent_type="worker", timeout_seconds=timeout_seconds
    )
    return recorder("parent", [{"calls": [made] * times}, says("done")])


def worker(tool: Any) -> dict[str, Any]:
    model = recorder("worker", [{"calls": [call(name_of(tool))]}, says("x")])
    return {"name": "worker", "description": "Works.", "model": model, "tools": [tool]}


def ready_worker(tool: Any) -> LlmAgent:
    made = worker(tool)
    return LlmAgent(name="worker", description="Works.", model=made["model"], tools=[tool])


CHILDREN = [*((worker, tool) for tool in TOOLS), (ready_worker, plain), (ready_worker, TOOLS[4])]


@pytest.mark.parametrize(("made", "tool"), CHILDREN)
async def test_a_childs_time_limit(made: Callable[[Any], Any], tool: Any) -> None:
    run = await Run(delegates(LIMIT_SECONDS), subagents=[made(tool)]).to_end()

    assert not WAITED_FOR.is_set()
    assert run.results[0]["error"] == "It was stopped after 0.2 seconds."
    assert run.text == "done"


@pytest.mark.parametrize("tool", TOOLS, ids=labelled)
async def test_a_runs_time_limit(tool: Any) -> None:
    model = scripted([{"calls": [call(name_of(tool))]}, {"text": "done"}])
    budget = Budget(BudgetLimits(max_seconds=LIMIT_SECONDS))
    await Run(model, tools=[tool], budget=budget).to_end()

    assert not WAITED_FOR.is_set()
    assert budget.reached is not None
    assert "time" in budget.reached or "seconds" in budget.reached


@pytest.mark.parametrize("tool", TOOLS, ids=labelled)
async def test_a_programs_time_limit(tool: Any) -> None:
    model = scripted([{"calls": [call(name_of(tool))]}, {"text": "done"}])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LIMIT_SECONDS):
            await Run(model, tools=[tool]).to_end()

    assert not WAITED_FOR.is_set()


async def test_blocking_tools_of_three_children_run_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=60)

    def meet() -> str:
        """Wait for the others."""
        together.wait()
        return "met"

    run = await Run(delegates(None, times=3), subagents=[worker(meet)]).to_end()

    assert [result["status"] for result in run.results] == ["success"] * 3
    assert not together.broken
