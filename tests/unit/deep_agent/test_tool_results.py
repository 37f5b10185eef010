"""Whatever a tool returns is a result, and whatever it raises is an error that the model reads."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import math
import pathlib
import types as python_types
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import load_artifacts
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from fanout.orchestrator.deep_agent import Middleware, create_deep_agent, create_deep_app
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted


class Model(BaseModel):
    a: int = 1
    when: dt.date = dt.date(2026, 1, 2)


@dataclasses.dataclass
class Record:
    a: bytes = b"\xff"


class Colour(enum.Enum):
    RED = "red"


class Named:
    def __str__(self) -> str:
        return "a name"


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


RETURNED: dict[str, tuple[Callable[[], Any], Any]] = {
    "nothing": (lambda: None, {"result": None}),
    "bytes of text": (lambda: b"caf\xc3\xa9", {"result": "café"}),
    "other bytes": (lambda: {"a": bytearray(b"\xff\x00")}, {"a": "/wA="}),
    "a model": (Model, {"a": 1, "when": "2026-01-02"}),
    "models in a list": (lambda: [Model()], {"result": [{"a": 1, "when": "2026-01-02"}]}),
    "a dataclass": (lambda: {"x": Record()}, {"x": {"a": "/w=="}}),
    "no number": (lambda: {"a": math.nan, "b": [-math.inf]}, {"a": "nan", "b": ["-inf"]}),
    "a set": (lambda: {1}, {"result": [1]}),
    "an enumeration": (lambda: Colour.RED, {"result": "red"}),
    "a decimal": (lambda: decimal.Decimal("1.10"), {"result": "1.10"}),
    "a path": (lambda: pathlib.PurePosixPath("/x"), {"result": "/x"}),
    "a generator": (lambda: (each for each in (1, b"2")), {"result": [1, "2"]}),
    "other keys": (
        lambda: {1: "a", "1": "b", None: 1, (1, 2): 2},
        {"1 (2)": "a", "1": "b", "None": 1, "[1, 2]": 2},
    ),
    "a view of a dict": (lambda: python_types.MappingProxyType({"a": 1}), {"a": 1}),
    "lists of a default dict": (lambda: collections.defaultdict(list, a=[b"x"]), {"a": ["x"]}),
    "a large number": (lambda: 2**20_000, {"result": hex(2**20_000)}),
    "an exception": (lambda: ValueError("as a value"), {"result": "as a value"}),
    "an object with a text": (lambda: [Named()], {"result": ["a name"]}),
}
REFUSED = {
    "what contains itself": (_circle, "contains itself"),
    "what has no text": (lambda: {"a": Mute()}, "its Mute cannot be read"),
    "what has no end": (lambda: iter(int, 1), "more than 100,000 items"),
}


class Given(BaseTool):
    """A tool that is no function."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(name="odd", description="d")
        self.make = make

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name, description="d")

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        del args, tool_context
        return self.make()


class Toolset(BaseToolset):
    def __init__(self, tool: BaseTool) -> None:
        super().__init__()
        self.tool = tool

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        del readonly_context
        return [self.tool]


def plain(make: Callable[[], Any]) -> Any:
    def odd() -> Any:
        """Return it."""
        return make()

    return odd


def awaited(make: Callable[[], Any]) -> Any:
    async def odd() -> Any:
        """Return it."""
        await asyncio.sleep(0)
        return make()

    return odd


FORMS = pytest.mark.parametrize(
    "form",
    [plain, awaited, Given, lambda make: Toolset(Given(make))],
    ids=["function", "async function", "tool", "toolset"],
)
USED = [{"calls": [call("odd"), call("ls", path="/")]}, {"text": "done"}]


async def result_of(tool: Any, **agent: Any) -> Any:
    """What the model reads of the tool; its run goes on, and its session can be stored."""
    run = await Run(scripted(USED), tools=[tool], **agent).to_end()
    assert run.text == "done"
    for event in run.events:
        event.model_dump_json()
    result, listed = run.results
    assert listed["status"] == "success"
    return result


@FORMS
@pytest.mark.parametrize("kind", RETURNED)
async def test_a_tool_may_return_any_value(form: Any, kind: str) -> None:
    make, expected = RETURNED[kind]

    assert await result_of(form(make)) == expected


@FORMS
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_value_that_no_json_can_hold_is_an_error_that_says_why(
    form: Any, kind: str
) -> None:
    make, why = REFUSED[kind]

    result = await result_of(form(make))

    assert result["status"] == "error"
    assert why in result["error"]


async def test_media_in_a_result_stays_media() -> None:
    image = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")

    run = await Run(scripted(USED), tools=[plain(lambda: {"images": [image], "b": b"x"})]).to_end()

    answer = next(each for event in run.events for each in event.get_function_responses())
    assert answer.response == {"b": "x"}
    assert [part.inline_data.data for part in answer.parts or ()] == [b"\x89PNG"]


class Bare(BaseException):
    """Is no Exception."""


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raising(error: BaseException) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


@pytest.mark.parametrize("form", [plain, awaited, Given])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        GeneratorExit(),
        Bare("x"),
        BaseExceptionGroup("x", [Bare("y")]),
        asyncio.CancelledError(),
        MuteError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_tool_raises_is_an_error_that_the_model_reads(
    form: Any, error: BaseException
) -> None:
    result = await result_of(form(raising(error)))

    assert result["status"] == "error"
    assert result["error"].startswith("odd failed: ")


async def test_what_a_tool_writes_into_the_state_is_clean() -> None:
    def odd(tool_context: ToolContext) -> str:
        """Write it."""
        tool_context.state["k\udfff"] = ["\ud83d"]
        return "ok"

    assert await result_of(odd) == {"result": "ok"}


class Replacing(Middleware):
    """Returns another result, which no middleware after it would make JSON."""

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> dict[str, Any] | None:
        del args, tool_context, tool_response
        return {"bytes": b"x"} if tool.name == "odd" else None


class Plugin(BasePlugin):
    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: Any, tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        del tool, tool_args, tool_context, result
        return {"bytes": b"x"}


async def test_so_is_what_a_middleware_a_callback_or_a_plugin_puts_in_its_place() -> None:
    assert await result_of(plain(lambda: "x"), middleware=[Replacing()]) == {"bytes": "x"}

    run = Run(scripted(USED), tools=[plain(lambda: "x")])
    run.app = create_deep_app(
        create_deep_agent(scripted(USED), tools=[plain(lambda: "x")]), plugins=[Plugin("theirs")]
    )
    await run.to_end()
    assert run.results[0] == {"bytes": "x"}


async def test_a_tool_that_cannot_prepare_a_request_costs_nothing_else() -> None:
    """Artifacts need a service that this runner does not have."""
    replies = [{"calls": [call("ls", path="/")]}, {"text": "done"}]

    run = await Run(scripted(replies), tools=[load_artifacts]).to_end()

    assert run.text == "done"
