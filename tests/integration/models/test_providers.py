"""A deep agent on every provider's own client, against a server on this machine.

No real model is called.
"""

import logging
from typing import Any

import pytest

from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits
from fanout.orchestrator.deep_agent.failures import (
    ModelContextExceeded,
    ModelRefused,
    ModelUnresponsive,
)
from fanout.orchestrator.deep_agent.models.facts import price
from fanout.orchestrator.deep_agent.models.resolve import preload_client, resolve_model
from fanout.orchestrator.deep_agent.models.retries import ResilientModel, RetryPolicy
from tests.integration.models.model_server import Answer, call, text
from tests.integration.models.providers import (
    KEY,
    PROVIDERS,
    Provider,
    Serve,
    ask,
    run_agent,
    told,
)
from tests.unit.deep_agent.running import texts

STREAMING = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
OVERLOAD = {"gemini": 503, "openai": 500, "responses": 502, "anthropic": 529}


@pytest.fixture(params=PROVIDERS, ids=lambda provider: provider.name)
def model_provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@STREAMING
async def test_parallel_calls_text_and_usage_go_through(
    serve: Serve, model_provider, streaming: bool
) -> None:
    answers = [
        Answer(
            [
                text("writing "),
                call("write_file", file_path="/a", content="hü"),
                call("ls", path="/"),
            ]
        ),
        Answer([text("all "), text("done")], cached_tokens=40),
    ]
    budget = Budget(price=price)
    with serve(*answers) as server:
        run = await run_agent(model_provider.larger, streaming=streaming, budget=budget)

    assert run.text == "all done"
    assert [result["status"] for result in run.results] == ["success", "success"]
    assert "'/a'" in told(server.requests[1]).replace('\\"', "'").replace('"', "'")
    used = budget.usage
    assert (used.model_calls, used.input_tokens, used.output_tokens) == (2, 200, 20)
    assert (used.cached_tokens, used.tool_calls) == (40, 2)
    assert used.cost_usd is not None
    assert 0 < used.cost_usd < 0.01
    if streaming:
        assert [texts(event) for event in run.events if event.partial and texts(event)]


async def test_the_tools_are_declared_with_their_types(serve: Serve, model_provider) -> None:
    with serve(Answer([text("ok")])) as server:
        await run_agent(model_provider.larger)
    (request,) = server.requests
    declared = str(request["tools"])
    for name in ("read_file", "write_todos", "grep"):
        assert f"'{name}'" in declared
    assert "'offset'" in declared
    assert "'array'" in declared
    assert "'additionalProperties': False" in declared


async def test_a_price_that_is_known_can_end_a_run(serve: Serve, model_provider) -> None:
    step = Answer([call("ls", path="/")])
    budget = Budget(BudgetLimits(max_cost_usd=0.000_001), price=price)
    with serve(step, step) as server:
        run = await run_agent(model_provider.larger, budget=budget)
    assert len(server.requests) == 1
    assert "max_cost_usd" in run.text


@STREAMING
async def test_an_overloaded_service_is_asked_again(
    serve: Serve, model_provider, streaming: bool
) -> None:
    busy = Answer(status=OVERLOAD[model_provider.name])
    with serve(
        busy, Answer(status=429, headers={"Retry-After": "0"}), Answer([text("ok")])
    ) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert len(server.requests) == 3


async def test_the_wait_that_the_service_asks_for_is_kept(
    serve: Serve, model_provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(RetryPolicy, "delay", lambda _, __, asked_for: waits.append(asked_for) or 0)
    with serve(Answer(status=429, headers={"Retry-After": "7"}), Answer([text("ok")])):
        await run_agent(model_provider.larger)
    assert waits == [7.0]


async def test_only_we_ask_again(serve: Serve, model_provider) -> None:
    with (
        serve(*[Answer(status=503)] * 9) as server,
        pytest.raises(ModelUnresponsive, match="503: not now"),
    ):
        await run_agent(model_provider.larger)
    assert len(server.requests) == 3


@STREAMING
async def test_an_answer_that_is_no_json_is_asked_for_again(
    serve: Serve, model_provider, streaming: bool
) -> None:
    with serve(Answer(body="<html>a proxy's page</html>"), Answer([text("ok")])) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert len(server.requests) == 2


@STREAMING
async def test_a_call_that_was_cut_off_is_not_made(
    serve: Serve, model_provider, streaming: bool
) -> None:
    cut = Answer(
        [text("writing"), call("write_file", file_path="/a", content="x" * 50)], is_cut=True
    )
    with serve(cut, Answer([text("ok")])) as server:
        run = await run_agent(model_provider.larger, streaming=streaming)
    assert run.text == "ok"
    assert "was cut at 10 tokens" in told(server.requests[1])
    assert "smaller pieces" in told(server.requests[1])
    assert "'status': 'success'" not in str(run.results)


async def test_a_stream_that_breaks_off_is_asked_for_again(serve: Serve, model_provider) -> None:
    broken = Answer([text("beg"), text("un")], breaks_off=True)
    with serve(broken, Answer([text("ok")])):
        run = await run_agent(model_provider.larger, streaming=True)
    assert run.text == "ok"


@STREAMING
async def test_a_service_that_falls_silent_is_left(
    serve: Serve, model_provider, streaming: bool
) -> None:
    impatient = RetryPolicy(attempts=1, reply_seconds=0.5, stream_pause_seconds=0.3)
    await_nothing = Answer([text("I "), text("wait")], hangs=True)
    with serve(await_nothing), pytest.raises(ModelUnresponsive, match=r"nothing came for 0\.\d s"):
        await run_agent(model_provider.larger, impatient, streaming=streaming)


@STREAMING
async def test_a_request_that_is_too_long_is_not_sent_again(
    serve: Serve, model_provider, streaming: bool
) -> None:
    answers = (Answer(is_too_long=True), Answer([text("never")]))
    with serve(*answers) as server, pytest.raises(ModelContextExceeded) as caught:
        await ask(model_provider.larger, streaming=streaming)
    assert not caught.value.retryable
    assert len(server.requests) == 1


async def test_a_model_with_a_larger_window_is_asked_instead(serve: Serve, model_provider) -> None:
    with serve(Answer(is_too_long=True), Answer([text("it fits")])):
        assert await ask(f"{model_provider.smaller}, {model_provider.larger}") == "it fits"


async def test_a_model_with_a_smaller_window_is_not(serve: Serve, model_provider) -> None:
    answers = (Answer(is_too_long=True), Answer([text("never")]))
    with serve(*answers) as server, pytest.raises(ModelContextExceeded):
        await ask(f"{model_provider.larger}, {model_provider.smaller}")
    assert len(server.requests) == 1


async def test_a_body_that_is_too_large_for_the_service_is_too_long(
    serve: Serve, model_provider
) -> None:
    with serve(Answer(status=413)), pytest.raises(ModelContextExceeded):
        await ask(model_provider.larger)


async def test_an_agent_whose_request_is_too_long_shortens_it(serve: Serve, model_provider) -> None:
    with serve(
        Answer(is_too_long=True), Answer([text("a summary")]), Answer([text("ok")])
    ) as server:
        run = await run_agent(model_provider.larger)
    assert run.text in {"ok", "a summary"}
    assert len(server.requests) > 1


async def test_a_wrong_key_is_one_sentence_and_is_told_nowhere(
    serve: Serve,
    model_provider,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    body = (
        f'{{"error": {{"message": "Incorrect key {KEY},\\nsent as Bearer {KEY}.", "code": 401}}}}'
    )
    with serve(Answer(status=401, body=body)) as server, pytest.raises(ModelRefused) as caught:
        await run_agent(model_provider.larger)
    assert len(server.requests) == 1
    model = model_provider.larger.removeprefix("responses/")
    assert str(caught.value).startswith(f"{model} refused the request (401")
    assert "Incorrect key (hidden)," in str(caught.value)
    said = [str(caught.value), caplog.text, *capfd.readouterr()]
    assert [words for words in said if KEY in words] == []


async def test_agents_of_one_loop_share_a_client(serve: Serve, model_provider) -> None:
    with serve():
        await preload_client(model_provider.larger)
        first, second = (
            _client(resolve_model(model_provider.larger, agent_name=name)) for name in "ab"
        )
    assert first is second


def _client(model: Any) -> Any:
    assert isinstance(model, ResilientModel)
    (candidate,) = model.candidates
    return candidate.client_for()
