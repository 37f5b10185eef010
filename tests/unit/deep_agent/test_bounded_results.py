"""What an agent in this process reads of its sub-agents has a limit, however much they say."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import Field

from fanout.orchestrator.deep_agent import SubAgentSpec
from fanout.orchestrator.deep_agent.context import eviction
from fanout.orchestrator.deep_agent.delegation.bounded_results import Answer, bounded
from fanout.orchestrator.deep_agent.models.tokens import characters, count_message_tokens
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.running import Run, scripted

SUMMARY = "The first line.\n" + "word " * 797
assert len(SUMMARY) > 4_000


class Parent(BaseLlm):
    """A model that gives these replies and keeps what it is asked."""

    model: str = "scripted:parent"
    replies: Sequence[dict[str, Any]]
    requests: list[list[types.Content]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Give the next reply."""
        del stream
        reply = self.replies[len(self.requests)]
        self.requests.append([*llm_request.contents])
        parts = [
            types.Part(function_call=types.FunctionCall(name=one["tool"], args=one["args"]))
            for one in reply.get("calls", ())
        ]
        yield LlmResponse(
            content=types.Content(role="model", parts=parts or [types.Part(text=reply["text"])])
        )

    @property
    def rises(self) -> list[int]:
        """By how many tokens the results raised each request, beside the model's own calls."""
        return [
            sum(count_message_tokens(one) for one in later[len(earlier) :] if one.role == "user")
            for earlier, later in zip(self.requests, self.requests[1:], strict=False)
        ]


def talker(text: str = SUMMARY) -> SubAgentSpec:
    return SubAgentSpec(name="talker", description="Talks.", model=scripted([says(text)], "talker"))


def items(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"description": f"talk {number}", "subagent_type": "talker"}
        for number in range(start, start + count)
    ]


def at_once(count: int, start: int = 0) -> dict[str, Any]:
    return calls(*(call("task", **item) for item in items(count, start)))


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([at_once(100)], id="100 calls of task"),
        pytest.param([at_once(20, 20 * turn) for turn in range(3)], id="in three turns"),
        pytest.param([calls(call("tasks", tasks=items(100)))], id="tasks with 100"),
        pytest.param(
            [calls(call("tasks", tasks=items(1_000)))],
            id="tasks with 1,000",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_the_results_of_many_tasks_raise_the_next_request_by_no_more_than_the_limit(
    replies: list[dict[str, Any]],
) -> None:
    parent = Parent(replies=[*replies, says("done")])
    await Run(parent, subagents=[talker()]).to_end()

    print(parent.rises)
    assert max(parent.rises) <= 8_000
    assert len(parent.rises) == len(replies)


async def test_each_call_says_how_its_task_stands_and_the_last_has_the_table() -> None:
    parent = Parent(replies=[at_once(12), says("done")])
    *others, last = (await Run(parent, subagents=[talker()]).to_end()).results

    assert [one.keys() for one in others] == [{"status", "task_id"}] * 11
    assert last["results"].startswith("[12]{task,agent,status,line,files,merge,cost_usd}:\n")
    assert [one["task_id"] for one in (*others, last)] == [
        row.split(",")[0].strip() for row in last["results"].splitlines()[1:]
    ]


async def test_results_that_fit_stay_whole_and_are_files_too() -> None:
    look = calls(call("grep", pattern="talked", path="/task_results", output_mode="content"))
    parent = Parent(replies=[at_once(3), look, says("done")])
    run = await Run(parent, subagents=[talker("I talked.")]).to_end()

    *told, found = run.results
    assert [one["summary"] for one in told] == ["I talked."] * 3
    for one in told:
        assert f"/task_results/{one['task_id']}.md" in found["result"]


async def test_a_task_that_says_too_much_alone_is_read_in_parts() -> None:
    reply = calls(call("task", description="talk", subagent_type="talker"))
    parent = Parent(replies=[reply, says("done")])
    (told,) = (await Run(parent, subagents=[talker(SUMMARY * 10)]).to_end()).results

    assert parent.rises[0] <= 8_000
    assert told["summary_begins"].startswith("The first line.\nword")
    assert "/task_results/ID.md" in told["message"]


async def test_a_limit_below_what_ids_need_is_refused() -> None:
    with pytest.raises(ValueError, match="max_result_tokens has to be 2,500 or more"):
        Run(Parent(replies=[]), max_result_tokens=100)


def record(number: int, **more: Any) -> dict[str, Any]:
    return {
        "status": "success",
        "success": True,
        "task_id": f"t{number}",
        "summary": SUMMARY,
        "files_modified": [{"path": "a", "change": "modified"}],
        "merge": {"applied": 1, "conflicts": []},
        "usage": {"cost_usd": 0.25},
        **more,
    }


def rows(response: dict[str, Any]) -> list[str]:
    return [line.strip() for line in response["results"].splitlines()[1:]]


def test_failures_and_conflicts_come_first_and_what_does_not_fit_is_counted() -> None:
    conflict = {"applied": 0, "conflicts": [{"path": "b.py", "reason": "both"}]}
    records = [record(number) for number in range(1_000)]
    records[998] |= {"merge": conflict}
    records[999] |= {"status": "error", "success": False, "error": "broke\nhere", "summary": ""}
    whole = {"status": "partial", "success": False, "summary": "Completed.", "results": records}
    (said,) = bounded([Answer("tasks", whole)], 8_000, "")

    first, second, third, *_ = rows(said)
    assert first == "t999,null,error,broke here,1,1 applied,0.25"
    assert second == 't998,null,success,The first line.,1,"0 applied; 1 not: b.py",0.25'
    assert third.startswith("t0,")
    assert said["not_shown"] == {"success": 1_000 - len(rows(said))}
    assert 20_000 < characters(said) <= 32_000


@pytest.mark.parametrize("limit", [2_500, 8_000])
@pytest.mark.parametrize("text", ["x" * 5_000, 'a,\n"b"' * 900, "x" * 190])
def test_no_mix_of_answers_is_longer_than_the_limit(limit: int, text: str) -> None:
    long_id = "i" * 26
    names = [f"{number:026}" for number in range(1_000)]
    tasks = [
        {"task_id": name, "agent": "a", "state": "running", "last_event": text} for name in names
    ]
    failed = record(1, task_id="", error=text, summary="", status="error", success=False)
    answers = [
        *(Answer("task", record(1, task_id=long_id, summary=text, note=text)) for _ in range(60)),
        *(Answer("task", failed) for _ in range(60)),
        Answer("wait_tasks", {"status": "success", "results": [record(2)], "unfinished": names}),
        Answer("list_tasks", {"status": "success", "tasks": tasks}),
        Answer("check_task", {"status": "error", "task_id": long_id, "error": text}),
    ]
    said = bounded(answers, limit, "how")

    assert sum(len(one.tool) for one in answers) + sum(map(characters, said)) <= limit * 4
    assert said[120]["status"] == "success"
    assert said[-2]["not_shown"]["running"] > 900
    assert len(said[-1]["unfinished"]) + said[-1]["unfinished_not_shown"] == 1_000


def test_what_has_not_ended_or_failed_comes_first_in_a_list_of_tasks() -> None:
    states = ["succeeded"] * 900 + ["running", "failed"]
    tasks = [
        {"task_id": f"{number:026}", "agent": "a", "state": state, "last_event": "word " * 20}
        for number, state in enumerate(states)
    ]
    (said,) = bounded([Answer("list_tasks", {"status": "success", "tasks": tasks})], 8_000, "")

    assert [row.split(",")[2] for row in said["tasks"].splitlines()[1:4]] == [
        *("failed", "running", "succeeded"),
    ]
    assert said["not_shown"]["succeeded"] > 500


async def test_the_oldest_whole_results_are_deleted_when_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eviction, "MAX_KEPT_BYTES", 40_000)
    looks = calls(call("grep", pattern="was deleted", path="/task_results", output_mode="count"))
    parent = Parent(replies=[at_once(7), at_once(7, 7), looks, says("done")])
    run = await Run(parent, subagents=[talker()]).to_end()

    assert 2 <= run.results[-1]["result"].count("/task_results/") <= 7
