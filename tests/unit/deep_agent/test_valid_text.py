r"""What no text can hold never gets into a conversation, from whomever it comes."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.genai import types

from fanout.orchestrator.deep_agent.models.scripted_model import Script, ScriptedModel
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

HALF = "\ud83d"
REPLIES: list[dict[str, Any]] = [
    {
        "text": f"I see {HALF}",
        "calls": [call("odd", how=HALF), call("write_file", file_path="/a", content=f"b{HALF}")],
    },
    {"text": "done \udfff"},
]


def odd(how: str) -> Any:
    """Return what no text can hold."""
    assert how == "�"
    return ODD.pop()


ODD: list[Any] = []


def own_model() -> BaseLlm:
    """A model that somebody else made: the harness's wrapper is not around it."""
    script = Script.model_validate({"conversations": [{"replies": REPLIES}]})
    return ScriptedModel(script=script, agent_name="deep_agent")


@pytest.mark.parametrize("model", [lambda: scripted(REPLIES), own_model], ids=["ours", "own"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("value", "result"),
    [
        (HALF, {"result": "�"}),
        ([HALF, {"a": HALF}], {"result": ["�", {"a": "�"}]}),
        ({HALF: {"a": (HALF,)}, "note": "n"}, {"�": {"a": ["�"]}}),
    ],
    ids=["text", "list", "dict"],
)
async def test_replies_and_results_are_clean_and_the_model_is_told(
    model: Any, value: Any, result: dict[str, Any], *, streaming: bool
) -> None:
    ODD[:] = [value]

    run = await Run(model(), tools=[odd], streaming=streaming).to_end(f"go {HALF}")

    for event in run.events:
        event.model_dump_json()
    for event in await stored(run):
        event.model_dump_json()
    first, written = run.results
    note = first.pop("note", "")
    assert first == result
    assert "U+FFFD" in note or not isinstance(value, dict)
    assert (written["status"], "U+FFFD" in written["note"]) == ("success", True)
    assert run.text == "done �"


async def stored(run: Run) -> list[Any]:
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    return session.events


async def test_what_a_tool_raises_is_clean() -> None:
    def fails() -> None:
        """Fail."""
        raise ValueError(f"bad {HALF}")

    run = await Run(scripted([{"calls": [call("fails")]}, {"text": "ok"}]), tools=[fails]).to_end()

    assert run.results == [{"status": "error", "error": "fails failed: ValueError: bad �"}]


async def test_a_long_text_that_is_not_clean_is_still_replaced_by_its_path() -> None:
    def long() -> str:
        """Return much."""
        return HALF * 300_000

    run = await Run(scripted([{"calls": [call("long")]}, {"text": "ok"}]), tools=[long]).to_end()

    (result,) = run.results
    assert result["status"] == "result_too_large"
    assert result["preview"].startswith("�")


async def test_a_users_message_of_several_parts_is_clean() -> None:
    run = Run(scripted([{"text": "ok"}]))
    await run.sessions.create_session(app_name="fanout", user_id="u", session_id="s")
    parts = [types.Part(text=HALF), types.Part(text="b")]

    await run.answer(types.Content(role="user", parts=parts))

    (asked, *_) = await stored(run)
    assert [part.text for part in asked.content.parts] == ["�", "b"]
