"""The four users of config/redis-acl.example: each does its work, and none the others'."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from fanout.orchestrator.jobs.failures import LedgerForbidden
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.access_stores import open_access_stores
from fanout.orchestrator.jobs.store.audit_stream import AuditEntry
from fanout.orchestrator.jobs.store.browser_sessions import Grant
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.adversarial.redis_servers import GuardedRedis, guarded_redis
from tests.builders import make_spec, make_worker
from tests.integration.scripts import DONE, conversation, shell, write_agents, write_script
from tests.integration.worker.approvals import SUPERVISED, file_of, journal, parked
from tests.served import ServerProcess, make_key
from tests.services import REPOSITORY, Installation, free_port
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

EXAMPLE = REPOSITORY / "config" / "redis-acl.example"
SCRIPT = (
    conversation("quick", shell("echo hi > a.txt"), DONE),
    conversation("asleep", shell("sleep 60"), DONE),
)


def users() -> list[str]:
    return [line for line in EXAMPLE.read_text().splitlines() if line.startswith("user ")]


def person(name: str) -> str:
    """A client's line for a person, as the file's comment says to make it."""
    (line,) = [line for line in users() if line.startswith("user fanout-client ")]
    return line.replace("fanout-client", name).replace("change-me-client", f"change-me-{name}")


def url(server: GuardedRedis, user: str) -> str:
    password = user.removeprefix("fanout-")
    return f"redis://{user}:change-me-{password}@127.0.0.1:{server.port}/0"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedRedis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    lines = [*users(), person("ann"), person("bob"), "user admin on >admin ~* &* +@all"]
    (folder / "users.acl").write_text("\n".join(lines) + "\n")
    acl = ("--aclfile", str(folder / "users.acl"))
    with guarded_redis(folder, *acl, username="admin", password="admin") as made:
        made.url = url(made, "fanout-client")
        yield made


@pytest.fixture
def place(guarded: GuardedRedis, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(
        tmp_path,
        guarded,
        script=write_script(tmp_path, *SCRIPT),
        FANOUT_AGENTS_DIR=str(write_agents(tmp_path, SUPERVISED)),
        FANOUT_REDIS_URL=url(guarded, "fanout-worker"),
    )
    yield made
    made.stop()


def refusals(server: GuardedRedis) -> list[tuple[str, str, str]]:
    with server.admin() as client:
        log = client.execute_command("ACL", "LOG", "128")
        return [(entry["username"], entry["reason"], entry["object"]) for entry in log]


@pytest.fixture
def flower(place: Installation, guarded: GuardedRedis) -> Iterator[str]:
    port = free_port()
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "celery", "-A", "fanout.workers.celery_app", "flower"],
        cwd=REPOSITORY,
        env=place.environment
        | {
            "FANOUT_REDIS_URL": url(guarded, "fanout-dashboard"),
            "FLOWER_UNAUTHENTICATED_API": "true",
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(port),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}/api/tasks"
    child.terminate()
    child.wait(timeout=60)


def _shows(address: str, job_id: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - http
        return job_id in str(answer.read(), "utf-8")
    return False


@pytest.mark.slow
async def test_a_whole_job_runs_with_three_users_and_redis_refuses_none_of_their_commands(
    place: Installation, guarded: GuardedRedis, flower: str
) -> None:
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        await eventually(lambda: asyncio.to_thread(_shows, flower, "{}"))  # Flower has started
        job_id = await client.submit(make_spec("quick", agent="guarded"))
        (approval,) = await parked(client, job_id)
        await client.send(job_id, "hello")
        await client.answer(approval.id, "approve")
        assert (await client.wait(job_id, 60)).success
        assert await file_of(client, job_id, "a.txt") == "hi\n"
        (answered,) = await journal(client, job_id, EventType.APPROVAL_RESOLVED)
        assert answered.data["by"] == "fanout-client"

        asleep = await client.submit(make_spec("asleep"))
        await until_event(client, asleep, EventType.TOOL_CALL)
        await client.cancel(asleep)
        assert (await client.wait(asleep, 60)).state is JobState.CANCELLED
        assert len(await client.list()) == 2
        assert len(await client.workers()) == 1
        await eventually(lambda: asyncio.to_thread(_shows, flower, job_id))

    assert refusals(guarded) == []


APPROVED = {"decision": "approve"}
ACTS = {
    "fanout-client": [
        "BRPOP fanout:queue:fanout 1",
        "RPOP fanout:queue:fanout",
        "LRANGE fanout:queue:fanout 0 -1",
        "DEL fanout:queue:fanout",
        "INCR fanout:fence",
        "HSET fanout:policy json {}",
        "HSET fanout:worker:w1 host h",
        "SADD fanout:held:w1 job",
        "PUBLISH fanout:queue:/0.celery.pidbox shutdown",
        "PSUBSCRIBE *",
        "SET fanout:answers:ann:ap_1 x",
        "SET other x",
        "KEYS *",
        "FLUSHALL",
        "CONFIG GET requirepass",
        "ACL LIST",
        "MONITOR",
        "EVAL return 0",
        "SCRIPT FLUSH",
        "HSET fanout:api_key:1 hash x",
        "HGETALL fanout:api_key:1",
        "SET fanout:session:1 x",
        "SET fanout:login:1 x",
        "XTRIM fanout:audit MAXLEN 0",
    ],
    "fanout-server": [
        "INCR fanout:fence",
        "PSUBSCRIBE *",
        "RPOP fanout:queue:fanout",
        "KEYS *",
        "SET other x",
    ],
    "fanout-worker": ["SET other x", "KEYS *", "FLUSHALL", "CONFIG GET *", "ACL LIST", "EVAL 1 0"],
    "fanout-dashboard": [
        "HGETALL fanout:job:1",
        "XRANGE fanout:journal:1 - +",
        "SET fanout:job:1 x",
        "HSET fanout:job:1 state running",
        "DEL fanout:jobs",
        "LPUSH fanout:queue:fanout x",
        "BRPOP fanout:queue:fanout 1",
        "INCR fanout:fence",
        "PUBLISH fanout:cancel 1",
        "PSUBSCRIBE fanout:bell:*",
        "KEYS *",
        "FLUSHALL",
        "CONFIG GET *",
    ],
}


@pytest.mark.parametrize("user", ACTS)
def test_each_is_refused_what_it_does_not_need(user: str, guarded: GuardedRedis) -> None:
    allowed = []
    with redis.Redis.from_url(url(guarded, user)) as client:
        for act in ACTS[user]:
            try:
                client.execute_command(*act.split())
                allowed.append(act)
            except redis.exceptions.NoPermissionError:
                continue

    assert allowed == []


async def test_a_client_cannot_claim_a_job_with_the_workers_own_script(
    guarded: GuardedRedis,
) -> None:
    async with connect(url(guarded, "fanout-worker")) as redis_of_worker:
        await Ledger(redis_of_worker, Keys()).register(make_worker(), 60)
    async with connect(guarded.url) as mine:
        ledger = Ledger(mine, Keys())
        (job_id,) = await ledger.submit([make_spec()])
        assert len(await ledger.dispatch(1)) == 1
        with pytest.raises(LedgerForbidden, match=r"redis-acl\.example"):
            await ledger.claim(job_id, make_worker(), 9)
        with pytest.raises(LedgerForbidden):
            await ledger.register(make_worker("mine"), 60)

        assert (await ledger.get(job_id)).state is JobState.QUEUED


async def test_the_service_has_all_rights_that_its_keys_sessions_and_audit_log_need(
    guarded: GuardedRedis,
) -> None:
    grant = Grant(name="a", owner="a", tenant="t", scopes=("read",), credential="k")
    async with open_access_stores(url(guarded, "fanout-server"), Keys().prefix) as stores:
        key, record = await stores.keys.create(
            "ann", ["read"], owner="ann", tenant="t", created_by=await stores.operator()
        )
        assert await stores.keys.find(key) == record
        assert [one.created_by for one in await stores.keys.list()] == ["fanout-server"]
        await stores.keys.revoke("ann")
        session = await stores.sessions.open(grant, 60)
        assert await stores.sessions.get(session) == grant
        await stores.sessions.end(session)
        token = await stores.sessions.create_login(grant, 60)
        assert await stores.sessions.take_login(token) == grant
        await stores.audit.append(AuditEntry(action="a", outcome="done"))
        assert len((await stores.audit.page()).items) == 1

    assert refusals(guarded) == []


@pytest.mark.slow
async def test_a_server_does_its_work_with_its_own_user_and_redis_refuses_nothing(
    place: Installation, guarded: GuardedRedis
) -> None:
    place.start_worker()
    place.environment["FANOUT_REDIS_URL"] = url(guarded, "fanout-server")
    serving = ServerProcess(place)
    serving.start()
    async with serving.client(await make_key(place, "ann", owner="*")) as http:
        body = {"description": "quick", "agent": "guarded"}
        job_id = (await http.post("/v1/jobs", json=body)).json()["id"]
        listed = await eventually(
            lambda: http.get("/v1/approvals"), lambda listed: listed.json()["items"]
        )
        statuses = [
            (await http.post(f"/v1/jobs/{job_id}:tell", json={"text": "hello"})).status_code,
            (
                await http.post(f"/v1/approvals/{listed.json()['items'][0]['id']}", json=APPROVED)
            ).status_code,
        ]
        ended = (await http.get(f"/v1/jobs/{job_id}?wait=60")).json()
        async with http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            events = [line async for line in response.aiter_lines()]
        paths = ("/readyz", "/v1/jobs", "/v1/audit", f"/v1/jobs/{job_id}/patch")
        statuses += [(await http.get(path)).status_code for path in paths]
        statuses.append((await http.post(f"/v1/jobs/{job_id}:retry")).status_code)
    serving.stop()

    assert ended["state"] == "succeeded", ended
    assert '"succeeded"' in "".join(events)
    assert statuses == [204, 200, 200, 200, 200, 200, 201]
    assert refusals(guarded) == []


def test_the_file_holds_no_password_that_works_unchanged_by_accident() -> None:
    passwords = re.findall(r" >(\S+)", EXAMPLE.read_text())

    assert passwords
    assert all(password.startswith("change-me-") for password in passwords)
    assert os.access(EXAMPLE, os.R_OK)
