"""A deep agent on LiteLLM. Loading it takes seconds, so there are few tests, all in this module."""

import json
import logging

import pytest

from fanout.orchestrator.deep_agent.budget import Budget
from fanout.orchestrator.deep_agent.failures import (
    ModelContextExceeded,
    ModelQuotaUsedUp,
    ModelRefused,
    ModelUnresponsive,
)
from fanout.orchestrator.deep_agent.models.facts import price
from tests.integration.models.model_server import Answer, call, call_with, text
from tests.integration.models.providers import KEY, Serve, ask, run_agent, told

MODEL = "openai/gpt-5"


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
    with serve(*[Answer(status=503)] * 3) as server, pytest.raises(ModelUnresponsive):
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


def error(**said: object) -> str:
    return json.dumps({"error": said})


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.slow
async def test_what_a_service_says_in_place_of_a_reply_is_not_believed(
    serve: Serve, streaming: bool
) -> None:
    write = call("write_file", file_path="/a", content="x")
    odd = Answer([text("half"), write], reason="weird")
    with serve(odd, Answer([text("ok")])):
        run = await run_agent(MODEL, streaming=streaming)
    assert (run.text, run.results) == ("ok", [])
    with serve(*[odd] * 9):
        run = await run_agent(MODEL, streaming=streaming)
    assert 'finish reason "weird"' in str(run.events[-1].error_message)
    assert {result["status"] for result in run.results} == {"error"}

    failed = Answer(body=error(message="upstream is gone", code=502))
    with serve(failed, Answer([text("ok")])):
        assert await ask(MODEL, streaming=streaming) == "ok"
    with serve(*[failed] * 3), pytest.raises(ModelUnresponsive, match="upstream is gone"):
        await ask(MODEL, streaming=streaming)
    page = Answer(body="<html>nginx</html>", media_type="text/html")
    with serve(*[page] * 3), pytest.raises(ModelUnresponsive, match="nginx"):
        await ask(MODEL, streaming=streaming)

    twice = json.dumps(json.dumps({"file_path": "/a", "content": "x"}))
    answers = [Answer([call_with("write_file", twice)]), Answer([write, call_with("ls", "3")])]
    with serve(*answers, Answer([text("ok")])):
        run = await run_agent(MODEL, streaming=streaming)
    assert [result["status"] for result in run.results] == ["success", "error"]

    with serve(Answer([text("th")], is_cut=True), Answer([text("ree")])):
        assert (await run_agent(MODEL, streaming=streaming)).text == "three"
    with serve(*[Answer([write], is_cut=True)] * 5):
        run = await run_agent(MODEL, streaming=streaming)
    assert run.events[-1].error_code == "REPLY_CUT"
    assert {result["status"] for result in run.results} == {"error"}


@pytest.mark.slow
async def test_a_used_up_quota_and_a_long_request_are_known_for_what_they_are(
    serve: Serve,
) -> None:
    used_up = Answer(status=429, body=error(message="none left", code="insufficient_quota"))
    with serve(used_up) as server, pytest.raises(ModelQuotaUsedUp, match="none left"):
        await ask(MODEL)
    assert len(server.requests) == 1
    too_long = Answer(status=400, body=error(message="Input is too long for requested model."))
    with serve(too_long, Answer([text("ok")])):
        assert (await run_agent(MODEL)).text == "ok"
    with serve(too_long, too_long), pytest.raises(ModelContextExceeded, match="too long for req"):
        await run_agent(MODEL)
