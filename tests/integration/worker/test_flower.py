"""What Flower, Celery's own keys and the worker's log show of a job.

Its progress, and never its texts.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.result import JobResult
from tests.builders import make_spec
from tests.integration.worker.conftest import CANARY
from tests.services import REPOSITORY, Installation, free_port

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]

PAGES = ("tasks", "workers", "broker", "metrics")


@dataclass
class Flower:
    url: str

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=10) as answer:  # noqa: S310 - http
            return str(answer.read(), "utf-8")

    def task(self, job_id: str) -> dict[str, Any]:
        tasks: dict[str, dict[str, Any]] = json.loads(self.text("api/tasks"))
        return next((task for uuid, task in tasks.items() if uuid.startswith(f"{job_id}.")), {})

    def rows(self, job_id: str) -> list[dict[str, Any]]:
        """What the list of tasks shows of a job."""
        query = "draw=1&start=0&length=50&order[0][column]=0&columns[0][data]=received&order[0][dir]=desc"
        rows: list[dict[str, Any]] = json.loads(self.text(f"tasks/datatable?{query}"))["data"]
        return [row for row in rows if row["uuid"].startswith(f"{job_id}.")]

    async def until(self, job_id: str, field: str, beginning: str) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while True:
            task = await asyncio.to_thread(self.task, job_id)
            if str(task.get(field)).startswith(beginning):
                return task
            assert time.monotonic() < deadline, task
            await asyncio.sleep(0.2)


@contextmanager
def running_flower(place: Installation) -> Iterator[Flower]:
    """Flower of an installation, once it answers."""
    port = free_port()
    variables = {
        "FLOWER_UNAUTHENTICATED_API": "true",
        "FLOWER_ADDRESS": "127.0.0.1",
        "FLOWER_PORT": str(port),
    }
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "fanout.workers.dashboard"],
        cwd=REPOSITORY,
        env=place.environment | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    made = Flower(f"http://127.0.0.1:{port}")
    try:
        for _ in range(150):
            try:
                made.text("api/tasks")
                break
            except urllib.error.URLError:
                time.sleep(0.2)
        yield made
    finally:
        child.terminate()
        child.wait(timeout=20)


@pytest.fixture
def flower(place: Installation) -> Iterator[Flower]:
    with running_flower(place) as made:
        yield made


@pytest.fixture
def commands(place: Installation) -> Iterator[Path]:
    """A file that grows by every command that Redis is given."""
    path = place.folder / "commands.txt"
    with path.open("wb") as sink:
        watching = subprocess.Popen(
            ["redis-cli", "-p", str(place.redis.port), "MONITOR"], stdout=sink
        )
        yield path
        watching.terminate()
        watching.wait(timeout=10)


def _celerys(commands: Path) -> list[str]:
    """All commands but those of the ledger's scripts, which do hold the descriptions."""
    ledgers = (" lua]", '"EVALSHA"', '"SCRIPT"', '"EVAL"')
    return [
        line
        for line in commands.read_text().splitlines()
        if not any(word in line for word in ledgers)
    ]


@pytest.mark.slow
async def test_flower_shows_progress_and_labels_and_nobody_outside_sees_a_text(
    place: Installation, flower: Flower, commands: Path
) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        spec = make_spec(f"please {CANARY}", context=f"more {CANARY}", labels={"team": "blue"})
        job_id = await client.submit(spec)

        running = await flower.until(job_id, "result", "turn ")
        assert running["state"] == "PROGRESS"
        assert job_id in running["args"]
        assert '"team": "blue"' in running["kwargs"]

        result: JobResult = await client.wait(job_id, 30)
        assert result.success, result.error
        assert CANARY in result.summary, "else this test proves nothing"
        ended = await flower.until(job_id, "state", "SUCCESS")
        assert "succeeded · 1 files" in ended["result"]
        sent = [line for line in flower.text("metrics").splitlines() if 'type="task-sent"' in line]
        assert all('worker="clients@fanout"' in line for line in sent), "one series for all clients"
        assert sent

        page, (row,) = flower.text("tasks"), flower.rows(job_id)
        shown = re.findall(r'<th data-column="(\w+)">([^<]+)</th>', page)
        assert shown[:4] == [
            ("state", "State"),
            ("kwargs", "Agent and labels"),
            ("result", "Step, outcome or reason"),
            ("uuid", "Job"),
        ]
        assert row["kwargs"].endswith(" · team=blue")
        assert row["result"].startswith("succeeded · 1 files")

        lost = await client.submit(make_spec(CANARY, model="scripted:absent.yaml"))
        await client.wait(lost, 30)
        await flower.until(lost, "state", "FAILURE")
        (failed,) = flower.rows(lost)
        assert re.match(r"failed: [A-Z]\w+ ", failed["result"]), failed
        rows = json.dumps([row, failed])

        texts = {"flower": "".join(map(flower.text, ("api/tasks", f"task/{job_id}.1", *PAGES)))}
        texts["rows"] = rows
        texts["log"] = worker.log.read_text()
        texts["celery"] = "\n".join(await asyncio.to_thread(_celerys, commands))
        assert "LPUSH" in texts["celery"]
        assert "PUBLISH" in texts["celery"]
        assert [where for where, text in texts.items() if CANARY in text] == []
