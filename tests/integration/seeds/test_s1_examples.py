"""S1: its examples, each text as the seed has it unless a comment says otherwise.

Its tools `spawn_subagent` and `spawn_parallel_subagents` are `task` and `tasks` here: in the
examples they are functions that make these calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from fanout import SubAgentLimits, SubAgentSpec
from fanout.backends import FilesystemBackend
from fanout.orchestrator.deep_agent import MethodTool
from fanout.orchestrator.deep_agent.context.compaction import context_stats, context_summary
from fanout.orchestrator.deep_agent.models.scripted_model import Script, ScriptedModel
from fanout.orchestrator.deep_agent.toon import with_tables
from fanout.orchestrator.delegation.calls import JobTask
from fanout.orchestrator.delegation.task_tools import JobTaskTools
from fanout.orchestrator.delegation.tool_texts import OF_JOB
from tests.integration.scripts import call, says
from tests.integration.seeds.conftest import Example
from tests.unit.deep_agent.long_conversations import (
    GOAL,
    config,
    look,
    resilient,
    said,
    session_of,
    steps,
    summaries,
    watched,
)
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import first_message, recorder, seen
from tests.unit.deep_agent.test_subagents import names

PARALLEL_TEST_WRITING = """
spawn_parallel_subagents([
    {"description": "Write unit tests for auth module", "agent_type": "qa-engineer"},
    {"description": "Write unit tests for payment module", "agent_type": "qa-engineer"}
])
"""

CODE_REVIEW = """
spawn_subagent(
    "Review code quality and identify issues",
    agent_type="code-reviewer"
)
"""

FIXES = """
spawn_parallel_subagents([
    {"description": "Fix issue 1: ...", "agent_type": "backend-developer"},
    {"description": "Fix issue 2: ...", "agent_type": "backend-developer"}
])
"""

DOCSTRING = """
tasks = [
    {"description": "Write unit tests for auth module", "agent_type": "qa-engineer"},
    {"description": "Refactor database queries", "agent_type": "backend-developer"}
]
"""

RESULT_FIELDS = {"task_id", "success", "summary", "files_modified", "execution_time"}
"""Of the seed's `SubAgentResult`, beside `error`."""

SUMMARY_FIELDS = {
    *("original_token_count", "summarized_token_count", "messages_summarized"),
    *("key_decisions", "files_modified"),
}
"""Of the seed's `ContextSummary`, beside its `content`."""

STATISTICS = {"total_tokens", "message_count", "summary_count", "tokens_saved", "threshold"}
"""What the seed's `get_stats` returns."""

TASKS_AS_JSON = """
{"tasks": [
  {"id": 1, "title": "Fix bug", "status": "done"},
  {"id": 2, "title": "Add tests", "status": "pending"}
]}
"""

TASKS_AS_TOON = """\
tasks[2]{id,title,status}:
  1,Fix bug,done
  2,Add tests,pending"""


@pytest.fixture
def calls_of(example: Example) -> Callable[[str], list[dict[str, Any]]]:
    """Return the calls that an example makes."""

    def made(text: str) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def spawn_subagent(description: str, **more: Any) -> None:
            calls.append(call("task", description=description, **more))

        def spawn_parallel_subagents(tasks: list[dict[str, Any]]) -> None:
            calls.append(call("tasks", tasks=tasks))

        example(
            text, spawn_subagent=spawn_subagent, spawn_parallel_subagents=spawn_parallel_subagents
        )
        return calls

    return made


def parent(*rounds: list[dict[str, Any]]) -> Any:
    return recorder("parent", [*({"calls": calls} for calls in rounds), says("done")])


def agent(name: str, *replies: dict[str, Any]) -> SubAgentSpec:
    """A sub-agent that gives the same replies to each of its tasks."""
    return SubAgentSpec(name=name, description=f"A {name}.", model=recorder(name, [*replies]))


def agent_by_task(name: str, **replies: list[dict[str, Any]]) -> SubAgentSpec:
    """A sub-agent whose replies depend on a word of its task."""
    conversations = [{"when": word, "replies": given} for word, given in replies.items()]
    script = Script.model_validate({"conversations": conversations})
    model = ScriptedModel(script=script, agent_name=name)
    return SubAgentSpec(name=name, description=f"A {name}.", model=model)


def writes(path: str) -> dict[str, Any]:
    return {"calls": [call("write_file", file_path=path, content="x = 1\n")]}


async def test_example_1_two_sub_agents_write_tests_at_the_same_time(
    calls_of: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    both = asyncio.Barrier(2)

    async def meet() -> str:
        """Wait until the other sub-agent is here."""
        await both.wait()
        return "met"

    meets = {"calls": [call("meet")]}
    engineer = agent_by_task(
        "qa-engineer",
        auth=[meets, writes("/test_auth.py"), says("## Summary\nFive tests for auth.")],
        payment=[meets, writes("/test_payment.py"), says("## Summary\nSix for payment.")],
    )
    engineer["tools"] = [meet]
    engineer["built_in_tools"] = ["write_file"]
    run = await Run(
        parent(calls_of(PARALLEL_TEST_WRITING)),
        subagents=[engineer],
        backend=FilesystemBackend(root_dir=str(tmp_path)),
    ).to_end()

    (combined,) = run.results
    assert (combined["success"], combined["summary"]) == (True, "Completed 2 of 2 tasks.")
    first, second = combined["results"]
    assert first.keys() >= RESULT_FIELDS
    assert [first["summary"], second["summary"]] == ["Five tests for auth.", "Six for payment."]
    assert first["files_modified"] == [{"path": "/test_auth.py", "change": "added"}]
    assert first["execution_time"] > 0
    assert "error" not in first
    assert names(tmp_path) == ["test_auth.py", "test_payment.py"]


async def test_example_2_a_review_and_then_the_fixes(
    calls_of: Callable[[str], list[dict[str, Any]]],
) -> None:
    reviewer = agent("code-reviewer", says("Long thoughts.\n\n## Summary\nTwo issues: 1 and 2."))
    developer = agent("backend-developer", says("Fixed."))
    model = parent(calls_of(CODE_REVIEW), calls_of(FIXES))
    run = await Run(model, subagents=[reviewer, developer]).to_end("Review the PR and fix issues")

    review, fixes = run.results
    assert review["summary"] == "Two issues: 1 and 2."
    assert "Long thoughts" not in seen(model), "only the summary returns to the parent"
    assert [one["summary"] for one in fixes["results"]] == ["Fixed.", "Fixed."]
    assert "Review the PR" not in seen(reviewer["model"]), "its context is its own"


async def test_the_tools_own_example_with_context_reaches_each_agent_by_its_type(
    example: Example,
) -> None:
    tasks = example(DOCSTRING)["tasks"]
    tasks[1]["context"] = "The slow ones are in orders.py."
    engineer = agent("qa-engineer", says("Tested."))
    developer = agent("backend-developer", says("Refactored."))
    run = await Run(parent([call("tasks", tasks=tasks)]), subagents=[engineer, developer]).to_end()

    assert [one["summary"] for one in run.results[0]["results"]] == ["Tested.", "Refactored."]
    assert first_message(engineer["model"]) == "Write unit tests for auth module"
    assert first_message(developer["model"]) == (
        "Refactor database queries\n\n<context>\nThe slow ones are in orders.py.\n</context>"
    )


def test_a_task_that_becomes_a_job_has_the_seeds_keys_too(example: Example) -> None:
    tasks = example(DOCSTRING)["tasks"]
    agents = ("qa-engineer", "backend-developer")
    made = [JobTask.of_item(item, number, agents) for number, item in enumerate(tasks)]
    assert [task.subagent_type for task in made] == ["qa-engineer", "backend-developer"]


@pytest.mark.parametrize("name", ["task", "start_task"])
def test_the_tools_whose_tasks_are_jobs_take_the_seeds_argument_and_declare_ours(
    name: str,
) -> None:
    nothing: Any = None
    tools: list[Any] = JobTaskTools(nothing, OF_JOB, MethodTool).tools("task", {})
    tool = next(tool for tool in tools if tool.name == name)
    taken = tool._checked({"description": "review", "agent_type": "code-reviewer"})
    assert taken["subagent_type"] == "code-reviewer"
    declared = tool._get_declaration().parameters_json_schema["properties"]
    assert "subagent_type" in declared
    assert "agent_type" not in declared


async def test_failed_and_timed_out_sub_agents_do_not_fail_the_others() -> None:
    agents = [
        agent("quick", says("Done.")),
        agent("broken", {"raise": "a bug"}),
        agent("slow", says("late", delay_seconds=60)),
    ]
    tasks: list[dict[str, Any]] = [
        {"description": "do it", "agent_type": name} for name in ("quick", "broken", "nobody")
    ]
    tasks.append({"description": "do it", "agent_type": "slow", "timeout_seconds": 0.5})
    run = await Run(parent([call("tasks", tasks=tasks)]), subagents=agents).to_end()

    (combined,) = run.results
    assert (combined["status"], combined["success"]) == ("partial", False)
    assert combined["summary"] == "Completed 1 of 4 tasks."
    quick, broken, unknown, slow = combined["results"]
    assert (quick["success"], quick["summary"]) == (True, "Done.")
    for failed in (broken, unknown, slow):
        assert failed.keys() >= {*RESULT_FIELDS, "error"}
        assert (failed["success"], failed["summary"], failed["files_modified"]) == (False, "", [])
    assert "nobody" in unknown["error"]
    # The seed's "Timeout exceeded" does not say how long it was.
    assert slow["error"] == "It was stopped after 0.5 seconds."
    assert slow["execution_time"] >= 0.5
    assert run.text == "done", "the parent goes on"


def test_the_seeds_time_limits_are_the_defaults() -> None:
    limits = SubAgentLimits()
    assert (limits.timeout_seconds, limits.tasks_timeout_seconds) == (300, 600)


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        ("I looked.\n\n## Summary\nThree issues.", "Three issues."),
        # The seed takes the last paragraph, which is seldom all that was found.
        ("Three issues.\n\nAll are small.", "Three issues.\n\nAll are small."),
    ],
)
async def test_a_summary_is_what_is_under_its_heading_or_the_whole_message(
    message: str, summary: str
) -> None:
    run = await Run(
        parent([call("task", description="look", agent_type="reviewer")]),
        subagents=[agent("reviewer", says(message))],
    ).to_end()
    assert run.results[0]["summary"] == summary


async def test_a_conversation_over_its_threshold_is_summarized_with_the_seeds_statistics() -> None:
    decides = {
        "text": "Two designs are possible. We will use Redis for the queue.",
        "calls": [call("write_file", file_path="/queue.py", content="x = 1\n")],
    }
    model = watched([decides, *steps(30)])
    # The seed's are 150,000 tokens and 10 messages; a thirtieth of them shows the same.
    by_tokens = config(trigger=("tokens", 5_000), keep=("messages", 10), window_tokens=100_000)
    run = await Run(resilient(model), tools=[look], summarization=by_tokens).to_end(GOAL)

    session = await session_of(run)
    made = summaries(session)
    assert made, "no summary was triggered"
    first = context_summary(made[0])
    assert first is not None
    assert first.metadata().keys() >= SUMMARY_FIELDS
    assert first.original_token_count > first.summarized_token_count > 0
    assert first.messages_summarized > 0
    assert "We will use Redis for the queue." in first.key_decisions
    assert [path.removeprefix("/") for path in first.files_modified] == ["queue.py"]

    stats = context_stats(session.events)
    assert vars(stats).keys() >= STATISTICS
    assert stats.threshold == 5_000
    assert stats.summary_count == len(made)
    assert stats.tokens_saved == sum(
        found.tokens_saved for event in made if (found := context_summary(event)) is not None
    )
    assert 10 <= stats.message_count < len(session.events), "the newest ones are kept"
    assert said(model.turns[-1][0]).startswith(GOAL), "the task is in each request, word for word"
    assert "Some modules are renamed." in said(model.turns[-1][0])


async def test_a_conversation_below_its_threshold_is_left_alone() -> None:
    model = watched(steps(3))
    run = await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)

    session = await session_of(run)
    assert summaries(session) == []
    stats = context_stats(session.events)
    assert (stats.summary_count, stats.tokens_saved) == (0, 0)
    assert stats.total_tokens > 0


def as_the_model_sees(response: dict[str, Any]) -> dict[str, Any]:
    """The result of a tool with tables, in a request."""
    answer = types.FunctionResponse(id="1", name="list_tasks", response=response)
    content = types.Content(role="user", parts=[types.Part(function_response=answer)])
    (part,) = with_tables(content, {"list_tasks"}).parts or []
    assert part.function_response is not None
    return dict(part.function_response.response or {})


def test_the_seeds_table_is_its_toon_text() -> None:
    shown = as_the_model_sees(json.loads(TASKS_AS_JSON))
    # The name of the list is the key of the result; the text begins after it.
    assert f"tasks{shown['tasks']}" == TASKS_AS_TOON


@pytest.mark.parametrize(
    "response",
    [
        {"tasks": {"id": 1, "title": "Fix bug"}},
        {"tasks": [{"id": 1, "title": "Fix bug"}]},
        {"tasks": []},
        {"tasks": ["Fix bug", "Add tests"]},
    ],
    ids=["single object", "single record", "empty list", "list of texts"],
)
def test_what_is_no_table_stays_json(response: dict[str, Any]) -> None:
    assert as_the_model_sees(response) == response


def test_a_queue_of_ten_tasks_saves_what_the_seed_estimates() -> None:
    queue = [
        {"id": f"a1b2c3d{n}", "type": "bug_fix", "title": f"Fix the bug {n}", "priority": 3}
        for n in range(10)
    ]
    shown = as_the_model_sees({"queue": queue})["queue"]
    assert 1 - len(shown) / len(json.dumps(queue)) > 0.45
