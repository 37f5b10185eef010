"""The key of a coding agent's model stays outside of its sandbox."""

from __future__ import annotations

import json

import pytest

from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.coding_agents.program import coding_agent, task
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

KEY = "canary-acp-key-4711"
HOST = "models.example"
REACHES = {"network": [HOST], "credentials": [{"host": HOST, "secret": "MODEL_KEY"}]}

place = place_fixture(
    agents={"keyless": coding_agent("keyless", **REACHES)},
    workers=1,
    FANOUT_SANDBOX__PROVIDER="docker",
    FANOUT_SECRETS__MODEL_KEY=KEY,
)


async def test_the_key_of_its_model_is_not_inside(place: Installation) -> None:
    async with place.client() as client:
        searched = task([{"search": [KEY[:9], KEY[9:]]}])
        result = await client.run(make_spec(searched, agent="keyless"))
        assert result.summary == "searched True, found []", result
        assert KEY not in json.dumps(result.model_dump(mode="json"))
