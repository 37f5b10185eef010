"""What only Gemini does, and what is the same for all providers and tested on one of them."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from fanout.orchestrator.deep_agent.failures import ModelRefused, ModelUnresponsive
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.models.retries import RetryPolicy
from tests.integration.models.model_server import Answer, ModelServer, call, model_server, text
from tests.unit.deep_agent.running import Run

SOON = RetryPolicy(attempts=3, first_delay_seconds=0.01)

STREAMING = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GOOGLE_API_KEY", "no-secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def start(answers: Sequence[Answer]) -> Any:
        return model_server(answers)

    return start


def agent(
    server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    names: str = "gemini-2.5-flash",
    **more: Any,
) -> Run:
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    return Run(resolve_model(names, agent_name="a", retries=SOON), **more)


async def test_the_tools_are_declared_with_names_types_and_defaults(serve, monkeypatch) -> None:
    with serve([Answer([text("ok")])]) as server:
        await agent(server, monkeypatch).to_end()
    declared = {
        tool["name"]: tool
        for group in server.requests[0]["tools"]
        for tool in group["functionDeclarations"]
    }
    assert set(declared) == {
        "ls",
        "read_file",
        "write_file",
        "edit_file",
        "delete_file",
        "glob",
        "grep",
        "write_todos",
        "read_todos",
        "compact_conversation",
        "task",
        "tasks",
    }
    schema = declared["read_file"]["parameters_json_schema"]
    assert schema["required"] == ["file_path"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["limit"]["default"] == 2000
    assert (
        declared["write_todos"]["parameters_json_schema"]["properties"]["todos"]["type"] == "array"
    )


@STREAMING
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_an_overloaded_service_is_asked_again(
    serve, monkeypatch, status: int, streaming: bool
) -> None:
    with serve([Answer(status=status), Answer(status=status), Answer([text("ok")])]) as server:
        run = await agent(server, monkeypatch, streaming=streaming).to_end()
    assert run.text == "ok"
    assert len(server.requests) == 3


async def test_the_delay_in_geminis_own_error_details_is_kept(serve, monkeypatch) -> None:
    details = '{"error": {"code": 429, "message": "quota", "details": [{"retryDelay": "1s"}]}}'
    with serve([Answer(status=429, body=details), Answer([text("ok")])]) as server:
        begun = time.monotonic()
        await agent(server, monkeypatch).to_end()
    assert 1.0 <= time.monotonic() - begun < 60


async def test_a_service_that_stays_down_is_a_retryable_failure(serve, monkeypatch) -> None:
    with (
        serve([Answer(status=503)] * 3) as server,
        pytest.raises(ModelUnresponsive, match="503") as caught,
    ):
        await agent(server, monkeypatch).to_end()
    assert caught.value.retryable
    assert len(server.requests) == 3


async def test_a_refused_request_is_not_repeated(serve, monkeypatch) -> None:
    refused = pytest.raises(ModelRefused, match="400: not now")
    with serve([Answer(status=400), Answer([text("never")])]) as server, refused:
        await agent(server, monkeypatch).to_end()
    assert len(server.requests) == 1


async def test_the_next_model_of_the_list_answers_when_the_first_does_not(
    serve, monkeypatch
) -> None:
    with serve([Answer(status=503)] * 3 + [Answer([text("second")])]) as server:
        run = await agent(server, monkeypatch, "gemini-2.5-pro, gemini-2.5-flash").to_end()
    assert run.text == "second"
    assert ["2.5-pro" in path for path in server.paths] == [True, True, True, False]


async def test_nobody_listening_is_a_retryable_failure(serve, monkeypatch) -> None:
    with serve([]) as server:
        pass
    with pytest.raises(ModelUnresponsive):
        await agent(server, monkeypatch).to_end()


@STREAMING
async def test_malformed_and_empty_replies_are_sent_back(
    serve, monkeypatch, streaming: bool
) -> None:
    answers = [
        Answer([], finish_reason="MALFORMED_FUNCTION_CALL"),
        Answer([text("  ")]),
        Answer([text("ok")]),
    ]
    with serve(answers) as server:
        run = await agent(server, monkeypatch, streaming=streaming).to_end()
    assert run.text == "ok"
    assert len(server.requests) == 3
    assert "could not be read" in str(server.requests[1]["contents"])


@STREAMING
async def test_wrong_calls_come_back_to_the_model_as_text(
    serve, monkeypatch, streaming: bool
) -> None:
    async def explode() -> dict[str, Any]:
        """Fail."""
        raise OSError("disk on fire")

    answers = [
        Answer([call("nosuch"), call("read_file"), call("ls", path="/", depth=3), call("explode")]),
        Answer([text("ok")]),
    ]
    with serve(answers) as server:
        run = await agent(server, monkeypatch, streaming=streaming, tools=[explode]).to_end()
    assert run.text == "ok"
    told = str(server.requests[1]["contents"])
    assert "no tool with that name" in told
    assert "file_path: Field required" in told
    assert "depth: Extra inputs are not permitted" in told
    assert "explode failed: OSError: disk on fire" in told


async def test_a_blocked_answer_ends_the_run_with_its_reason(serve, monkeypatch) -> None:
    with serve([Answer([], finish_reason="SAFETY")]) as server:
        run = await agent(server, monkeypatch).to_end()
    assert run.events[-1].error_code == "SAFETY"
