"""Replies that cannot be used: none of their calls is made, and what was cut is continued."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits
from fanout.orchestrator.deep_agent.dangling_calls import answered, unanswered_calls
from fanout.orchestrator.deep_agent.models.retries import RetryPolicy
from fanout.orchestrator.deep_agent.unusable_replies import MAX_CALLS, MAX_MALFORMED_IN_A_ROW
from tests.unit.deep_agent.running import Run

CUT = types.FinishReason.MAX_TOKENS
SCHEMA = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}


class Replies(BaseLlm):
    """A model object of a program, which gives these replies; the last one for ever."""

    model: str = "own"
    replies: Sequence[LlmResponse]
    asked: int = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        del llm_request
        reply = self.replies[min(self.asked, len(self.replies) - 1)]
        self.asked += 1
        if stream:
            yield reply.model_copy(update={"partial": True}, deep=True)
        yield reply.model_copy(deep=True)


def reply(text: str = "", calls: int = 0, **more: Any) -> LlmResponse:
    parts = [types.Part(text=text)] if text else []
    parts += [
        types.Part.from_function_call(name="note", args={"number": number})
        for number in range(calls)
    ]
    return LlmResponse(content=types.Content(role="model", parts=parts), **more)


REJECTED = {
    "cut": reply("x", 1, finish_reason=CUT),
    "cut with an error beside": reply("x", 1, finish_reason=CUT, error_code="MAX_TOKENS"),
    "too many": reply("x", MAX_CALLS + 1),
    "malformed": reply("x", 1, finish_reason=types.FinishReason.MALFORMED_FUNCTION_CALL),
    "unknown end": reply("x", 1, finish_reason=types.FinishReason.OTHER),
    "only an error": reply("x", 1, error_code="503", error_message="overloaded"),
    "stopped": reply("x", 1, finish_reason=types.FinishReason.SAFETY),
    "stopped, said as an error": reply("x", 1, error_code="PROHIBITED_CONTENT"),
    "done, with an error": reply("x", 1, finish_reason=types.FinishReason.STOP, error_code="E"),
}


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", REJECTED)
async def test_no_call_of_a_rejected_reply_is_made_however_often_it_comes(
    kind: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def note(number: int) -> dict[str, Any]:
        """Note a number."""
        made.append(number)
        return {}

    monkeypatch.setattr(RetryPolicy, "delay", lambda *_: 0.0)
    model = Replies(replies=[REJECTED[kind]])
    run = await Run(model, tools=[note], streaming=streaming).to_end()
    assert made == []
    last = run.events[-1]
    assert last.error_code
    assert not last.get_function_calls()
    assert "FinishReason" not in f"{last.error_code} {last.error_message}"


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["one, tw", "o, th", "ree"], "one, two, three"),
        (["The answer is long, and", " is long, and it ends."], "The answer is long, and it ends."),
        (["## Summary\nhalf of", "## Summary\nall"], "## Summary\nall"),
        (["A beginning of some length, cu", "A beginning of some length, whole."],
         "A beginning of some length, whole."),
    ],
)  # fmt: skip
async def test_a_final_answer_that_was_cut_is_one_with_its_continuation(
    pieces: list[str], whole: str
) -> None:
    replies = [*(reply(piece, finish_reason=CUT) for piece in pieces[:-1]), reply(pieces[-1])]
    run = await Run(Replies(replies=replies)).to_end()
    assert run.text == whole
    assert run.events[-1].error_code is None


async def test_structured_output_that_was_cut_is_read_as_a_whole() -> None:
    replies = [reply('{"n": "on', finish_reason=CUT), reply('e"}')]
    run = await Run(Replies(replies=replies), output_schema=SCHEMA).to_end()
    assert run.text == '{"n": "one"}'


async def test_an_answer_that_is_always_cut_is_no_success_and_keeps_its_text() -> None:
    used = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=10, candidates_token_count=400, total_token_count=410
    )
    model = Replies(replies=[reply("and on ", finish_reason=CUT, usage_metadata=used)])
    run = await Run(model).to_end()
    assert model.asked == MAX_MALFORMED_IN_A_ROW + 1
    assert run.events[-1].error_code == "REPLY_CUT"
    assert "output limit (400 tokens)" in str(run.events[-1].error_message)
    assert run.text == "and on " * 4


async def test_the_last_reply_of_a_budget_is_not_continued() -> None:
    model = Replies(replies=[reply("half", finish_reason=CUT)])
    run = await Run(model, budget=Budget(BudgetLimits(max_model_calls=1))).to_end()
    assert model.asked == 1
    assert "half" in run.text
    assert "max_model_calls=1" in run.text


async def test_a_run_that_resumes_at_a_rejected_reply_still_says_what_was_wrong() -> None:
    run = await Run(Replies(replies=[reply("x", 1, finish_reason=CUT), reply("ok")])).to_end()
    rejected = run.events[:1]
    event = answered(unanswered_calls(rejected))
    (response,) = event.get_function_responses()
    assert "was cut" in str(response.response)
