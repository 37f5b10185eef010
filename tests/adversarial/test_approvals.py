"""Who answered an approval is what Redis knows of the caller; an invented answer does not count."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.jobs.approvals import answer_fingerprint
from fanout.orchestrator.jobs.failures import DecisionNotAllowed, LedgerForbidden
from fanout.orchestrator.jobs.store.connection import connect, identity
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.adversarial.redis_servers import GuardedRedis
from tests.adversarial.test_redis_rights import guarded, url  # noqa: F401 - a fixture
from tests.builders import make_spec
from tests.integration.jobs.test_connection import unix_url  # noqa: F401 - a fixture
from tests.integration.scripts import DONE, conversation, shell, write_agents, write_script
from tests.integration.worker.approvals import SUPERVISED, journal, parked
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (conversation("guarded", shell("touch ran.txt"), DONE),)


@pytest.fixture
def place(guarded: GuardedRedis, tmp_path: Path) -> Iterator[Installation]:  # noqa: F811
    guarded.url = url(guarded, "ann")
    made = Installation(
        tmp_path,
        guarded,
        script=write_script(tmp_path, *SCRIPT),
        FANOUT_AGENTS_DIR=str(write_agents(tmp_path, SUPERVISED)),
        FANOUT_REDIS_URL=url(guarded, "fanout-worker"),
        FANOUT_APPROVERS='["ann"]',
    )
    yield made
    made.stop()


@pytest.fixture
def bobs(guarded: GuardedRedis, place: Installation) -> JobClient:  # noqa: F811
    """The client of a person who may not approve."""
    agents = Path(place.environment["FANOUT_AGENTS_DIR"])
    return JobClient(url(guarded, "bob"), place.settings, load_agent_definitions(agents))


@pytest.mark.slow
async def test_only_an_approver_can_answer_and_the_journal_names_them(
    place: Installation, bobs: JobClient
) -> None:
    place.start_worker()
    async with place.client() as anns, bobs:
        await place.ready(anns)
        job_id = await bobs.submit(make_spec("guarded", agent="guarded"))
        (approval,) = await parked(anns, job_id)
        with pytest.raises(DecisionNotAllowed, match=r"answered by ann .* knows you as bob"):
            await bobs.answer(approval.id, "approve")
        await anns.answer(approval.id, "approve")
        result = await anns.wait(job_id, 60)

        (answered,) = await journal(anns, job_id, EventType.APPROVAL_RESOLVED)
    assert answered.data["by"] == "ann"
    assert [file.path for file in result.files_modified] == ["ran.txt"]


@pytest.mark.slow
async def test_an_answer_in_anothers_name_is_refused_by_redis(
    place: Installation,
    guarded: GuardedRedis,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def as_ann(_: object) -> str:
        return "ann"

    place.start_worker()
    async with place.client() as anns, connect(url(guarded, "bob")) as redis:
        await place.ready(anns)
        job_id = await anns.submit(make_spec("guarded", agent="guarded"))
        (approval,) = await parked(anns, job_id)
        monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.identity", as_ann)
        with pytest.raises(LedgerForbidden):
            await Ledger(redis, Keys()).answer(approval.id, ApprovalAnswer(decision="approve"))
        assert [one.id for one in await anns.approvals()] == [approval.id], "it is still open"


async def test_an_answer_that_a_client_writes_into_the_journal_itself_does_not_count(
    place: Installation,
    guarded: GuardedRedis,  # noqa: F811
) -> None:
    place.start_worker()
    async with place.client() as anns, connect(url(guarded, "bob")) as redis:
        await place.ready(anns)
        job_id = await anns.submit(make_spec("guarded", agent="guarded"))
        (approval,) = await parked(anns, job_id)
        forged = {"id": approval.id, "decision": "approve", "message": "", "by": "ann"}
        await Journal(redis, Keys()).append(job_id, 1, EventType.APPROVAL_RESOLVED, forged)
        # What answer.lua does for the last approval of a job, by hand.
        await redis.set(Keys().answers("bob", approval.id), answer_fingerprint(forged))
        await redis.hset(Keys().approval(approval.id), "decision", "approve")
        await redis.zrem(Keys().approvals, approval.id)
        await redis.hset(Keys().job(job_id), mapping={"state": "queued", "approvals": ""})
        spec = await Ledger(redis, Keys()).get(job_id)
        lane = f"fanout:lane:{spec.agent}:1:{job_id}:{spec.tenant}"
        await redis.zadd(lane, {job_id: 1})
        await redis.sadd(f"fanout:lanes:{job_id}", f"{spec.agent}:1:{spec.tenant}")
        await redis.zadd(f"fanout:trees:{spec.agent}:1:{spec.tenant}", {job_id: 0})
        await redis.sadd(f"fanout:classes:{spec.tenant}", f"{spec.agent}:1")
        await redis.zadd(f"fanout:tenants:{spec.agent}:1", {spec.tenant: 0})
        await redis.sadd("fanout:classes", f"{spec.agent}:1")

        result = await anns.wait(job_id, 60)
        answers = await journal(anns, job_id, EventType.TOOL_RESULT)

    assert result.success, result.error
    assert result.files_modified == (), "the call did not run"
    assert "not given by a person who may approve" in json.dumps(answers[-1].data)


async def test_the_owner_of_a_private_socket_is_named_as_the_system_knows_them(
    unix_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    async with connect(unix_url) as client:
        assert await identity(client) == pwd.getpwuid(os.geteuid()).pw_name


async def test_behind_a_shared_password_nobody_is_named(redis_url: str) -> None:
    async with connect(redis_url) as client:
        assert await identity(client) == "default"


def test_everybody_may_answer_by_default() -> None:
    assert load_settings(redis_url="redis://h/0").approvers == ()
