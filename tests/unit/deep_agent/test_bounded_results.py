"""What an agent in this process reads of its sub-agents stays within a limit, however much they say."""

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
from fanout.orchestrator.deep_agent.models.tokens import count_message_tokens
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
    run = await Run(parent, subagents=[talker()]).to_end()

    print(parent.rises)
    assert max(parent.rises) <= 8_000
    assert len(parent.rises) == len(replies)
    print(str(run.results[-1])[:3000])
