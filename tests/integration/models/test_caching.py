"""When a provider is asked to cache a conversation's beginning, and what happens if that fails."""

import pytest

from fanout.orchestrator.deep_agent.models.retries import (
    GEMINI_MIN_TOKENS,
    GEMINI_TTL_SECONDS,
)
from tests.integration.models.model_server import Answer, call, text
from tests.integration.models.providers import Serve, run_agent

LONG = GEMINI_MIN_TOKENS
OK = Answer([text("ok")])


def step(input_tokens: int = LONG) -> Answer:
    return Answer([call("ls", path="/")], input_tokens=input_tokens)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_gemini_keeps_a_long_beginning_once(serve: Serve, streaming: bool) -> None:
    with serve(step(), step(), step(), OK) as server:
        run = await run_agent("gemini-2.5-flash", streaming=streaming)

    assert run.text == "ok"
    (kept,) = server.caches
    assert kept["ttl"] == f"{GEMINI_TTL_SECONDS}s"
    assert kept["systemInstruction"]
    assert kept["tools"]
    names = [request.get("cachedContent") for request in server.requests]
    assert names == [None, "cachedContents/1", "cachedContents/1", "cachedContents/1"]
    assert ["systemInstruction" in request for request in server.requests] == [
        True,
        False,
        False,
        False,
    ]


async def test_gemini_keeps_nothing_short(serve: Serve) -> None:
    with serve(step(LONG - 1), step(LONG - 1), OK) as server:
        await run_agent("gemini-2.5-flash")
    assert server.caches == []


async def test_a_cache_that_cannot_be_made_is_done_without(serve: Serve) -> None:
    with serve(step(), step(), OK) as server:
        server.cache_status = 500
        run = await run_agent("gemini-2.5-flash")
    assert run.text == "ok"
    assert [request.get("cachedContent") for request in server.requests] == [None, None, None]


@pytest.mark.parametrize("status", [403, 404, 503])
async def test_a_cache_that_the_service_lost_is_done_without(serve: Serve, status: int) -> None:
    lost = Answer(status=status, headers={"Retry-After": "0"})
    with serve(step(), step(), lost, step(), OK) as server:
        run = await run_agent("gemini-2.5-flash")
    assert run.text == "ok"
    names = [bool(request.get("cachedContent")) for request in server.requests]
    assert names == [False, True, True, False, True]


async def test_claude_is_told_where_the_beginning_ends(serve: Serve) -> None:
    with serve(step(), OK) as server:
        await run_agent("claude-sonnet-4-5")
    for request in server.requests:
        ends = (request["system"][-1], request["tools"][-1], request["messages"][-1]["content"][-1])
        assert [end["cache_control"] for end in ends] == [{"type": "ephemeral"}] * 3


@pytest.mark.parametrize("model", ["gpt-5", "responses/gpt-5"])
async def test_openai_does_it_unasked(serve: Serve, model: str) -> None:
    with serve(step(), step(), OK) as server:
        await run_agent(model)
    assert "cache_control" not in str(server.requests)
    assert "previous_response_id" not in str(
        server.requests
    )  # nothing of the conversation is kept there
    assert server.caches == []
