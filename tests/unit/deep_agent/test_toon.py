"""Lists of records reach the model as TOON, and nothing is lost on the way."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from toon_format import decode

from fanout.orchestrator.deep_agent.toon import as_toon
from tests.unit.deep_agent.running import Run, call
from tests.unit.deep_agent.talking import recorder, says

AWKWARD = st.sampled_from(
    [
        "",
        " ",
        "null",
        "true",
        "42",
        "-1.5",
        "1e5",
        "05",
        "a,b",
        'say "x"',
        "- item",
        "a: b",
        "[2]{a,b}:",
        "\\n",
        "#",
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | AWKWARD
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
KEYS = st.lists(TEXT, min_size=1, max_size=4, unique=True)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = draw(KEYS)
    return draw(
        st.lists(st.fixed_dictionaries(dict.fromkeys(keys, VALUES)), min_size=1, max_size=5)
    )


@given(tables())
@settings(max_examples=300, deadline=None)
def test_flat_records_come_back_as_they_were(records: list[dict[str, Any]]) -> None:
    assert decode(as_toon(records)) == records


@given(
    st.lists(
        st.dictionaries(TEXT, VALUES | st.lists(VALUES, max_size=3), max_size=4),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=200, deadline=None)
def test_records_that_are_not_alike_or_not_flat_come_back_too(
    records: list[dict[str, Any]],
) -> None:
    assert decode(as_toon(records)) == records


async def test_the_model_gets_toon_and_the_session_keeps_the_list() -> None:
    todos = [{"content": f"step {number}, then rest", "status": "pending"} for number in range(3)]
    model = recorder(
        "m",
        [
            {"calls": [call("write_todos", todos=todos)]},
            {"calls": [call("read_todos")]},
            says("done"),
        ],
    )
    run = await Run(model).to_end()
    assert run.results[-1] == {"todos": todos}
    answers = [
        part.function_response.response
        for content in model.requests[-1].contents
        for part in content.parts or []
        if part.function_response and part.function_response.response
    ]
    shown = answers[-1]["todos"]
    assert shown.splitlines()[0] == "[3]{content,status}:"
    assert decode(shown) == todos
