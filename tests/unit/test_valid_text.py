"""Any text becomes one that everything can hold."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from fanout.orchestrator.deep_agent.models.replies import CLEANED_CALLS, clean_reply
from fanout.orchestrator.valid_models import valid_json
from fanout.orchestrator.valid_text import clean, clean_json, clean_text, printable
from tests.forked import REPOSITORY

ANY_TEXT = st.text(st.characters(exclude_categories=()))
HALVES = st.text(st.sampled_from("a\ud83d\ude00\udc80\udfffé😀\\"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | ANY_TEXT | HALVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(ANY_TEXT | HALVES, inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(ANY_TEXT | HALVES)
def test_any_text_can_be_encoded_once_it_is_clean(text: str) -> None:
    cleaned = clean_text(text)

    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) is cleaned


@given(st.text())
def test_a_valid_text_stays_as_it_is(text: str) -> None:
    assert clean_text(text) is text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\ud83d", "a�"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "��"),
        ("\ud83d\ud83d\ude00", "�😀"),
        ("\udce9 stays one", "� stays one"),
    ],
)
def test_two_halves_are_a_character_and_one_is_replaced(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@given(VALUES)
def test_any_value_can_be_stored_once_it_is_clean(value: Any) -> None:
    cleaned = clean(value)

    json.dumps(cleaned, ensure_ascii=False).encode()
    assert clean(cleaned) is cleaned


@given(st.dictionaries(HALVES, st.integers()))
def test_no_value_of_a_dict_is_lost(values: dict[str, int]) -> None:
    assert sorted(clean(values).values()) == sorted(values.values())


@given(VALUES)
def test_json_of_any_value_is_read_by_a_strict_reader_once_it_is_clean(value: Any) -> None:
    class Holder(BaseModel):
        value: JsonValue

    lenient = json.dumps({"value": value}).encode()

    read = Holder.model_validate_json(clean_json(lenient)).value

    assert clean(json.loads(clean_json(lenient))["value"]) == read


@given(st.binary())
def test_bytes_that_are_no_json_do_not_fail(data: bytes) -> None:
    assert clean_json(clean_json(data)) == clean_json(data)


def test_an_escaped_backslash_before_a_u_is_no_escape() -> None:
    assert clean_json(rb'"\\ud83d \ud83d \ud83d\ude00"') == rb'"\\ud83d \ufffd \ud83d\ude00"'


def test_a_model_is_stored_whatever_its_texts_are() -> None:
    class Record(BaseModel):
        text: str
        more: Any = None

    assert json.loads(valid_json(Record(text="\ud83d", more={"\ud83d": ["é"]}))) == {
        "text": "�",
        "more": {"�": ["é"]},
    }


def test_an_event_is_stored_whatever_a_tool_returned() -> None:
    response = types.FunctionResponse(name="t", response={"\ud83d": {"deep": ["\ude00"]}})
    image = types.Blob(data=b"\xff\x00", mime_type="image/png")
    parts = [types.Part(function_response=response), types.Part(inline_data=image)]
    event = Event(author="a", content=types.Content(role="user", parts=parts))

    read = Event.model_validate_json(valid_json(event, exclude_none=True))

    assert read.get_function_responses()[0].response == {"�": {"deep": ["�"]}}
    assert read.content is not None
    assert read.content.parts is not None
    assert read.content.parts[1].inline_data == image


def test_a_reply_is_clean_in_all_of_its_parts_and_names_the_calls() -> None:
    call = types.FunctionCall(id="\ud83d1", name="ex\ud83dec", args={"k\ud83d": ["\ude00"]})
    given_parts = [
        types.Part(text="hm \ud83d", thought=True),
        types.Part(function_call=types.FunctionCall(name="ls", args={"path": "/"})),
        types.Part(function_call=call),
        types.Part(executable_code=types.ExecutableCode(code="'\ud83d'")),
    ]
    reply = LlmResponse(content=types.Content(role="model", parts=given_parts))

    clean_reply(reply)

    reply.model_dump_json()
    assert reply.content is not None
    assert reply.content.parts is not None
    cleaned = reply.content.parts[2].function_call
    assert cleaned is not None
    assert (cleaned.id, cleaned.name, cleaned.args) == ("�1", "ex_ec", {"k�": ["�"]})
    assert reply.custom_metadata == {CLEANED_CALLS: [1]}
    assert call.name == "ex\ud83dec", "what somebody else may use is not changed"


def test_the_page_shows_the_same_hidden_characters_as_a_terminal() -> None:
    script = (REPOSITORY / "orchestrator/server/static/text.js").read_text("utf-8")
    written = re.search(r"NEVER_SHOWN = String.raw`(.*)`", script)
    assert written is not None
    of_page = re.compile(
        "[" + re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{int(found[1], 16):08x}", written[1]) + "]"
    )
    everything = "".join(map(chr, range(0xD800))) + "".join(map(chr, range(0xE000, 0x110000)))
    shown = {one for one in everything if printable(f"a{one}") != f"a{one}"}

    assert shown - set("\u200c\u200d\ufe0f") == set(of_page.findall(everything))
    assert "(?<!${LETTER}\\ufe0f])(?<![0-9#*])\\ufe0f" in script  # the joiners' rule, as in Python
