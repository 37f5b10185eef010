"""Long values of a journal's entries: taken out, put back, never made up by what a tool says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanout.orchestrator.jobs.bounds import KIB
from fanout.orchestrator.jobs.payloads import (
    GONE,
    MAX_PAYLOADS,
    MIN_PAYLOAD_CHARACTERS,
    SHOWN_CHARACTERS,
    list_payload_names,
    put_back,
    shown,
    take_out,
    unpacked,
)

LONG = "é€\U0001f600 line\n\0" * 400
LIST = [{"path": f"src/module_{n}.py", "line": n} for n in range(100)]


def entry(response: dict[str, Any], arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """The data of a tool's result, as it is before it is stored."""
    parts = [
        {"text": "Well.", "thought_signature": "QUJD" * 200},
        {"function_call": {"id": "1", "name": "task", "args": arguments or {}}},
        {"function_response": {"id": "1", "name": "read_file", "response": response}},
    ]
    event = {"content": {"parts": parts}, "author": "agent", "actions": {"state_delta": {}}}
    return {
        "author": "agent",
        "results": [{"id": "1", "tool": "read_file", "result": response}],
        "event": event,
    }


@pytest.mark.parametrize(
    "value",
    [
        LONG,
        LIST,
        {"a": LIST, "b/c~d": LONG},
        "x" * 32 * KIB,
        "x" * (32 * KIB + 1),
        "x" * MIN_PAYLOAD_CHARACTERS,
        "x" * (MIN_PAYLOAD_CHARACTERS - 1),
        "",
        None,
    ],
    ids=["text", "list", "mapping", "32 KB", "more", "shortest", "shorter", "empty", "null"],
)
def test_what_is_put_back_is_what_was_taken_out_in_the_same_order(value: Any) -> None:
    given = entry({"status": "success", "a/b~c": value, "more": 1}, {"content": value, "z": 0})

    stored, payloads = take_out(given)
    stored = json.loads(json.dumps(stored))
    back = put_back(stored, {name: one.content for name, one in payloads.items()})

    assert json.dumps(back["event"]) == json.dumps(given["event"])
    assert back["results"][0]["result"]["a/b~c"] == shown(value)
    assert back.keys() == given.keys()
    for name, one in payloads.items():
        assert unpacked(one.packed(), list_payload_names(stored)[name]) == one.content


def test_each_value_is_stored_once_and_named_wherever_it_belongs() -> None:
    stored, payloads = take_out(entry({"content": LONG}, {"content": LONG}))

    texts = [one for one in payloads.values() if not one.is_json]
    assert [one.content.decode() for one in texts].count(LONG) == 1
    assert LONG[:300] not in json.dumps(stored, ensure_ascii=False)


def test_an_earlier_release_is_shown_the_beginning_and_no_event() -> None:
    stored, _ = take_out(entry({"content": LONG}))

    assert stored["results"][0]["result"]["content"].startswith(LONG[:100])
    assert "event" not in stored


def test_of_a_large_value_as_much_is_kept_at_hand_as_people_are_shown() -> None:
    large = "y" * 100 * KIB
    stored, _ = take_out(entry({"content": large}))

    assert put_back(stored, {})["results"][0]["result"]["content"] == shown(large)
    assert len(str(shown(large))) == SHOWN_CHARACTERS + 1


def test_without_one_of_its_values_an_entry_has_no_event_and_can_be_completed_later() -> None:
    given = entry({"content": LONG, "other": LIST})
    stored, payloads = take_out(given)
    first, *others = payloads

    part = put_back(stored, {first: payloads[first].content})
    whole = put_back(part, {name: one.content for name, one in payloads.items()})

    assert others
    assert "event" not in part
    assert whole["event"] == given["event"]


def test_a_sentence_stands_for_a_value_that_is_gone() -> None:
    stored, payloads = take_out(entry({"content": LONG}))

    back = put_back(stored, dict.fromkeys(payloads))

    signature, _, answer = back["event"]["content"]["parts"]
    assert answer["function_response"]["response"] == {"content": GONE}
    assert signature["thought_signature"] is None, "a sentence is no signature"


def test_what_a_tool_says_is_never_taken_for_a_place_or_a_name() -> None:
    forged = {"payloads": {"0" * 64: {"bytes": 9, "at": ["/event/author"]}}, "event_outline": {}}
    given = entry({"content": forged, "payloads": forged})

    stored, payloads = take_out(given)
    back = put_back(stored, {name: one.content for name, one in payloads.items()})

    assert "0" * 64 not in list_payload_names(stored)
    assert back["event"] == given["event"]


@pytest.mark.parametrize(
    "payloads",
    [
        None,
        [],
        {"a": 1},
        {"a": {"bytes": 3, "at": ["/event/content/9/x", "/nowhere/1", "", "/results/x"]}},
    ],
)
def test_places_of_another_form_are_no_error(payloads: Any) -> None:
    data = {"results": [], "event_outline": {"content": {}}, "payloads": payloads}

    assert put_back(data, {"a": b"abc"})["results"] == []


def test_an_entry_with_too_many_long_values_is_left_as_it_is() -> None:
    given = entry({str(number): f"{number}" * 600 for number in range(MAX_PAYLOADS + 1)})

    assert take_out(given) == (given, {})
