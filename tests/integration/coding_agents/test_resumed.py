"""Coding agents whose worker is lost: they go on in their session, or are told what was done."""

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import BOTH_PROVIDERS, place_fixture
from tests.integration.coding_agents.program import coding_agent, task
from tests.integration.coding_agents.test_coding_agents import paths, steps
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

place = place_fixture(
    providers=BOTH_PROVIDERS,
    agents={
        "coder": coding_agent("coder"),
        "forgetful": coding_agent("forgetful", "--no-load"),
    },
    FANOUT_WORKER__LEASE_SECONDS="4",
)


@pytest.mark.parametrize(
    ("agent", "told"),
    [("coder", "told: at work"), ("forgetful", "told: <earlier>, Write a.txt, at work")],
)
async def test_a_killed_worker_costs_no_change_and_nothing_is_journaled_twice(
    place: Installation, agent: str, told: str
) -> None:
    asked = {"said_prompt": ["<earlier>", "Write a.txt", "at work"]}
    rest = [asked, {"write": {"b.txt": "two\n"}}, {"say": "Ended."}]
    does = [{"write": {"a.txt": "one\n"}}, {"hold": agent}, *rest]
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec(task(does, told=rest), agent=agent))
        await until_event(client, job_id, EventType.TOOL_RESULT)
        worker.kill()
        other = place.start_worker()
        result = await client.wait(job_id)
        assert result.success, result
        assert (paths(result), result.attempts) == (["a.txt", "b.txt"], 2)
        calls = await steps(client, job_id, EventType.TOOL_CALL)
        assert calls == ["Write a.txt", "Write b.txt"]
        replies = " ".join(await steps(client, job_id, EventType.MODEL_REPLY))
        assert told in replies
        assert replies.count("Ended.") == 1
    other.stop()
