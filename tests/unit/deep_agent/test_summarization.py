"""A conversation that passes its window many times: one summary each time, and nothing lost."""

import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import Field

from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits
from fanout.orchestrator.deep_agent.failures import ModelContextExceeded
from fanout.orchestrator.deep_agent.models.tokens import summary_calls
from tests.integration.scripts import call
from tests.unit.deep_agent.long_conversations import (
    GOAL,
    Watched,
    config,
    history,
    is_summary_request,
    look,
    pairs_are_intact,
    resilient,
    said,
    session_of,
    steps,
    summaries,
    watched,
)
from tests.unit.deep_agent.running import Run


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_four_hundred_steps_keep_the_goal_the_pairs_and_the_whole_history() -> None:
    model = watched(steps(400))
    run = await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    session = await session_of(run)

    assert run.text == "done"
    assert [result["number"] for result in run.results] == list(range(400)), (
        "a step was lost or done twice"
    )
    assert all(said(asked[0]).startswith(GOAL) for asked in model.turns)
    assert all(pairs_are_intact(asked) for asked in model.turns)
    made = summaries(session)
    assert 20 < len(made) < 60
    asked = sum(summary_calls(event) for event in made)
    assert len(model.requests) - len(model.turns) == asked <= 2 * len(made), (
        "a summary was made again"
    )
    parts = history(session)
    assert len(parts) == len(made)
    found = [
        int(number) for part in parts for number in re.findall(r'"text": "result (\d+) ', part)
    ]
    found += [
        int(number)
        for part in parts
        for number in re.findall(r"^result (\d+) ", part, re.MULTILINE)
    ]
    assert sorted(found) == list(range(len(found))), "every step stands in the history once"
    assert 400 - len(found) < 20, "only the newest are not in it yet"


async def test_no_request_is_longer_than_the_window() -> None:
    model = watched(steps(100))
    await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    sizes = [
        sum(len(content.model_dump_json(exclude_none=True)) for content in asked)
        for asked in model.turns
    ]
    assert max(sizes) / 4 < 4_000 * 1.1


async def test_the_summary_names_changed_files_plan_and_history_without_help_of_a_model() -> None:
    todos = [{"content": "rename the rest", "status": "in_progress"}]
    replies = [
        {
            "calls": [
                call("write_file", file_path="/a.py", content="1"),
                call("write_todos", todos=todos),
            ]
        },
        {"calls": [call("edit_file", file_path="/a.py", old_string="1", new_string="2")]},
        {"calls": [call("write_file", file_path="/b.py", content="1")]},
        {"calls": [call("write_file", file_path="/b.py", content="again: refused")]},
        *steps(30),
    ]
    model = watched(replies)
    await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    text = said(model.turns[-1][0])
    assert "- /b.py (created)\n- /a.py (edited)" in text
    assert "- [in_progress] rename the rest" in text
    assert "/conversation_history/s/0001.md" in text
    assert "Some modules are renamed." in text


async def test_each_summary_rolls_on_from_the_one_before_and_reads_every_message() -> None:
    model = watched(steps(60))
    await Run(resilient(model), tools=[look], summarization=config()).to_end(GOAL)
    asked = [said(found[0]) for found in model.requests if is_summary_request(found)]
    assert "<earlier>" not in asked[0]
    assert all("Some modules are renamed." in text for text in asked[1:])
    assert all(GOAL in text for text in asked)
    for number in range(40):
        assert sum(f"result {number} x" in text for text in asked) == 1


async def test_messages_count_as_trigger_and_as_what_is_kept() -> None:
    model = watched(steps(60))
    by_messages = config(trigger=("messages", 30), keep=("messages", 10))
    run = await Run(resilient(model), tools=[look], summarization=by_messages).to_end(GOAL)
    assert max(len(asked) for asked in model.turns) <= 32
    assert min(len(asked) for asked in model.turns[20:]) in range(10, 14)
    assert 4 <= len(summaries(await session_of(run))) <= 8


async def test_system_instruction_and_tools_count_where_the_service_counts_nothing() -> None:
    class Countless(Watched):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            async for response in super().generate_content_async(llm_request, stream):
                response.usage_metadata = None
                yield response

    async def summaries_with(instruction: str) -> int:
        script = watched(steps(12)).script
        model = Countless(script=script, agent_name="deep_agent")
        big = config(window_tokens=12_000)
        run = Run(resilient(model), tools=[look], summarization=big, instruction=instruction)
        return len(summaries(await session_of(await run.to_end(GOAL))))

    assert await summaries_with("Short.") == 0
    assert await summaries_with("long " * 7_000) >= 1


@pytest.mark.parametrize(
    "summary", [{"raise": "broken"}, {"text": ""}, {"error": {"status": 401, "times": 99}}]
)
async def test_a_summarizer_that_fails_is_replaced_by_what_is_known_without_it(
    summary: dict[str, Any],
) -> None:
    model = watched(steps(40), summary=summary)
    roomy = config(window_tokens=20_000, trigger=("tokens", 4_000), keep=("tokens", 600))
    run = await Run(resilient(model), tools=[look], summarization=roomy).to_end(GOAL)
    text = said(model.turns[-1][0])
    assert run.text == "done"
    assert text.startswith(GOAL)
    assert "No summary could be written." in text
    assert '"number": 3' in text, "the last messages stand in it"
    assert len(history(await session_of(run))) == len(summaries(await session_of(run)))


async def test_a_small_summarizer_is_given_everything_in_pieces() -> None:
    class Small(BaseLlm):
        asked: list[str] = Field(default_factory=list)

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            del stream
            prompt = said(llm_request.contents[0])
            if len(prompt) > 6_000:
                raise ModelContextExceeded("too long")
            self.asked.append(prompt)
            yield LlmResponse(
                content=types.Content(role="model", parts=[types.Part(text="so far so good")])
            )

    small = Small(model="small")
    budget = Budget()
    run = Run(
        resilient(watched(steps(30))),
        tools=[look],
        summarization=config(model=small),
        budget=budget,
    )
    await run.to_end(GOAL)
    for number in range(20):
        assert any(f"result {number} x" in prompt for prompt in small.asked)
    assert sum(map(summary_calls, summaries(await session_of(run)))) == len(small.asked)
    assert budget.usage.model_calls == 31 + len(small.asked)


async def test_summaries_count_in_the_budget_and_none_takes_the_last_call() -> None:
    budget = Budget(BudgetLimits(max_model_calls=20))
    model = watched(steps(60))
    run = await Run(resilient(model), tools=[look], summarization=config(), budget=budget).to_end(
        GOAL
    )
    assert budget.usage.model_calls == len(model.requests) == 20
    (first, *_) = summaries(await session_of(run))
    assert first.usage_metadata is not None
    assert first.usage_metadata.prompt_token_count
    assert "max_model_calls=20" in run.text
