"""What one server process of the service carries: submissions, events, readers."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import psutil

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.scripts import call, calls, conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation, installation, write_script

BATCH, BATCHES = 500, 8
JOBS, READERS = 200, 500
STEPS, STEP_SECONDS = 4, 5.0
SILENT, SILENT_ADDRESSES, ASKED = 5000, 5, 200
CONNECTED_SECONDS = 2.0
"""After which all readers have caught up with what happened before they came."""
MIB = 1024**2
Measure = Callable[[Installation, ServerProcess, JobClient, httpx2.AsyncClient], Awaitable[Samples]]

SUBMIT = Benchmark(
    name="http-submit",
    title=f"a job submitted over HTTP, {BATCH} in a request",
    unit="ms",
    floor="the same through JobClient",
    target=1.0,
)
EVENT = Benchmark(
    name="http-event",
    title=f"an event from a worker to a reader over HTTP, {JOBS} jobs at work",
    unit="ms",
    floor="the same through JobClient.events",
    target_p95=50,
)
READING = Benchmark(
    name="http-memory",
    title=f"RSS of a server with {READERS} readers of events",
    unit="MiB",
    floor="the same server, idle",
    target=256,
)

SILENCE = Benchmark(
    name="http-silent",
    title=f"a request on a new connection beside {SILENT:,} silent ones",
    unit="ms",
    floor="the same without them",
    target_p95=100,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure a server of its own for each benchmark that is wanted."""
    for benchmark, measure in (
        (SUBMIT, _submit),
        (EVENT, _events),
        (READING, _readers),
        (SILENCE, _silence),
    ):
        if benchmark.name not in wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            script = write_script(Path(name), _steps())
            with installation(Path(name), script=script) as place:
                yield benchmark, await _served(place, measure)


async def _served(place: Installation, measure: Measure) -> Samples:
    server = ServerProcess(place, forked=False)
    await asyncio.to_thread(server.start)
    try:
        async with place.client() as client, server.client(await make_key(place, "ann")) as http:
            return await measure(place, server, client, http)
    finally:
        await asyncio.to_thread(server.stop)


def _steps() -> dict[str, object]:
    todo = call("write_todos", todos=[{"content": "look", "status": "in_progress"}])
    step = calls(todo) | {"delay_seconds": STEP_SECONDS}
    return conversation("", *[step] * STEPS, says("done"))


async def _submit(
    place: Installation, server: ServerProcess, client: JobClient, http: httpx2.AsyncClient
) -> Samples:
    del place, server
    bodies = [{"description": f"Look at part {number}."} for number in range(BATCH)]
    ours, floor = [], []
    for round_number in range(BATCHES + 1):
        began = time.perf_counter()
        (await http.post("/v1/jobs", json=bodies)).raise_for_status()
        between = time.perf_counter()
        await client.submit_many([(JobSpec.model_validate(one), None) for one in bodies])
        ended = time.perf_counter()
        if round_number:  # the first one imports and connects
            ours.append((between - began) * 1000 / BATCH)
            floor.append((ended - between) * 1000 / BATCH)
    return Samples(ours, floor)


async def _events(
    place: Installation, server: ServerProcess, client: JobClient, http: httpx2.AsyncClient
) -> Samples:
    place.start_worker(JOBS, forked=False, FANOUT_LIMITS__TREE_JOBS=str(JOBS))
    await place.ready(client)
    samples = []
    for read in (_over_http, _directly):
        ids = await _submitted_in_turn(http)
        delays: list[float] = []
        async with httpx2.AsyncClient(
            base_url=server.url,
            headers=http.headers,
            limits=httpx2.Limits(max_connections=None),
            timeout=None,
        ) as many:
            await asyncio.gather(*(read(many, client, job_id, delays) for job_id in ids))
        samples.append(delays)
    return Samples(*samples)


async def _submitted_in_turn(http: httpx2.AsyncClient) -> list[str]:
    """Jobs that begin one after the other, so that they are not at the same step all the time."""
    ids = []
    for number in range(JOBS):
        response = await http.post("/v1/jobs", json={"description": f"Part {number}."})
        ids.append(response.json()["id"])
        await asyncio.sleep(STEP_SECONDS / JOBS)
    return ids


async def _over_http(
    http: httpx2.AsyncClient, client: JobClient, job_id: str, delays: list[float]
) -> None:
    del client
    async with http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        opened = time.time()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                _note(json.loads(line[5:])["at"], opened, delays)


async def _directly(
    http: httpx2.AsyncClient, client: JobClient, job_id: str, delays: list[float]
) -> None:
    del http
    opened = time.time()
    async for event in client.events(job_id):
        _note(event.at, opened, delays)


def _note(at: float, opened: float, delays: list[float]) -> None:
    """Note the delay of an event; those from before all readers were there are left out."""
    if at > opened + CONNECTED_SECONDS:
        delays.append(max((time.time() - at) * 1000, 0.001))


async def _readers(
    place: Installation, server: ServerProcess, client: JobClient, http: httpx2.AsyncClient
) -> Samples:
    del place, client
    process = psutil.Process(server.process.pid)
    await http.get("/v1/jobs")
    idle = process.memory_info().rss / MIB
    bodies = [{"description": f"Part {number}."} for number in range(JOBS)]
    ids = (await http.post("/v1/jobs", json=bodies)).json()["job_ids"]
    async with (
        httpx2.AsyncClient(
            base_url=server.url,
            headers=http.headers,
            limits=httpx2.Limits(max_connections=None),
            timeout=None,
        ) as many,
        AsyncExitStack() as opened,
    ):
        for number in range(READERS):
            path = f"/v1/jobs/{ids[number % JOBS]}/events"
            response = await opened.enter_async_context(many.stream("GET", path))
            await anext(response.aiter_raw())
        await asyncio.sleep(1)
        weights = [process.memory_info().rss / MIB]
    return Samples(weights, [idle])


async def _silence(
    place: Installation, server: ServerProcess, client: JobClient, http: httpx2.AsyncClient
) -> Samples:
    del place, client
    port = int(server.url.rpartition(":")[2])
    await _answers(http, port)  # the first ones import and connect
    floor = await _answers(http, port)
    opened = [
        await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(f"127.0.1.{1 + number % SILENT_ADDRESSES}", 0)
        )
        for number in range(SILENT)
    ]
    ours = await _answers(http, port)
    for _, writer in opened:
        writer.transport.abort()
    return Samples(ours, floor)


async def _answers(http: httpx2.AsyncClient, port: int) -> list[float]:
    """The milliseconds of requests, each on a connection of its own."""
    request = (
        "GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Authorization: {http.headers['Authorization']}\r\n\r\n"
    ).encode()
    taken = []
    for _ in range(ASKED):
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        taken.append((time.perf_counter() - began) * 1000)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
    return taken


SECTION = Section(benchmarks=(SUBMIT, EVENT, READING, SILENCE), run=run)
