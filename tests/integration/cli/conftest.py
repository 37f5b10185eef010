"""A private Redis, the command line as a child process, and jobs that end without a worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.accounts import charged
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import answers, connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.reservation_store import CallSize, SharedLimit
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.forked import REPOSITORY, ForkedProcess
from tests.waits import without_waits

Child = subprocess.Popen[bytes] | ForkedProcess
WORKER = WorkerInfo(name="w1", host="h1", concurrency=4, running=0, sandbox="local")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    """Without the lines that say what is waited for: a busy machine prints some anywhere."""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Fanout:
    """The command line with an environment of its own.

    It is forked, which saves the imports; `forked=False` starts an interpreter, as a person does.
    """

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __call__(
        self,
        *arguments: str,
        stdin: str | bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 90,
        forked: bool = True,
    ) -> Ended:
        child = self.start(*arguments, env=env, stdin=subprocess.PIPE, forked=forked)
        given = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            out, err = child.communicate(given, timeout)
        finally:
            child.kill()
        return Ended(child.wait(60), out.decode(), without_waits(err.decode()))

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        forked: bool = True,
    ) -> Child:
        environment = self.env | dict(env or {})
        pipe = subprocess.PIPE
        if forked:
            return ForkedProcess(
                "orchestrator",
                arguments,
                environment,
                folder=self.folder,
                stdin=stdin,
                stdout=pipe,
                stderr=pipe,
            )
        return subprocess.Popen(
            self.argv(*arguments),
            stdin=stdin,
            stdout=pipe,
            stderr=pipe,
            cwd=self.folder,
            env=environment,
        )

    @staticmethod
    def argv(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "fanout", *arguments]


def clean_environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FANOUT_")}
    return kept | {
        "PYTHONPATH": str(REPOSITORY),
        "FANOUT_STATE_DIR": str(folder / "state"),
        "TERM": "xterm",
    }


@pytest.fixture(scope="session")
def private_redis() -> Iterator[str]:
    binary = shutil.which("redis-server")
    if binary is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no redis-server on PATH")
        pytest.skip("no redis-server on PATH")
    with tempfile.TemporaryDirectory() as folder:
        url = f"unix://{folder}/r.sock"
        server = subprocess.Popen(
            [
                binary,
                "--port",
                "0",
                "--unixsocket",
                f"{folder}/r.sock",
                "--dir",
                folder,
                "--save",
                "",
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            while not answers(url):
                assert server.poll() is None
                time.sleep(0.02)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=60)


@pytest.fixture
async def ledger_url(private_redis: str) -> str:
    redis = connect(private_redis)
    await redis.flushall()
    await redis.aclose()
    return private_redis


@pytest.fixture
def fanout(ledger_url: str, tmp_path: Path) -> Fanout:
    return Fanout(tmp_path, clean_environment(tmp_path) | {"FANOUT_REDIS_URL": ledger_url})


@pytest.fixture
def lonely_fanout(tmp_path: Path) -> Fanout:
    """One that has no Redis."""
    return Fanout(tmp_path, clean_environment(tmp_path))


async def store_is_never_full() -> None:
    raise AssertionError("it waits")


class StandIn:
    """Does to jobs what a worker would, one step at a time."""

    def __init__(self, url: str, folder: Path) -> None:
        self._redis = connect(url)
        self._ledger = Ledger(self._redis, Keys())
        self._journal = Journal(self._redis, Keys())
        self.blobs = BlobStore((folder / "state" / "blobs").as_uri())

    async def claim(self, job_id: str) -> Claim:
        await self._ledger.register(WORKER, 60)
        await self._ledger.dispatch(1000)
        claim = await self._ledger.claim(job_id, WORKER, 60)
        assert isinstance(claim, Claim)
        return claim

    async def note(self, claim: Claim, kind: EventType, data: dict[str, Any]) -> None:
        await self._journal.append(claim.spec.id, claim.attempt, kind, data)

    async def charge(self, claim: Claim, used: dict[str, float], model: str) -> None:
        kind = EventType.MODEL_REPLY
        used = charged(used, model)
        await self._journal.append(claim.spec.id, claim.attempt, kind, {}, used=used)

    async def reserve(self, claim: Claim, size: CallSize, limit: SharedLimit) -> None:
        spec, token = claim.spec, claim.token
        store = self._ledger.reservations
        found = await store.reserve(
            spec.id, token, "call", size, [limit], on_wait=store_is_never_full
        )
        assert found == size.most_output_tokens

    async def finish(
        self,
        job_id: str,
        state: JobState = JobState.SUCCEEDED,
        *,
        claim: Claim | None = None,
        **fields: Any,
    ) -> None:
        claim = claim or await self.claim(job_id)
        success = state is JobState.SUCCEEDED
        result = JobResult(job_id=job_id, state=state, success=success, attempts=1, **fields)
        assert await self._ledger.finish(job_id, claim.token, result, {})

    async def close(self) -> None:
        await self._journal.close()
        await self._redis.aclose()


@pytest.fixture
async def stand_in(ledger_url: str, tmp_path: Path):
    worker = StandIn(ledger_url, tmp_path)
    yield worker
    await worker.close()


def in_folders(fanout: Fanout) -> Fanout:
    """The command line, with two folders of one file each."""
    for name in ("a", "b"):
        (fanout.folder / name).mkdir()
        (fanout.folder / name / "kept.txt").write_text("kept\n")
    return fanout


@pytest.fixture
def own(shared_fanout: Fanout, tmp_path: Path) -> Fanout:
    """The command line in two folders of a test, with the module's services."""
    return in_folders(Fanout(tmp_path, shared_fanout.env))
