"""A job pushes to a Git host and calls an API, and no key is ever inside of its sandbox."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fanout.orchestrator.jobs.ceilings import Ceilings
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_spec
from tests.git_host import GitHost, make_repository
from tests.https_host import PrivateAuthority
from tests.integration.scripts import DONE, conversation, says, shell
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.slow]

GIT_KEY, API_KEY = "canary-git-7f3e5b", "canary-api-91d2c4"
BASIC = base64.b64encode(f"x-access-token:{GIT_KEY}".encode()).decode()
NEVER_INSIDE = [GIT_KEY, API_KEY, BASIC]

AGENT = """
name: pusher
description: Pushes.
instruction: Push.
network: ["git.example:{port}", "api.example:{port}", "127.0.0.1:{port}"]
credentials:
  - host: git.example:{port}
    scheme: basic
    secret: GIT_TOKEN
    paths: ["/team/project.git/*"]
  - {{host: "api.example:{port}", header: X-Api-Key, scheme: raw, secret: API_KEY, methods: [GET]}}
"""

PUSH = """set -e
git clone -q https://git.example:{port}/team/project.git /tmp/project
cd /tmp/project
git config user.name job; git config user.email job@example
head -c 3000000 /dev/urandom > data; git add .; git commit -q -m pushed
git push -q origin HEAD:main
git clone -q https://git.example:{port}/team/other.git /tmp/other && echo other cloned || true
"""
CALL = """python3 - <<'END'
import urllib.request, urllib.error
print(urllib.request.urlopen("https://api.example:{port}/v1/thing").read().decode())
try:
    urllib.request.urlopen("https://api.example:{port}/v1/thing", data=b"x")
except urllib.error.HTTPError as error:
    print("post", error.code)
END"""
SEARCH = r"""
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' > /tmp/seen
grep -rlaE '[c]anary-(git|api)-|eC1hY2Nlc3M[t]dG9rZW' / \
  --exclude-dir=proc --exclude-dir=sys 2>/dev/null > /tmp/hits
grep -c PATH= /tmp/seen; env | grep -c ca-bundle
echo hits: $(cat /tmp/hits), searched"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    authority = PrivateAuthority(tmp_path / "authority")
    for name in ("project", "other"):
        make_repository(tmp_path / "repositories" / "team" / f"{name}.git")
    wanted = {"/team/": ("Authorization", f"Basic {BASIC}"), "/v1/": ("X-Api-Key", API_KEY)}
    context = authority.context("git.example", "api.example")
    with GitHost(tmp_path / "repositories", context, wanted).serving() as serving:
        yield serving


@pytest.fixture
def place(install: Installer, host: GitHost, tmp_path: Path) -> Installation:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "pusher.yaml").write_text(AGENT.format(port=host.port))
    (agents / "lacking.yaml").write_text(
        AGENT.format(port=host.port).replace("pusher", "lacking").replace("API_KEY", "REDIS_URL")
    )
    push = conversation(
        "push",
        *(shell(command.replace("{port}", str(host.port))) for command in (PUSH, CALL, SEARCH)),
        says("Finished.\n\n## Summary\n{{last_result}}"),
    )
    flood = conversation(
        "flood", shell(EXCEED.replace("{port}", str(host.port))), shell(FLOOD), DONE
    )
    hosts = [f"{name}:{host.port}" for name in ("git.example", "api.example", "127.0.0.1")]
    made = install(
        *(push, flood),
        FANOUT_CEILINGS__NETWORK=json.dumps(hosts),  # a job may not name an address else
        FANOUT_SANDBOX__PROVIDER="docker",
        FANOUT_SANDBOX__CA_FILE=str(tmp_path / "authority" / "ca.pem"),
        FANOUT_AGENTS_DIR=str(agents),
        FANOUT_LOG_LEVEL="debug",
        FANOUT_SECRETS__GIT_TOKEN=GIT_KEY,
        FANOUT_SECRETS__API_KEY=API_KEY,
    )
    ceilings = Ceilings(network=tuple(hosts))
    made.settings = made.settings.model_copy(update={"ceilings": ceilings})
    made.start_worker(module="tests.end_to_end.named_worker", forked=False)
    return made


EXCEED = """python3 - <<'END'
import urllib.request
for _ in range(20):
    print(urllib.request.urlopen("https://api.example:{port}/v1/thing").status)
END"""
FLOOD = """python3 - <<'END'
import socket
for number in range(300):
    link = socket.create_connection(("127.0.0.1", 3128))
    link.sendall(b"CONNECT evil%d.example:443 HTTP/1.1\\r\\n\\r\\n" % (number % 90))
    link.recv(1000)
    link.close()
END"""


async def run(
    place: Installation, description: str, **fields: Any
) -> tuple[Any, list[JournalEvent]]:
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec(description, **{"agent": "pusher", **fields}))
        result = await client.wait(job_id, 120)
        return result, [event async for event in client.events(job_id, follow=False)]


def shell_output(events: list[JournalEvent]) -> str:
    return "\n".join(str(event.data) for event in events if event.type is EventType.TOOL_RESULT)


def commits(repository: Path) -> list[str]:
    command = ["git", "-C", repository, "log", "--format=%s", "main"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def all_of_redis(url: str) -> str:
    """Every key and every value, whatever its type."""
    redis = Redis.from_url(url)
    read = {
        b"string": redis.get,
        b"hash": lambda key: {name: unpacked(one) for name, one in redis.hgetall(key).items()},
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1),
        b"stream": redis.xrange,
    }
    keys = list(redis.scan_iter())
    found = repr([(key, read[redis.type(key)](key)) for key in keys])
    redis.close()
    assert len(keys) > 5
    return found


def unpacked(value: bytes) -> bytes:
    """A value of a hash; payloads are compressed."""
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


def all_files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


async def test_a_job_pushes_and_calls_and_the_keys_are_nowhere(
    place: Installation, host: GitHost, tmp_path: Path
) -> None:
    result, events = await run(place, "push")

    said = shell_output(events)
    assert result.success, said + place.workers[0].tail()
    assert await asyncio.to_thread(commits, host.folder / "team/project.git") == ["pushed", "first"]
    assert host.refused == []  # not even once without the key
    assert "other cloned" not in said, said[-1500:]
    assert "post 403" in said, said[-1500:]
    assert (
        "'X-Api-Key': '*****************'" in said or '"X-Api-Key": "*****************"' in said
    ), said[-1500:]
    assert "hits: , searched" in said, said[-1500:]

    connections = [event.data for event in events if event.type is EventType.NETWORK_CONNECTION]
    sent = [data for data in connections if data.get("secret") == "GIT_TOKEN" and data["allowed"]]
    assert max(int(str(data["sent_bytes"])) for data in sent) > 3_000_000
    assert {"API_KEY", "GIT_TOKEN"} <= {data.get("secret") for data in connections}
    assert "project.git" not in repr(connections)

    place.stop()  # everything is written
    where = {
        "result": result.model_dump_json(),
        "journal": "\n".join(event.model_dump_json() for event in events),
        "redis": await asyncio.to_thread(all_of_redis, place.redis.url),
    }
    found = [(name, key) for name, text in where.items() for key in NEVER_INSIDE if key in text]
    state = tmp_path / "state"
    for folder in (state, place.folder):
        files = await asyncio.to_thread(lambda folder=folder: list(all_files(folder)))
        found += [
            (str(path), key)
            for path, content in files
            for key in NEVER_INSIDE
            if key.encode() in content
        ]
    assert found == []


async def test_a_secret_that_the_worker_lacks_ends_the_job_at_once(place: Installation) -> None:
    result, _ = await run(place, "push", agent="lacking")

    assert (result.success, result.attempts) == (False, 1)
    assert result.error.type == "InvalidJob"
    assert "FANOUT_SECRETS__REDIS_URL" in result.error.message


async def test_many_connections_leave_a_small_journal_and_the_budget_is_told(
    place: Installation,
) -> None:
    result, events = await run(place, "flood", limits={"network_bytes": 1024})

    said = shell_output(events)
    singles = [event for event in events if event.type is EventType.NETWORK_CONNECTION]
    sums = [event.data["hosts"] for event in events if event.type is EventType.NETWORK_SUMMARY]
    assert result.success, said
    assert "its limit (network_bytes, over all attempts) is 1,024 bytes" in said, said[-1500:]
    assert [event.data["limit_bytes"] for event in events if event.type is EventType.NETWORK_LIMIT]
    assert len(singles) == 100
    assert len(sums) <= 3
    assert all(isinstance(hosts, dict) and len(hosts) <= 51 for hosts in sums)
    counted = sum(int(total["refused"]) for hosts in sums for total in hosts.values())
    assert len(singles) + counted >= 300
