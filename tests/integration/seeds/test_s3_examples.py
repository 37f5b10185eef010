"""S3: the plan, with the lists of the seed's examples; each text is as the seed has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fanout import SubAgentSpec
from fanout.orchestrator.deep_agent.tools import todos as plan
from tests.integration.scripts import call, says
from tests.integration.seeds.conftest import Example
from tests.unit.deep_agent.long_conversations import session_of
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import Recorder, recorder

WORKFLOW = """
# Agent creates initial plan
write_todos([
    {"content": "Explore repository structure", "status": "in_progress"},
    {"content": "Analyze core modules", "status": "pending"},
    {"content": "Document findings", "status": "pending"}
])

# After completing first task
write_todos([
    {"content": "Explore repository structure", "status": "completed"},
    {"content": "Analyze core modules", "status": "in_progress"},
    {"content": "Document findings", "status": "pending"}
])

# Discovering a new task during execution
write_todos([
    {"content": "Explore repository structure", "status": "completed"},
    {"content": "Analyze core modules", "status": "completed"},
    {"content": "Test key functionality", "status": "in_progress"},
    {"content": "Document findings", "status": "pending"}
])
"""

FIRST_PLAN = """
write_todos([
    {"content": "Analyze current codebase structure", "status": "in_progress"},
    {"content": "Identify refactoring opportunities in each module", "status": "pending"},
    {"content": "Prioritize refactoring tasks by impact", "status": "pending"},
    {"content": "Create refactoring plan for first module", "status": "pending"},
    {"content": "Execute refactoring with tests", "status": "pending"},
    {"content": "Repeat for remaining modules", "status": "pending"},
    {"content": "Document changes and update documentation", "status": "pending"}
])
"""

TOOL_CALL = r"""
{
  "tool_calls": [
    {
      "id": "call_123",
      "type": "function",
      "function": {
        "name": "write_todos",
        "arguments": "{\"todos\": [{\"content\": \"Analyze codebase\", \"status\": \"in_progress\"}, {\"content\": \"Identify issues\", \"status\": \"pending\"}]}"
      }
    }
  ]
}
"""  # noqa: E501 - the seed's line

PARAMETERS = """
{
    "type": "object",
    "properties": {
      "todos": {
        "type": "array",
        "items": {
          "type": "object",
          "properties": {
            "content": {
              "type": "string",
              "description": "The content/description of the todo item."
            },
            "status": {
              "type": "string",
              "enum": ["pending", "in_progress", "completed"],
              "description": "The current status of the todo item."
            }
          },
          "required": ["content", "status"],
          "additionalProperties": false
        },
        "description": "List of todo items for tracking task progress."
      }
    },
    "required": ["todos"],
    "additionalProperties": false
}
"""

Lists = list[list[dict[str, str]]]


@pytest.fixture
def lists_of(example: Example) -> Callable[[str], Lists]:
    """Return the lists that an example writes."""

    def written(text: str) -> Lists:
        lists: Lists = []
        example(text, write_todos=lists.append)
        return lists

    return written


def planner(*replies: list[dict[str, Any]]) -> Recorder:
    """A model that makes these calls in each reply, and ends."""
    return recorder("planner", [*({"calls": calls} for calls in replies), says("done")])


def writes(*lists: Any) -> list[list[dict[str, Any]]]:
    """One reply for each list."""
    return [[call("write_todos", todos=todos)] for todos in lists]


def without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: without_descriptions(value)
            for key, value in schema.items()
            if key != "description" or not isinstance(value, str)
        }
    return schema


async def test_the_example_workflow_replaces_the_list_each_time_and_needs_no_advice(
    lists_of: Callable[[str], Lists],
) -> None:
    lists = lists_of(WORKFLOW)
    run = await Run(planner(*writes(*lists), [call("read_todos")])).to_end()

    assert run.results[:3] == [{"status": "success", "count": count} for count in (3, 3, 4)]
    assert run.results[3] == {"todos": lists[2]}
    assert (await session_of(run)).state["todos"] == lists[2]


async def test_the_plan_of_the_execution_flow_is_completed_step_by_step(
    lists_of: Callable[[str], Lists],
) -> None:
    (first,) = lists_of(FIRST_PLAN)
    statuses = [
        ["completed"] * done + ["in_progress"] + ["pending"] * (len(first) - done - 1)
        for done in range(len(first))
    ] + [["completed"] * len(first)]
    lists = [
        [{**step, "status": status} for step, status in zip(first, each, strict=True)]
        for each in statuses
    ]
    assert lists[0] == first
    run = await Run(planner(*writes(*lists))).to_end("Help me refactor this large codebase")

    assert run.results == [{"status": "success", "count": 7}] * 8
    state = (await session_of(run)).state
    assert {todo["status"] for todo in state["todos"]} == {"completed"}


async def test_the_models_tool_call_of_the_seed_is_taken() -> None:
    (made,) = json.loads(TOOL_CALL)["tool_calls"]
    arguments = json.loads(made["function"]["arguments"])
    run = await Run(planner([call(made["function"]["name"], **arguments)])).to_end()
    assert run.results == [{"status": "success", "count": 2}]


async def test_the_model_is_shown_the_seeds_schema() -> None:
    model = planner()
    await Run(model).to_end()
    tool = model.requests[0].tools_dict["write_todos"]
    declaration = tool._get_declaration()
    assert declaration is not None
    shown = without_descriptions(declaration.parameters_json_schema)
    assert shown == without_descriptions(json.loads(PARAMETERS))


@pytest.mark.parametrize(
    ("todos", "error"),
    [
        # 1. `todos` must be a list (not a single item)
        ({"content": "Analyze codebase", "status": "pending"}, "todos must be a list"),
        # 2. Each item must have `content` (string, non-empty)
        ([{"status": "pending"}], "Item 1 needs a non-empty content."),
        ([{"content": " ", "status": "pending"}], "Item 1 needs a non-empty content."),
        ([{"content": 7, "status": "pending"}], "Item 1 needs a non-empty content."),
        # 3. Each item must have `status` (exactly one of …)
        ([{"content": "a"}], "Item 1 needs a status out of pending, in_progress, completed."),
        ([{"content": "a", "status": "blocked"}], "Item 1 needs a status out of"),
    ],
)
async def test_a_malformed_list_is_refused_and_the_plan_stays(todos: Any, error: str) -> None:
    before = [{"content": "Analyze codebase", "status": "in_progress"}]
    run = await Run(planner(*writes(before, todos), [call("read_todos")])).to_end()

    refused, read = run.results[1:]
    assert refused["status"] == "error"
    assert error in refused["error"]
    assert read == {"todos": before}


@pytest.mark.parametrize(
    ("statuses", "advice"),
    [
        # 4. First task(s) should be `in_progress` when creating initial plan
        (["pending", "in_progress"], plan.LATER_STEP_FIRST),
        # 5. At least one task `in_progress` unless all are completed
        (["pending", "pending"], plan.NONE_IN_PROGRESS),
        (["completed", "pending"], plan.NONE_IN_PROGRESS),
        (["completed", "completed"], None),
        # "you can have multiple tasks in_progress at a time if they are not related"
        (["in_progress", "in_progress"], None),
    ],
)
async def test_a_rule_that_a_list_breaks_is_advice_and_the_list_is_taken(
    statuses: list[str], advice: str | None
) -> None:
    todos = [{"content": f"step {n}", "status": status} for n, status in enumerate(statuses)]
    run = await Run(planner(*writes(todos), [call("read_todos")])).to_end()

    written, read = run.results
    assert written["status"] == "success"
    assert written.get("advice") == ([advice] if advice else None)
    assert read == {"todos": todos}


async def test_a_completed_task_is_not_changed_again_without_advice() -> None:
    lists = [
        [{"content": "a", "status": "completed"}, {"content": "b", "status": "in_progress"}],
        [{"content": "a", "status": "in_progress"}, {"content": "b", "status": "in_progress"}],
    ]
    run = await Run(planner(*writes(*lists))).to_end()
    assert run.results[1]["advice"] == [plan.REOPENED]


async def test_two_lists_in_parallel_are_both_refused() -> None:
    todos = [{"content": "a", "status": "in_progress"}]
    twice = [call("write_todos", todos=todos), call("write_todos", todos=todos)]
    run = await Run(planner(twice, [call("read_todos")])).to_end()

    assert [result.get("status") for result in run.results] == ["error", "error", None]
    assert run.results[2] == {"todos": []}


async def test_a_plan_over_the_limit_is_refused_with_the_limit() -> None:
    # The seed has no limit; see docs/seed-differences.md.
    many = [{"content": f"step {n}", "status": "in_progress"} for n in range(plan.MAX_TODOS + 1)]
    run = await Run(planner(*writes(many, many[:-1]))).to_end()
    assert run.results[0]["error"] == "A plan may have 100 steps, not 101. Join some."
    assert run.results[1]["count"] == plan.MAX_TODOS


async def test_sub_agents_plan_too_each_for_itself() -> None:
    mine = [{"content": "delegate", "status": "in_progress"}]
    its = [{"content": "look", "status": "in_progress"}]
    child = recorder(
        "child", [{"calls": writes(its)[0]}, {"calls": [call("read_todos")]}, says("x")]
    )
    specification = SubAgentSpec(name="child", description="Looks.", model=child)
    model = planner(*writes(mine), [call("task", description="look", subagent_type="child")])
    run = await Run(model, subagents=[specification]).to_end()

    assert run.results[1]["status"] == "success"
    assert (await session_of(run)).state["todos"] == mine
    (read,) = [
        part.function_response.response
        for part in child.requests[-1].contents[-1].parts or []
        if part.function_response
    ]
    assert read == {"todos": its}


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        ("requires 3 or more distinct steps or actions", "three steps or more"),
        ("User provides multiple tasks", "several tasks at once"),
        ("When the user directly asks you to use the todo list", "asked for a plan"),
        ("The plan may need future revisions", "what you find decides what comes next"),
        ("There is only a single, straightforward task", "Not for one simple task"),
        ("The task is purely conversational or informational", "a question or a talk"),
        ("Mark it as in_progress BEFORE beginning work", "in_progress before you begin it"),
        ("Mark tasks complete IMMEDIATELY after finishing", "completed right after it is done"),
        ("don't batch completions", "not several together later"),
        ("mark your first task (or tasks) as in_progress immediately", "in_progress at once"),
        (
            "Unless all tasks are completed, at least one",
            "until all are completed, at least one is",
        ),
        ("Complete current tasks before starting new ones", "Finish what is in_progress before"),
        ("multiple tasks in_progress if not related", "may be in_progress together"),
        ("adding new tasks that are necessary", "Add what you discover"),
        ("Remove tasks that are no longer relevant", "drop what is no longer needed"),
        ("Don't change previously completed tasks", "leave completed steps as they are"),
        ("ONLY mark as completed when FULLY accomplished", "Completed means done in full"),
        ("When blocked, create a new task", "add a step that says what has to be resolved"),
        ("Create specific, actionable items", "Break the work into specific steps"),
        ("never be called multiple times in parallel", "at most once in a reply"),
    ],
)
def test_the_tools_description_has_each_rule_of_the_seeds_in_its_own_words(
    seed: str, words: str
) -> None:
    (write_todos, _) = plan.TodoTools().tools()
    assert words in " ".join(write_todos.description.split()), seed


async def test_the_instruction_has_the_rules_that_every_plan_needs() -> None:
    model = planner()
    await Run(model, instruction="Be brief.").to_end()
    shown = str(model.requests[0].config.system_instruction)
    assert "Be brief." in shown, "they are added to the agent's own"
    for words in ("keep a plan with write_todos", "Never call write_todos twice in one reply"):
        assert words in shown
    without = planner()
    await Run(without, built_in_tools=["read_file"]).to_end()
    assert "write_todos" not in str(without.requests[0].config.system_instruction)
