"""A model's server answers with a redirect: the request goes to no other server."""

import socket

import pytest

from fanout.orchestrator.deep_agent.failures import ModelDenied
from tests.integration.models.model_server import Answer
from tests.integration.models.providers import PROVIDERS, Serve, ask


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "model",
    [
        *(provider.smaller for provider in PROVIDERS),
        pytest.param("openai/gpt-5", marks=pytest.mark.slow),  # LiteLLM
        pytest.param("anthropic/claude-sonnet-4-5", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_of_a_models_server_leads_to_no_other_server(
    serve: Serve, model: str, status: int, streaming: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        location = f"http://127.0.0.1:{other.getsockname()[1]}/canary"
        away = Answer(status=status, body="", headers={"location": location})
        with serve(away) as server, pytest.raises(ModelDenied, match=r"redirect|was not sent"):
            await ask(model, streaming=streaming)

        assert len(server.requests) == 1
        with pytest.raises(BlockingIOError):
            other.accept()  # nobody has connected
