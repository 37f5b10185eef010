"""`WebSearch()`: the search of the model that is asked, as its service is asked for it."""

import json
from typing import Any

import pytest

from fanout.orchestrator.deep_agent import SubAgentSpec, create_deep_agent
from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits, usage_of
from fanout.orchestrator.deep_agent.failures import ModelNotConfigured
from fanout.orchestrator.deep_agent.models.facts import price
from fanout.orchestrator.deep_agent.models.resolve import preload_client
from fanout.web import WebSearch
from tests.integration.models.model_server import Answer, call, text
from tests.integration.models.providers import Serve, run_agent, told

URL, TITLE = "https://bakers.example/rye", "Rye bread"
ANSWER = "4.20 euros, says the baker."
GEMINI, CLAUDE = "gemini-2.5-flash", "claude-sonnet-4-6"
USAGE = {"input_tokens": 300, "output_tokens": 30}
QUERY = "price of rye bread?"
SEARCH = Answer([call("web_search", query=QUERY)])
DONE = Answer([text("done")])


def gemini_found(**more: Any) -> Answer:
    chunk = {"web": {"uri": URL, "title": TITLE}}
    candidate = {
        "content": {"role": "model", "parts": [{"text": ANSWER}]},
        "finishReason": "STOP",
        "groundingMetadata": {"groundingChunks": [chunk], "webSearchQueries": ["rye"]},
        **more,
    }
    usage = {"promptTokenCount": 300, "candidatesTokenCount": 30, "totalTokenCount": 330}
    return Answer(body=json.dumps({"candidates": [candidate], "usageMetadata": usage}))


CALL = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "r"},
}
RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "https://other.example/", "title": "Other",
         "encrypted_content": "c2VjcmV0", "page_age": None},
        {"type": "web_search_result", "url": URL, "title": TITLE, "encrypted_content": "eA=="},
    ],
}  # fmt: skip
CITED = {
    "type": "text",
    "text": "4.20 euros, ",
    "citations": [
        {"type": "web_search_result_location", "url": URL, "title": TITLE,
         "cited_text": "4.20", "encrypted_index": "eQ=="}
    ],
}  # fmt: skip
REFUSED = {
    **RESULT,
    "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
}


def claude_found(*blocks: dict[str, Any], stop_reason: str = "end_turn") -> Answer:
    message = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": CLAUDE,
        "content": list(blocks)
        or [CALL, RESULT, CITED, {"type": "text", "text": "says the baker."}],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {**USAGE, "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0}},
    }
    return Answer(body=json.dumps(message))


def tools() -> list[Any]:
    return [WebSearch().tool()]


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3-pro-preview", "gemini-pro-latest"])
async def test_gemini_searches_beside_any_other_tools(serve: Serve, model: str) -> None:
    with serve(SEARCH, gemini_found(), DONE) as server:
        run = await run_agent(model, tools=tools())
    assert run.text == "done"
    (result,) = run.results
    assert result == {
        "status": "success",
        "answer": ANSWER,
        "pages": [{"title": TITLE, "url": URL}],
    }
    first, search, last = server.requests
    assert search["tools"] == [{"googleSearch": {}}, {"urlContext": {}}]
    assert QUERY in told(search)
    for request in (first, last):
        assert [list(tool) for tool in request["tools"]] == [["functionDeclarations"]]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_claude_searches_with_its_server_tool_and_the_conversation_goes_on(
    serve: Serve, streaming: bool
) -> None:
    with serve(SEARCH, claude_found(), DONE) as server:
        run = await run_agent(CLAUDE, tools=tools(), streaming=streaming)
    assert run.text == "done"
    (result,) = run.results
    assert result["answer"] == ANSWER
    assert [page["url"] for page in result["pages"]] == [URL, "https://other.example/"]
    _, search, last = server.requests
    assert search["tools"] == [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    assert "server_tool_use" not in str(last)
    assert "encrypted" not in str(last)


async def test_a_search_that_pauses_is_continued_with_what_it_has(serve: Serve) -> None:
    paused = claude_found(CALL, RESULT, stop_reason="pause_turn")
    end = claude_found({"type": "text", "text": ANSWER})
    budget = Budget(price=price)
    with serve(SEARCH, paused, end, DONE) as server:
        run = await run_agent(CLAUDE, tools=tools(), budget=budget)
    assert run.results[0]["answer"] == ANSWER
    assert URL in [page["url"] for page in run.results[0]["pages"]]
    question, so_far = server.requests[2]["messages"]
    assert question["role"] == "user"
    assert [block["type"] for block in so_far["content"]] == [CALL["type"], RESULT["type"]]
    assert so_far["content"][1]["content"][0]["encrypted_content"] == "c2VjcmV0"
    assert budget.usage.model_calls == 4
    # A process that continues the run counts the search too.
    assert usage_of(run.events, price) == budget.usage


async def test_a_search_that_fails_at_the_service_says_so(serve: Serve) -> None:
    sorry = {"type": "text", "text": "I could not search."}
    with serve(SEARCH, claude_found(CALL, REFUSED, sorry), DONE):
        run = await run_agent(CLAUDE, tools=tools())
    assert run.results == [{"status": "error", "error": "The search failed (unavailable)."}]


async def test_a_model_that_may_not_search_still_does_its_work(serve: Serve) -> None:
    with serve(SEARCH, Answer(status=403), DONE) as server:
        run = await run_agent(f"{CLAUDE}, gpt-4o", tools=tools())
    (result,) = run.results
    assert "The model's service did not search" in result["error"]
    assert server.paths == ["/v1/messages"] * 3


async def test_a_search_without_an_end_is_ended(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.extras.web.search.MODEL_SEARCH_SECONDS", 0.2)
    with serve(SEARCH, Answer(hangs=True), DONE):
        run = await run_agent(GEMINI, tools=tools())
    assert run.results[0]["error"] == "The search took more than 0.2 s."


async def test_a_search_that_is_blocked_is_no_empty_success(serve: Serve) -> None:
    blocked = gemini_found(content=None, finishReason="SAFETY", groundingMetadata={})
    with serve(SEARCH, blocked, DONE):
        run = await run_agent(GEMINI, tools=tools())
    assert run.results[0]["error"] == "The search failed (SAFETY)."


async def test_an_answer_without_pages_says_that_it_may_be_from_memory(serve: Serve) -> None:
    with serve(SEARCH, gemini_found(groundingMetadata={}), DONE):
        run = await run_agent(GEMINI, tools=tools())
    assert "from memory" in run.results[0]["note"]


async def test_a_search_counts_in_the_budget_and_needs_room_in_it(serve: Serve) -> None:
    budget = Budget(price=price)
    with serve(SEARCH, gemini_found(), DONE):
        await run_agent(GEMINI, tools=tools(), budget=budget)
    assert (budget.usage.model_calls, budget.usage.input_tokens) == (3, 100 + 300 + 100)
    small = Budget(BudgetLimits(max_model_calls=2))
    with serve(SEARCH, DONE) as server:
        run = await run_agent(GEMINI, tools=tools(), budget=small)
    assert "no room for a search" in run.results[0]["error"]
    assert len(server.requests) == 2


async def test_of_a_list_the_models_that_search_are_asked(serve: Serve) -> None:
    with serve(SEARCH, gemini_found(), DONE) as server:
        await run_agent(f"gpt-4o, {GEMINI}", tools=tools())
    assert ["chat/completions" in path for path in server.paths] == [True, False, True]


async def test_a_search_falls_back_to_the_next_model_that_searches(serve: Serve) -> None:
    down = [Answer(status=503)] * 3
    with serve(SEARCH, *down, claude_found(), DONE) as server:
        run = await run_agent(f"{GEMINI}, {CLAUDE}", tools=tools())
    assert run.results[0]["answer"] == ANSWER
    assert server.paths[4] == "/v1/messages"
    assert GEMINI in server.paths[5]


async def test_a_sub_agent_searches_with_its_own_model(serve: Serve) -> None:
    spec: SubAgentSpec = {
        "name": "researcher",
        "description": "Finds out.",
        "model": CLAUDE,
        "tools": tools(),
    }
    task = Answer([call("task", description="price?", subagent_type="researcher")])
    with serve(task, SEARCH, claude_found(), Answer([text("4.20")]), DONE) as server:
        await preload_client(CLAUDE)
        await run_agent("gpt-4o", subagents=[spec])
    assert [path.rpartition("/")[2] for path in server.paths] == [
        *("completions", "messages", "messages", "messages", "completions")
    ]


@pytest.mark.parametrize(
    "model", ["gpt-4o", "responses/gpt-5", "claude-3-opus", "gemini-2.0-flash"]
)
def test_a_model_without_a_search_of_its_own_is_refused_when_the_agent_is_made(
    serve: Serve, model: str
) -> None:
    with serve(), pytest.raises(ModelNotConfigured, match="no web search of its own"):
        create_deep_agent(model, tools())


def test_a_sub_agent_without_a_search_is_refused_too(serve: Serve) -> None:
    spec: SubAgentSpec = {
        "name": "r",
        "description": "R.",
        "model": "gpt-4o",
        "tools": tools(),
    }
    with serve(), pytest.raises(ModelNotConfigured, match="gpt-4o has no web search"):
        create_deep_agent(GEMINI, subagents=[spec])
