"""Sub-agents that see their parent's conversation, because their specification says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import Field

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.create import create_deep_agent
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.long_conversations import GOAL, config, look, resilient, watched
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import recorder, seen
from tests.unit.deep_agent.test_subagents import Guarded, asks, worker


def shown(request: LlmRequest) -> str:
    """The text of a request, and its calls and results as they are."""
    return "\n".join(content.model_dump_json(exclude_none=True) for content in request.contents)


class Listener(BaseLlm):
    """A model that gives one answer, however long the conversation is."""

    requests: list[LlmRequest] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        self.requests.append(llm_request)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="x")]))


def team(*replies: dict[str, Any], **more: Any) -> dict[str, Any]:
    return dict(worker(*replies or (says("x"),), context="fork", **more))


def talker(*made: dict[str, Any]) -> Any:
    look = {"text": "I look first.", "calls": [call("ls", path="/")]}
    return recorder("parent", [look, calls(*made), says("done")])


async def test_it_sees_the_conversation_up_to_the_call_and_then_its_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = team(calls(call("ls", path="/")), says("found it"))
    other = worker(says("o"), name="other")
    model = talker(asks("find it", context="below /a"), asks("else", "other"))
    run = await Run(model, subagents=[child, other]).to_end("the goal of the person")
    first, second = child["model"].requests
    text = shown(first)
    assert "the goal of the person" in text
    assert "I look first." in text
    assert "[parent]" in text
    assert "It is under way" in text
    last = first.contents[-1].parts[-1].text
    assert "find it\n\n<context>\nbelow /a" in last
    assert "nothing else of it" in last
    # None of it is a call of its own, and its own calls are.
    assert not any(part.function_call for c in first.contents for part in c.parts)
    assert sum(bool(part.function_call) for c in second.contents for part in c.parts) == 1
    assert "unknown agent" not in caplog.text
    assert run.results[1]["summary"] == "found it"
    assert run.results[1]["usage"]["model_calls"] == 2
    assert "nothing else of it" not in seen(model)
    assert "goal of the person" not in seen(other["model"])


async def test_the_parents_plan_and_state_stay_its_own() -> None:
    plan = call("write_todos", todos=[{"content": "secret plan", "status": "in_progress"}])
    child = team(calls(call("read_todos")), says("x"))
    model = recorder("parent", [calls(plan), calls(asks()), says("done")])
    await Run(model, subagents=[child]).to_end()
    answer = child["model"].requests[1].contents[-1].parts[0].function_response.response
    assert answer == {"todos": []}


async def test_one_that_says_nothing_does_not_answer_with_its_parents_words() -> None:
    child = team({"text": ""}, {"text": ""}, {"text": ""}, {"text": ""})
    run = await Run(talker(asks()), subagents=[child]).to_end()
    assert run.results[1]["success"] is False
    assert "I look first" not in str(run.results[1])


async def test_the_model_is_told_who_sees_the_conversation() -> None:
    model = talker(asks())
    await Run(model, subagents=[team(), worker(name="plain")]).to_end()
    instruction = str(model.requests[0].config.system_instruction)
    assert "worker works. It sees this conversation." in instruction
    assert "plain works. It" not in instruction


async def test_it_goes_on_after_a_question_with_the_same_conversation(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    guarded = Guarded(tmp_path, "a")
    child = team(calls(call("delete_file", file_path="/workspace/a")), says("cleaned"))
    guarded.run = Run(
        talker(asks()),
        subagents=[child],
        backend=DirectoryBackend(tmp_path),
        interrupt_on={"delete_file": True},
    )
    await guarded.run.to_end("the goal of the person")
    await guarded.answer({"decision": "approve"})
    assert not (tmp_path / "a").exists()
    assert "the goal of the person" in shown(child["model"].requests[-1])
    assert guarded.run.results[-1]["summary"] == "cleaned"


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="isolated or fork, not all"):
        create_deep_agent(recorder("p", [says("x")]), subagents=[worker(context="all")])


async def test_of_a_long_conversation_it_sees_the_summary_and_what_came_after() -> None:
    child = team()
    child["model"] = listener = Listener(model="listener")
    looks = [{"calls": [call("look", number=number)]} for number in range(20)]
    model = watched([*looks, {"calls": [asks()]}, {"text": "done"}])
    run = await Run(
        resilient(model), subagents=[child], tools=[look], summarization=config()
    ).to_end(GOAL)
    assert run.results[-1]["summary"] == "x"
    text = shown(listener.requests[0])
    assert "Some modules are renamed" in text
    assert "result 19" in text
    assert "result 0 " not in text
