"""Lists of records reach the model as TOON, and nothing is lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from toon_format import decode

from fanout.orchestrator.deep_agent.toon import as_toon, with_tables
from tests.integration.scripts import call, says
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import recorder

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


def job_result(number: int, files: int) -> dict[str, Any]:
    """One result of `tasks`, with all its keys."""
    return {
        "status": "success",
        "task_id": f"01K{number:023}",
        "summary": f"Read chapter {number} and wrote what it says, in {files} files.",
        "files_modified": [
            {"path": f"notes/chapter-{number}-{name}.md", "change": "added"}
            for name in range(files)
        ],
        "merge": {"applied": files, "conflicts": []},
        "execution_time": 12.5,
        "usage": {"model_calls": 5, "input_tokens": 9000, "output_tokens": 800, "tool_calls": 4},
    }


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(value: Any, tool: str = "tasks") -> Any:
    answer = types.FunctionResponse(id="1", name=tool, response={"results": value})
    content = types.Content(role="user", parts=[types.Part(function_response=answer)])
    (part,) = with_tables(content, {"tasks"}).parts or []
    assert part.function_response is not None
    return (part.function_response.response or {})["results"]


TODOS = [{"content": f"step {number}", "status": "pending"} for number in range(10)]
JOBS = [
    {"job_id": f"01K{number:023}", "agent": "writer", "state": "running", "description": "Write."}
    for number in range(20)
]


@pytest.mark.parametrize(
    ("records", "share"),
    [
        (TODOS, 0.6),
        (JOBS, 0.7),
        ([job_result(number, 1) for number in range(10)], 0.75),
        ([job_result(number, 20) for number in range(3)], 0.8),
        ([{"a": 1}, {"b": [1, {"c": 2}]}], 1.0),
    ],
    ids=["todos", "jobs", "tasks", "tasks with many files", "unlike records"],
)
def test_a_list_is_never_longer_than_compact_json(
    records: list[dict[str, Any]], share: float
) -> None:
    assert len(compact(shown(records))) <= share * len(compact(records))


def test_results_of_tasks_are_a_table_with_a_column_for_each_field_of_an_object() -> None:
    few = [job_result(number, 1) for number in range(3)]
    del few[1]["merge"]
    rows = decode(shown(few))
    assert [row["summary"] for row in rows] == [row["summary"] for row in few]
    assert [row["usage.input_tokens"] for row in rows] == [9000] * 3
    assert json.loads(rows[0]["files_modified"]) == few[0]["files_modified"]
    assert rows[0]["merge.applied"] == 1
    assert rows[1]["merge.applied"] is None


def test_results_of_tasks_with_long_lists_have_these_as_toon() -> None:
    many = [job_result(number, 20) for number in range(3)]
    found = shown(many)
    assert [row["summary"] for row in found] == [row["summary"] for row in many]
    assert found[0]["files_modified"].startswith("[20]{path,change}:")
    assert decode(found[0]["files_modified"]) == many[0]["files_modified"]


@given(st.lists(st.dictionaries(TEXT, VALUES | st.lists(VALUES, max_size=3), max_size=4)))
@settings(max_examples=200, deadline=None)
def test_whatever_the_list_it_is_not_longer(records: list[dict[str, Any]]) -> None:
    assert len(compact(shown(records))) <= len(compact(records))
