"""What `fanout doctor --security` finds on a running installation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.store.access_stores import open_access_stores
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.integration.cli.conftest import WORKER, Fanout
from tests.services import RedisProcess

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def findings(fanout: Fanout, **env: str) -> dict[str, dict[str, Any]]:
    """The checks by name; the exit code says whether one failed."""
    ended = fanout("doctor", "--security", "--json", env=env, timeout=100)
    assert ended.out, ended.err
    found = {check["name"]: check for check in ended.json["checks"]}
    assert ended.code == any(check["status"] == "fail" for check in found.values())
    return found


def test_it_names_open_doors(lonely_fanout: Fanout) -> None:
    folder = lonely_fanout.folder / "configuration"
    agents = folder / "agents"
    agents.mkdir(parents=True)
    (folder / "config.toml").touch()
    (folder / ".env").touch(0o644)
    (agents / "spy.yaml").write_text(
        "name: spy\ndescription: d\ninstruction: i\nnetwork: ['*.example.com']\n"
    )
    for path in (folder / "config.toml", agents / "spy.yaml"):
        path.chmod(0o666)

    found = findings(
        lonely_fanout,
        FANOUT_REDIS_URL="redis://203.0.113.7:6379/0",
        DOCKER_HOST="tcp://203.0.113.8:2375",
        FANOUT_CONFIG=str(folder / "config.toml"),
    )

    failed = {name for name, check in found.items() if check["status"] == "fail"}
    assert failed >= {
        "redis password",
        "docker engine",
        ".env",
        "configuration file",
        "agent spy",
    }
    assert found["redis transport"]["status"] == "warn"
    assert found["network"]["status"] == "warn"
    assert found["agent spy"]["advice"].startswith("chmod 644 ")


async def test_it_shows_what_workers_say_of_their_protection(
    fanout: Fanout, ledger_url: str
) -> None:
    protection = {"user": "root", "engine": "proxy", "disk": "watch"}
    async with connect(ledger_url) as redis:
        worker = replace(WORKER, sandbox="docker", protection=protection)
        await Ledger(redis, Keys()).register(worker, 120)

    found = findings(fanout)

    assert {name: found[f"worker {name}"]["status"] for name in protection} == {
        "user": "warn",
        "engine": "ok",
        "disk": "warn",
    }
    assert found["sandbox"]["status"] == "ok"


async def test_a_worker_without_isolation_is_a_failure(fanout: Fanout, ledger_url: str) -> None:
    async with connect(ledger_url) as redis:
        await Ledger(redis, Keys()).register(replace(WORKER, sandbox="local"), 120)

    assert findings(fanout)["sandbox"]["status"] == "fail"


@pytest.fixture
def redis_process(tmp_path: Path) -> Iterator[RedisProcess]:
    """A Redis of the test's own, on TCP."""
    process = RedisProcess(tmp_path)
    process.start()
    yield process
    process.stop()


async def configure(url: str, *commands: str) -> None:
    client: Any = connect(url)
    try:
        for command in commands:
            await client.execute_command(*command.split())
    finally:
        await client.aclose()


async def test_it_says_which_rights_redis_gives(
    lonely_fanout: Fanout, redis_process: RedisProcess
) -> None:
    await configure(
        redis_process.url,
        "ACL SETUSER fanout on >secret ~fanout:* &fanout:* +@all -config -@admin +acl|whoami",
        "CONFIG SET maxmemory 100mb",
        "CONFIG SET maxmemory-policy allkeys-lru",
    )
    restricted = redis_process.url.replace("redis://", "redis://fanout:secret@")

    found = findings(lonely_fanout, FANOUT_REDIS_URL=restricted)

    assert found["redis password"]["status"] == "ok"
    assert found["redis default user"]["status"] == "warn"  # on loopback
    assert found["redis rights"]["status"] == "ok"
    assert found["redis eviction"]["status"] == "fail"


async def test_it_is_content_with_a_closed_redis(
    lonely_fanout: Fanout, redis_process: RedisProcess
) -> None:
    await configure(
        redis_process.url,
        "ACL SETUSER fanout on >secret ~fanout:* &fanout:* +@all -config -@admin +acl|whoami",
        "CONFIG SET maxmemory 100mb",
        "ACL SETUSER default off",
    )
    restricted = redis_process.url.replace("redis://", "redis://fanout:secret@")

    found = findings(lonely_fanout, FANOUT_REDIS_URL=restricted)

    of_redis = {name: check["status"] for name, check in found.items() if "redis" in name}
    assert of_redis == dict.fromkeys(of_redis, "ok")
    assert "redis default user" not in of_redis


async def test_it_names_keys_that_nobody_uses_and_an_address_without_https(
    fanout: Fanout, ledger_url: str
) -> None:
    async with open_access_stores(ledger_url, Keys().prefix) as stores:
        for name, owner in (("old", "old"), ("ops", "*")):
            given = {"owner": owner, "tenant": "default", "created_by": "test"}
            _, record = await stores.keys.create(name, ["read", "submit"], **given)
            if name == "old":  # as a release without policies has left it
                await stores.redis.hset(Keys().api_key(record.id), "created_at", "1")
                await stores.redis.hdel(Keys().api_key(record.id), "policy")

    found = findings(fanout, FANOUT_API__HOST="0.0.0.0")  # noqa: S104 - what is found

    assert found["service address"]["status"] == "warn"
    assert "https" in found["service address"]["advice"]
    assert found["service keys"]["found"] == "2, 1 of them for everybody's jobs"
    assert found["keys may choose anything"]["found"] == "old"
    plain = fanout("doctor", "--json").json["checks"]
    assert [one["found"] for one in plain if one["name"] == "keys may choose anything"] == ["old"]
    listed = {one["name"]: one["may_choose"] for one in fanout("keys", "ls", "--json").json["keys"]}
    assert listed == {
        "old": "anything (made before there were lists)",
        "ops": "what agent definitions say",
    }
    bound = fanout(
        "keys", "ls", "--json", env={"FANOUT_API__CALLERS__KEYS": '{"old": {"models": ["a"]}}'}
    )
    assert bound.json["keys"][0]["may_choose"] == "models: a"
    assert found["service keys unused"]["found"] == "1 not used for 90 days: old"
