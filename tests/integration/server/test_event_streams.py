"""Streams of events: a reader that comes back misses nothing, whatever was killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator

import httpx2
import pytest

from tests.fixtures import place_fixture
from tests.integration.scripts import conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow]

RETRY_SECONDS = 0.1


place = place_fixture(conversation("", says("done")), scope="module")


@pytest.fixture(scope="module")
def servers(place: Installation) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers of one installation."""
    first, second = ServerProcess(place, "first"), ServerProcess(place, "second")
    first.start()
    second.start()
    yield first, second
    first.stop()
    second.stop()


class Reader:
    """Reads a stream to the job's end, as a browser does: it comes back with the last id."""

    def __init__(self, clients: list[httpx2.AsyncClient], job_id: str) -> None:
        self._clients = clients
        self._path = f"/v1/jobs/{job_id}/events"
        self._more = asyncio.Event()
        self.seen: list[str] = []
        self.connections = 0

    async def run(self) -> None:
        while True:
            client = self._clients[self.connections % len(self._clients)]
            self.connections += 1
            try:
                if await self._read(client):
                    return
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def has(self, count: int) -> None:
        """Wait until it has read so many events."""
        while len(self.seen) < count:
            self._more.clear()
            await self._more.wait()

    async def _read(self, client: httpx2.AsyncClient) -> bool:
        headers = {"Last-Event-ID": self.seen[-1]} if self.seen else {}
        async with client.stream("GET", self._path, headers=headers, timeout=None) as response:
            if response.status_code != httpx2.codes.OK:
                return False
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    self.seen.append(line.removeprefix("id: "))
                    self._more.set()
                if line.startswith("data: ") and "cancelled" in line:
                    return True
        return False


async def post(
    client: httpx2.AsyncClient, path: str, wanted: int, body: dict[str, str] | None = None
) -> None:
    """Repeat a request until it has a status; what is down comes back."""
    while True:
        try:
            if (await client.post(path, json=body)).status_code == wanted:
                return
        except httpx2.HTTPError:
            pass
        await asyncio.sleep(RETRY_SECONDS)


async def test_readers_miss_nothing_while_servers_and_redis_are_killed(
    place: Installation, servers: tuple[ServerProcess, ServerProcess]
) -> None:
    first, second = servers
    key = await make_key(place, "ann")
    one, two = first.client(key), second.client(key)
    job_id = (await one.post("/v1/jobs", json={"description": "wait"})).json()["id"]
    readers = [Reader(clients, job_id) for clients in ([one], [two], [one, two])]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    told = 0

    async def tell(client: httpx2.AsyncClient, count: int) -> None:
        nonlocal told
        for _ in range(count):
            told += 1
            await post(client, f"/v1/jobs/{job_id}:tell", 204, {"text": f"message {told}"})

    async def all_have(count: int) -> None:
        await asyncio.gather(*(reader.has(count) for reader in readers))

    await tell(one, 5)
    await all_have(5)
    await asyncio.to_thread(first.kill)
    await tell(two, 5)
    await readers[1].has(10)
    await asyncio.to_thread(first.start)
    await tell(one, 5)
    await all_have(15)
    await asyncio.to_thread(place.redis.kill)
    await asyncio.to_thread(place.redis.start)
    await tell(two, 5)
    await all_have(20)
    await asyncio.to_thread(second.stop)
    await tell(one, 5)
    await asyncio.to_thread(second.start)
    await post(one, f"/v1/jobs/{job_id}:cancel", 202)
    await asyncio.gather(*reading)

    written = [
        event["id"]
        for event in (await one.get(f"/v1/jobs/{job_id}/logs?limit=1000")).json()["items"]
    ]
    assert len(written) >= told
    for reader in readers:
        assert reader.seen == written
    assert readers[2].connections > 2
    await one.aclose()
    await two.aclose()


async def test_a_reader_that_names_an_id_of_the_future_keeps_no_other_one_waiting(
    place: Installation, servers: tuple[ServerProcess, ServerProcess]
) -> None:
    first, _ = servers
    async with first.client(await make_key(place, "eve")) as client:
        job_id = (await client.post("/v1/jobs", json={"description": "wait"})).json()["id"]
        reader = Reader([client], job_id)
        future = {"Last-Event-ID": "99999999999999-0"}
        async with client.stream(
            "GET", f"/v1/jobs/{job_id}/events", headers=future, timeout=None
        ) as waiting:
            assert waiting.status_code == httpx2.codes.OK
            chunks = waiting.aiter_raw()  # kept: a stream ends with its iterator
            await anext(chunks)
            for _ in range(5):  # meanwhile the server follows the job for it
                await client.get(f"/v1/jobs/{job_id}")
            reading = asyncio.create_task(reader.run())
            await reader.has(1)
            await post(client, f"/v1/jobs/{job_id}:tell", 204, {"text": "go on"})
            await reader.has(2)
            await post(client, f"/v1/jobs/{job_id}:cancel", 202)
            await reading
    assert len(reader.seen) >= 3


async def test_a_list_with_a_key_of_another_task_stores_none_of_its_jobs(
    place: Installation, servers: tuple[ServerProcess, ServerProcess]
) -> None:
    first, _ = servers
    async with first.client(await make_key(place, "joe")) as client:
        once = {"description": "one", "idempotency_key": "once"}
        known = await client.post("/v1/jobs", json=once)
        again = await client.post("/v1/jobs", json=[once])
        refused = await client.post(
            "/v1/jobs", json=[{"description": "new"}, once | {"description": "two"}]
        )
        stored = (await client.get("/v1/jobs")).json()["items"]

    assert again.json()["job_ids"] == [known.json()["id"]]
    assert refused.status_code == 409
    assert [one["id"] for one in stored] == again.json()["job_ids"]


async def test_a_server_that_is_asked_to_end_ends_streams_and_serves_what_it_began(
    place: Installation, servers: tuple[ServerProcess, ServerProcess]
) -> None:
    first, _ = servers
    key = await make_key(place, "bob")
    async with first.client(key) as client:
        job_id = (await client.post("/v1/jobs", json={"description": "wait"})).json()["id"]
        waiting = asyncio.create_task(client.get(f"/v1/jobs/{job_id}?wait=2"))
        async with client.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if line.startswith("data: "):
                    break
            first.process.terminate()
            rest = [line async for line in lines]  # it ends
        assert not any(line.startswith("data: ") for line in rest)
        response = await waiting
        assert (response.status_code, json.loads(response.text)["state"]) == (200, "queued")
        ended = await asyncio.to_thread(first.process.wait, 30)
        assert ended in {0, -signal.SIGTERM}, first.tail()
        with pytest.raises(httpx2.ConnectError):
            await client.get("/healthz")
    assert "Traceback" not in first.tail(), first.tail()
