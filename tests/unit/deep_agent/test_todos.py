"""The rules of the plan: what is refused, what is advised, what the model is told of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fanout.orchestrator.deep_agent.prompts import PLAN
from fanout.orchestrator.deep_agent.tools import todos as plan
from fanout.orchestrator.deep_agent.tools.todos import TodoTools
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

Steps = list[tuple[str, str]]

P, I, C = "pending", "in_progress", "completed"  # noqa: E741 - as a table of statuses reads


def steps(*made: tuple[str, str]) -> list[dict[str, str]]:
    return [{"content": content, "status": status} for content, status in made]


async def advised(*lists: Steps) -> list[str]:
    """What the last of several lists is advised."""
    replies: list[dict[str, Any]] = [
        {"calls": [call("write_todos", todos=steps(*made))]} for made in lists
    ]
    run = await Run(scripted([*replies, {"text": "x"}])).to_end()
    assert [result["status"] for result in run.results] == ["success"] * len(lists)
    assert run.results[-1]["count"] == len(lists[-1])
    advice: list[str] = run.results[-1].get("advice", [])
    return advice


@pytest.mark.parametrize(
    ("before", "after", "advice"),
    [
        # When creating a list, the first step is in progress.
        ([], [("a", I), ("b", P)], []),
        ([], [("a", P), ("b", P)], [plan.NONE_IN_PROGRESS]),
        ([], [("a", P), ("b", I)], [plan.LATER_STEP_FIRST]),
        # At least one is, unless all are completed; several may be, when they are independent.
        ([("a", I), ("b", P)], [("a", C), ("b", P)], [plan.NONE_IN_PROGRESS]),
        ([("a", I), ("b", P)], [("a", C), ("b", I)], []),
        ([("a", I)], [("a", C)], []),
        ([], [("a", I), ("b", I), ("c", P)], []),
        # Several updates at once are good; independent steps may also be completed together.
        ([("a", I), ("b", I)], [("a", C), ("b", C), ("c", I)], []),
        # Mark a step in progress before its work begins.
        ([("a", I), ("b", P)], [("a", C), ("b", C)], [plan.NEVER_BEGUN]),
        # A blocked step stays in progress, with a new step for what blocks it.
        ([("a", I), ("b", P)], [("a", I), ("unblock a", P), ("b", P)], []),
        ([("a", I), ("b", P)], [("a", P), ("b", I)], [plan.PUT_BACK]),
        # Later steps may go when they are no longer needed; completed ones stay as they are.
        ([("a", I), ("b", P)], [("a", I)], []),
        ([("a", C), ("b", I)], [("b", I)], [plan.COMPLETED_GONE]),
        ([("a", C), ("b", I)], [("a", I), ("b", I)], [plan.REOPENED]),
        # The plan of the next piece of work replaces one that is done.
        ([("a", C), ("b", C)], [("c", I)], []),
        ([("a", C), ("b", C)], [("c", P), ("d", I)], [plan.LATER_STEP_FIRST]),
        ([], [("a", I), ("a", P)], [plan.SAME_WORDS]),
        ([("a", I)], [], []),
    ],
)
async def test_a_list_is_taken_and_advised(before: Steps, after: Steps, advice: list[str]) -> None:
    assert await advised(*([before] if before else []), after) == advice


@pytest.mark.parametrize(
    ("todos", "words"),
    [
        ("buy milk", "must be a list"),
        ({"content": "a", "status": P}, "must be a list"),
        ([{"content": "  ", "status": P}], "non-empty content"),
        ([{"content": "a", "status": "perhaps"}], "pending, in_progress, completed"),
        ([{"content": "a", "status": 3}], "pending, in_progress, completed"),
        ([{"content": "a"}], "needs a status"),
        ([{"status": P}], "non-empty content"),
    ],
)
async def test_a_list_against_the_schema_is_refused_and_the_old_one_stays(
    todos: Any, words: str
) -> None:
    made = [
        call("write_todos", todos=steps(("kept", I))),
        call("write_todos", todos=todos),
        call("read_todos"),
    ]
    replies: list[dict[str, Any]] = [*({"calls": [each]} for each in made), {"text": "x"}]
    run = await Run(scripted(replies)).to_end()
    assert words in run.results[1]["error"]
    assert run.results[2]["todos"] == steps(("kept", I))


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ({"content": "a", "status": I, "activeForm": "Doing a"}, ("a", I)),  # Claude Code
        ({"content": "a", "status": P, "priority": "high", "id": "1"}, ("a", P)),  # OpenCode
        ({"step": "a", "status": C}, ("a", C)),  # Codex
        ({"description": "a", "status": I}, ("a", I)),  # Gemini CLI
        ({"content": "a", "status": "In Progress", "notes": {"deep": [1]}}, ("a", I)),
        ({"content": "a", "status": "in-progress"}, ("a", I)),
        ({"content": "a", "status": "DONE"}, ("a", C)),
        ({"content": "a", "status": "todo"}, ("a", P)),
        ({"content": "a", "status": "✅ completed."}, ("a", C)),
        ({"content": "a", "status": "[x]"}, ("a", C)),
        ({"subject": "a", "description": "more", "status": P}, ("a", P)),  # Claude Code's tasks
        ({"title": "a", "status": "deleted"}, None),
        ({"content": "a", "status": "cancelled"}, None),
    ],
)
async def test_a_step_in_the_form_of_another_harness_is_taken(
    written: dict[str, Any], taken: tuple[str, str] | None
) -> None:
    made = [call("write_todos", todos=[written]), call("read_todos")]
    replies: list[dict[str, Any]] = [*({"calls": [each]} for each in made), {"text": "x"}]
    run = await Run(scripted(replies)).to_end()
    assert run.results[0]["status"] == "success"
    assert run.results[1]["todos"] == (steps(taken) if taken else [])


async def test_a_list_written_as_a_text_of_json_is_taken() -> None:
    made = [call("write_todos", todos=json.dumps(steps(("a", I)))), call("read_todos")]
    replies: list[dict[str, Any]] = [*({"calls": [each]} for each in made), {"text": "x"}]
    run = await Run(scripted(replies)).to_end()
    assert run.results[0]["status"] == "success"
    assert run.results[1]["todos"] == steps(("a", I))


def declared(name: str) -> tuple[str, dict[str, Any]]:
    tool = next(tool for tool in TodoTools().tools() if tool.name == name)
    declaration = tool._get_declaration()
    assert declaration is not None
    schema = declaration.parameters_json_schema
    assert isinstance(schema, dict)
    return tool.description, schema


def test_the_schema_that_the_model_gets_allows_no_other_keys() -> None:
    _, schema = declared("write_todos")
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["todos"]
    items = schema["properties"]["todos"]["items"]
    assert items["additionalProperties"] is False
    assert items["required"] == ["content", "status"]
    assert items["properties"]["status"]["enum"] == [P, I, C]
    assert declared("read_todos")[1]["additionalProperties"] is False


@pytest.mark.parametrize(
    "rule",
    [
        "three steps or more",  # when to use it
        "several tasks at once",
        "asked for a plan",
        "what you find decides what comes next",
        "Not for one simple task, a question or a talk",  # when not
        "Mark the first step in_progress at once",  # the statuses
        "until all are completed, at least one is",
        "completed right after it is done, not several together",
        "Finish what is in_progress before you begin more",
        "do not depend on each other may be in_progress together",
        "Add what you discover, drop what is no longer needed",
        "leave completed steps as they are",
        "no error is open, no part is missing, no check fails",  # the requirements for completion
        "nothing that was needed is still to be found",
        "blocked stays in_progress: add a step that says what has to be resolved",
        "Break the work into specific steps, each small enough",  # the breakdown
        "at most once in a reply",
    ],
)
def test_the_tool_tells_the_rule(rule: str) -> None:
    assert rule in re.sub(r"\s+", " ", declared("write_todos")[0])


def test_the_instruction_is_short_and_says_when_to_plan() -> None:
    assert "three steps or more" in PLAN
    assert "twice in one reply" in PLAN
    assert len(PLAN) < 500
