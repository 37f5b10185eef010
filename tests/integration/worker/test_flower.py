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
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.ledger import Dispatched
from fanout.orchestrator.jobs.store.queue import CeleryQueue
from tests.builders import make_spec
from tests.conftest import missing
from tests.integration.page.browser import browser, chromium
from tests.integration.scripts import DONE, conversation, shell
from tests.integration.worker.approvals import SUPERVISED, parked
from tests.integration.worker.conftest import CANARY
from tests.services import REPOSITORY, Installation, Installer, free_port
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

GUARDED_SCRIPT = conversation("one command", shell("echo asked > out.txt"), DONE)
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
        return dict(
            await eventually(
                lambda: asyncio.to_thread(self.task, job_id),
                lambda task: str(task.get(field)).startswith(beginning),
            )
        )


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
        [sys.executable, "-P", "-m", "fanout.workers.extras.dashboard"],
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
        child.wait(timeout=60)


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
        watching.wait(timeout=60)


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

        result: JobResult = await client.wait(job_id, 60)
        assert result.success, result.error
        assert CANARY in result.summary, "else this test proves nothing"
        ended = await flower.until(job_id, "state", "SUCCESS")
        assert "succeeded · 1 file " in ended["result"]
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
        assert row["result"].startswith("succeeded · 1 file ")

        lost = await client.submit(make_spec(CANARY, model="scripted:absent.yaml"))
        await client.wait(lost, 60)
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


@pytest.mark.slow
async def test_only_a_job_that_succeeded_is_a_success(place: Installation, flower: Flower) -> None:
    place.start_worker()
    queue = CeleryQueue(place.redis.url, "fanout", "fanout")
    async with place.client() as client:
        await place.ready(client)
        ended = await client.submit(make_spec("quick work"))
        assert (await client.wait(ended, 60)).success
        outcome = await flower.until(ended, "state", "SUCCESS")
        never = make_spec("was never submitted")
        await queue.send([Dispatched(never, 1), Dispatched(make_spec(id=ended), 1)])
        assert (await flower.until(never.id, "state", "REJECTED"))["state"] == "REJECTED"
        (refused,) = await asyncio.to_thread(flower.rows, never.id)
        assert refused["result"] == "not run: unknown"

        running = await client.submit(make_spec("a long sleep"))
        await flower.until(running, "state", "PROGRESS")
        await client.cancel(running)
        assert (await client.wait(running, 60)).state is JobState.CANCELLED
        revoked = await flower.until(running, "state", "REVOKED")
        assert revoked["result"].startswith("cancelled")

        again = await asyncio.to_thread(flower.task, ended)
        assert (again["state"], again["result"]) == ("SUCCESS", outcome["result"])
    await queue.close()


@pytest.fixture
def guarded_place(install: Installer) -> Installation:
    return install(GUARDED_SCRIPT, agents=SUPERVISED)


@pytest.fixture
def guarded_flower(guarded_place: Installation) -> Iterator[Flower]:
    with running_flower(guarded_place) as made:
        yield made


@pytest.mark.slow
async def test_a_job_that_waits_for_a_person_is_no_success_and_its_row_keeps_saying_so(
    guarded_place: Installation, guarded_flower: Flower
) -> None:
    guarded_place.start_worker()
    async with guarded_place.client() as client:
        await guarded_place.ready(client)
        job_id = await client.submit(make_spec("one command", agent="guarded"))
        (approval,) = await parked(client, job_id)
        waiting = await guarded_flower.until(job_id, "state", "WAITING")
        assert waiting["result"] == "waits for a decision"
        await client.answer(approval.id, "approve")
        assert (await client.wait(job_id, 60)).success
        async with asyncio.timeout(60):
            states: set[str] = set()
            while "SUCCESS" not in states:
                rows = await asyncio.to_thread(guarded_flower.rows, job_id)
                states = {row["state"] for row in rows}
        assert states == {"WAITING", "SUCCESS"}


@pytest.mark.slow
async def test_a_job_that_is_cancelled_while_it_waits_is_shown_as_revoked(
    guarded_place: Installation, guarded_flower: Flower
) -> None:
    guarded_place.start_worker()
    async with guarded_place.client() as client:
        await guarded_place.ready(client)
        job_id = await client.submit(make_spec("one command", agent="guarded"))
        await parked(client, job_id)
        await guarded_flower.until(job_id, "state", "WAITING")
        await client.cancel(job_id)
        row = await guarded_flower.until(job_id, "state", "REVOKED")

    assert row["result"] == "cancelled while it waited"


@pytest.mark.slow
async def test_rows_fit_a_window_and_a_link_leads_to_the_jobs_that_wait(
    place: Installation, flower: Flower
) -> None:
    if chromium() is None:
        missing("There is no Chromium: apt-get install chromium.")
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        labels = {"campaign": "x" * 120, "team": "blue green red"}
        for spec in (make_spec("quick work", labels=labels), make_spec("x", model="scripted:no")):
            await client.wait(await client.submit(spec), 60)
            await flower.until(spec.id, "state", "")
    width, room, link = await asyncio.to_thread(_seen_at, f"{flower.url}/tasks", 1400)
    assert width <= room < 1400
    assert link.endswith(":8642/?state=queued&all=1")


def _seen_at(url: str, width: int) -> tuple[int, int, str]:
    """Return where a list of tasks ends, where its frame does, and where its link leads."""
    with browser() as opened:
        page = opened.new_page(viewport={"width": width, "height": 900})
        page.goto(url)
        page.wait_for_selector("#tasks-table tbody tr:nth-child(2)")
        link = page.get_attribute("nav a:has-text('Waiting jobs')", "href")
        page.eval_on_selector(
            "#tasks-table tbody tr:last-child td:last-child a",
            "(name) => { name.textContent = 'fanout-1234567@ip-10-0-123-45.eu-central-1.internal'; }",
        )
        table, frame = page.evaluate(
            "[document.querySelector('#tasks-table'), document.querySelector('#tasks-table').parentElement]"
            ".map((one) => one.getBoundingClientRect().right)"
        )
        return round(table), round(frame), str(link)
