"""A deep agent on LiteLLM. Loading it takes seconds, so there are few tests, all in this module."""

import logging

import pytest

from fanout.orchestrator.deep_agent.failures import (
    ModelContextExceeded,
    ModelRefused,
    ModelUnavailable,
)
from fanout.orchestrator.deep_agent.guards.budget import Budget
from fanout.orchestrator.deep_agent.models.facts import price
from tests.integration.models.model_server import Answer, call, text
from tests.integration.models.providers import KEY, Serve, ask, run_agent, served, told

MODEL = "openai/gpt-5"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return served(monkeypatch)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.slow
async def test_parallel_calls_retries_and_usage_go_through(
    serve: Serve,
    streaming: bool,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [
        Answer(
            [
                text("writing "),
                call("write_file", file_path="/a", content="hü"),
                call("ls", path="/"),
            ]
        ),
        Answer(status=429, headers={"Retry-After": "0"}),
        Answer([text("all "), text("done")], cached_tokens=40),
    ]
    budget = Budget(price=price)
    with serve(*answers) as server:
        run = await run_agent(MODEL, streaming=streaming, budget=budget)

    assert run.text == "all done"
    assert [result["status"] for result in run.results] == ["success", "success"]
    assert len(server.requests) == 3
    assert "tool_call_id" in told(server.requests[-1])
    used = budget.usage
    assert (used.model_calls, used.input_tokens, used.output_tokens) == (2, 200, 20)
    assert used.cached_tokens == 40
    assert used.cost_usd is not None
    assert capfd.readouterr() == ("", "")
    assert "litellm" not in caplog.text.lower()


@pytest.mark.slow
async def test_failures_are_told_apart_and_tell_no_key(
    serve: Serve, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = f'{{"error": {{"message": "Incorrect key {KEY}", "code": "invalid_api_key"}}}}'
    with serve(*[Answer(status=503)] * 3) as server, pytest.raises(ModelUnavailable):
        await ask(MODEL)
    assert len(server.requests) == 3
    with serve(Answer(body="<html>a proxy's page</html>"), Answer([text("ok")])):
        assert await ask(MODEL) == "ok"
    with serve(Answer(status=401, body=refusal)) as server, pytest.raises(ModelRefused) as caught:
        await ask(MODEL)
    assert len(server.requests) == 1
    with serve(Answer(is_too_long=True)) as server, pytest.raises(ModelContextExceeded):
        await ask(f"{MODEL}, openai/gpt-4o")
    assert len(server.requests) == 1

    assert "Incorrect key (hidden)" in str(caught.value)
    said = [str(caught.value), caplog.text, *capfd.readouterr()]
    assert [words for words in said if KEY in words] == []
    assert said[2:] == ["", ""]
