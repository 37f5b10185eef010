"""An owner's job beside work of another owner that costs much, against the same job alone."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import httpx2

from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.scripts import call, calls, conversation, says
from tests.served import ServerProcess, make_key
from tests.services import installation, write_script

ROUNDS = 5
TURNS, TURN_SECONDS = 4, 0.5
"""Of the job's model: a quick one, so that what is beside it counts."""
SETTLING_SECONDS = 1.5
"""Until the other owner's work is under way."""
AT_ONCE = 8
"""Requests of the other owner."""
READS = 20
"""Of the notebook, by each job of the other owner."""

Ask = Callable[[httpx2.AsyncClient], Awaitable[httpx2.Response]]


def _archive() -> bytes:
    """A few kilobytes that imply 50,200 folders."""
    return _tar({f"{number}/{'d/' * 199}f": b"" for number in range(251)})


def _headers() -> bytes:
    """Extended headers whose parsing takes long in Python before 3.11.10."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 60 * 1024
    one = header.tobuf() + b"1" * header.size + bytes(-header.size % 512)
    return gzip.compress(one * 20)


def _notebook() -> bytes:
    """A notebook of seven million lists."""
    return _tar({"bomb.ipynb": b'{"cells": [' + b"[]," * 5_000_000 + b"[]]}"})


def _tar(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(sink.getvalue())


def _schemas() -> bytes:
    """Jobs with schemas of 1,500 patterns each, all of which are compiled."""
    patterns = [{"pattern": f"(\\w{{20}}){{5}}{number}"} for number in range(1_500)]
    return json.dumps(
        [
            {"description": "bomb", "output_schema": {"title": str(number), "allOf": patterns}}
            for number in range(20)
        ]
    ).encode()


def _upload(content: bytes) -> Ask:
    return lambda http: http.post("/v1/snapshots", content=content)


def _json(content: bytes) -> Ask:
    headers = {"Content-Type": "application/json"}
    return lambda http: http.post("/v1/jobs", content=content, headers=headers)


BOMBS: dict[str, Callable[[], Ask]] = {
    "archive": lambda: _upload(_archive()),
    "headers": lambda: _upload(_headers()),
    "schemas": lambda: _json(_schemas()),
    "json": lambda: _json(b"[" + b"[]," * 3_000_000 + b"[]]"),
}
"""What the other owner asks for again and again, by its kind."""
NOTEBOOK = "notebook"
"""The kind of which jobs are the bomb: their agents read a notebook."""

BENCHMARKS = {
    kind: Benchmark(
        name=f"beside-{kind}-bomb",
        title=f"a job of {TURNS} model turns beside another owner's {kind} bomb",
        unit="s",
        floor="the same job alone",
        target_ratio=1.5,
    )
    for kind in (*BOMBS, NOTEBOOK)
}


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Time jobs of one owner, alone and beside each bomb in turn."""
    if not any(one.name in wanted for one in BENCHMARKS.values()):
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        script = write_script(Path(name), _bomb(), _job())
        with installation(Path(name), script=script) as place:
            place.start_worker(concurrency=16, forked=False)
            server = ServerProcess(place, forked=False)
            await asyncio.to_thread(server.start)
            try:
                async with (
                    place.client() as client,
                    server.client(await make_key(place, "ann")) as ann,
                    server.client(await make_key(place, "bob")) as bob,
                ):
                    await place.ready(client)
                    await _timed(ann)  # a warm-up
                    for kind, benchmark in BENCHMARKS.items():
                        if benchmark.name in wanted:
                            yield benchmark, await _measured(kind, ann, bob)
            finally:
                await asyncio.to_thread(server.stop)


def _job() -> dict[str, object]:
    todo = call("write_todos", todos=[{"content": "look", "status": "in_progress"}])
    turn = calls(todo) | {"delay_seconds": TURN_SECONDS}
    return conversation("ordinary", *[turn] * TURNS, says("done"))


def _bomb() -> dict[str, object]:
    read = calls(call("read_file", path="/bomb.ipynb"))
    return conversation("bomb", *[read] * READS, says("done"))


async def _measured(kind: str, ann: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> Samples:
    alone = [await _timed(ann) for _ in range(ROUNDS)]
    async with _jobs(bob) if kind == NOTEBOOK else _asked(bob, BOMBS[kind]()):
        await asyncio.sleep(SETTLING_SECONDS)
        beside = [await _timed(ann) for _ in range(ROUNDS)]
    return Samples(beside, alone)


async def _timed(http: httpx2.AsyncClient) -> float:
    """Seconds from the submission of a job to its result."""
    began = time.perf_counter()
    submitted = await http.post("/v1/jobs", json={"description": "An ordinary job."}, timeout=120)
    path = f"/v1/jobs/{submitted.json()['id']}"
    while True:
        answer = await http.get(path, params={"wait": 30}, timeout=120)
        if (result := answer.json()["result"]) is not None:
            assert result["state"] == "succeeded", result
            return time.perf_counter() - began


@contextlib.asynccontextmanager
async def _asked(http: httpx2.AsyncClient, ask: Ask) -> AsyncIterator[None]:
    """Ask for something again and again, several times at once, until the context is left."""

    async def again() -> None:
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                await ask(http)

    tasks = [asyncio.create_task(again()) for _ in range(AT_ONCE)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _jobs(http: httpx2.AsyncClient) -> AsyncIterator[None]:
    """Have several agents read the notebook, until the context is left."""
    stored = await http.post("/v1/snapshots", content=_notebook(), timeout=120)
    body = {"description": "bomb", "snapshot": stored.json()["snapshot"]}
    ids = (await http.post("/v1/jobs", json=[body] * AT_ONCE, timeout=120)).json()["job_ids"]
    try:
        yield
    finally:
        for job_id in ids:
            await http.post(f"/v1/jobs/{job_id}:cancel", timeout=120)


SECTION = Section(benchmarks=tuple(BENCHMARKS.values()), run=run)
