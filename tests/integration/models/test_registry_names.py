"""Names that only ADK's registry knows reach their services too."""

import pytest

from tests.integration.models.model_server import Answer, text
from tests.integration.models.providers import Serve, run_agent, served

pytestmark = pytest.mark.blocks_loop(
    "ADK's own classes create their clients at the first call, on the event loop"
)

serve = pytest.fixture(served)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("gemma-3-27b-it", "/v1beta/models/gemma-3-27b-it:generateContent"),
        ("gemma-4-31b-it", "/v1beta/models/gemma-4-31b-it:generateContent"),
        ("Gemini:gemini-2.5-pro", "/v1beta/models/gemini-2.5-pro:generateContent"),
        ("apigee/gemini/v1/gemini-2.5-pro", "/v1/models/gemini-2.5-pro:generateContent"),
        (
            "projects/p/locations/us-central1/endpoints/7",
            "/v1beta1/projects/p/locations/us-central1/endpoints/7:generateContent",
        ),
    ],
)
async def test_other_names_of_adks_registry_are_asked_at_their_place(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, name: str, path: str
) -> None:
    with serve(Answer([text("ok")])) as server:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        monkeypatch.setenv("APIGEE_PROXY_URL", server.url)
        run = await run_agent(name)
    assert run.text == "ok"
    assert server.paths == [path]
