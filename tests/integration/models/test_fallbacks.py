"""A model that does not exist, or that the key may not use, is left for the next of the list."""

import pytest
from structlog.testing import capture_logs

from fanout.orchestrator.deep_agent.failures import ModelDenied, ModelUnresponsive
from fanout.orchestrator.deep_agent.models.retries import FALLBACK_FROM
from tests.integration.models.model_server import Answer, text
from tests.integration.models.providers import KEY, PROVIDERS, Provider, Serve, run_agent, served

serve = pytest.fixture(served)
DENIED = pytest.mark.parametrize("status", [401, 403, 404])

WRONG_KEY = (
    '{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",'
    ' "status": "INVALID_ARGUMENT"}}'
)
"""As Gemini answers a wrong key."""


@pytest.fixture(params=PROVIDERS, ids=[provider.name for provider in PROVIDERS])
def model_provider(request: pytest.FixtureRequest) -> Provider:
    found: Provider = request.param
    return found


@DENIED
async def test_a_denied_model_is_left_for_the_next_at_once(
    serve: Serve, model_provider: Provider, status: int
) -> None:
    names = f"{model_provider.smaller},{model_provider.larger}"
    with serve(Answer(status=status), Answer([text("second")])) as server, capture_logs() as logs:
        run = await run_agent(names)
    assert run.text == "second"
    assert len(server.requests) == 2
    (event,) = (event for event in run.events if event.content and event.author != "user")
    assert (event.custom_metadata or {})[FALLBACK_FROM] == {model_provider.smaller: "ModelDenied"}
    (line,) = (line for line in logs if line["event"] == "another model is asked")
    assert line["model"] == model_provider.larger
    assert line["instead_of"] == model_provider.smaller
    assert KEY not in str(logs)


@DENIED
async def test_without_a_next_model_it_is_one_sentence(
    serve: Serve, model_provider: Provider, status: int
) -> None:
    with serve(Answer(status=status)) as server, pytest.raises(ModelDenied) as caught:
        await run_agent(model_provider.larger)
    assert len(server.requests) == 1
    address = ", its key and its address" if status == 404 else " and its key"
    assert str(caught.value).endswith(f"Check the model's name{address}.")


async def test_a_wrong_key_of_gemini_is_denied_too_though_its_status_is_another(
    serve: Serve,
) -> None:
    with serve(Answer(status=400, body=WRONG_KEY), Answer([text("second")])) as server:
        run = await run_agent("gemini-2.5-pro,gpt-5")
    assert run.text == "second"
    assert len(server.requests) == 2


async def test_a_denied_model_is_not_asked_at_every_step(serve: Serve) -> None:
    call = {"functionCall": {"name": "read_todos", "args": {}}}
    answers = [Answer(status=404), Answer([call]), Answer([call]), Answer([text("done")])]
    with serve(*answers) as server:
        run = await run_agent("gemini-9,gemini-2.5-flash")
    assert run.text == "done"
    assert ["gemini-9:" in path for path in server.paths] == [True, False, False, False]


async def test_all_models_denied_is_the_last_ones_failure_and_the_next_run_asks_again(
    serve: Serve,
) -> None:
    with serve(Answer(status=404), Answer(status=401)) as server:
        with pytest.raises(ModelDenied, match=r"gpt-5 refused the request \(401"):
            await run_agent("gemini-9,gpt-5")
        assert len(server.requests) == 2


async def test_a_denied_and_an_overloaded_model_are_a_retryable_failure(serve: Serve) -> None:
    with (
        serve(Answer(status=404), *[Answer(status=503)] * 3),
        pytest.raises(ModelUnresponsive),
    ):
        await run_agent("gemini-9,gemini-2.5-flash")
