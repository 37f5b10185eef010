"""Runs survive whatever dies, at any moment: they end, `attach` lands them, nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.faults.counting_model import CountingModel, counting_model
from tests.forked import ForkedProcess, run_module
from tests.integration.scripts import call, calls, conversation, says, shell, write_script
from tests.services import Installation, Installer
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

BEHIND, WAITED_FOR = "ef", "abcd"
"""The files of the tasks that go on beside the coordinator, and of those that it waits for."""
ALL = WAITED_FOR + BEHIND
OWN = "cat {}".format(" ".join(f"{name}.txt" for name in ALL))

SCRIPT = (
    conversation(
        "^make six",
        calls(*(call("start_task", description=f"makes {name}") for name in BEHIND)),
        calls(*(call("task", description=f"makes {name}") for name in WAITED_FOR)),
        calls(call("wait_tasks", task_ids=["{{started}}"])),
        shell(f"{OWN} > all.txt"),
        shell(f"test -s all.txt || {OWN} > all.txt"),  # the first may be cut off
        says("## Summary\nSix are made."),
    ),
    conversation(
        r"makes (\w)",
        shell("echo {{1}} >> {{1}}.txt; sleep 0.7"),
        shell("test -s {{1}}.txt || echo {{1}} >> {{1}}.txt"),
        says("Made."),
    ),
)
MODEL_CALLS = 6 + 3 * len(ALL)
FOLDER = {"kept.txt": "kept\n", "all.txt": "".join(f"{name}\n" for name in ALL)}
FOLDER |= {f"{name}.txt": f"{name}\n" for name in ALL}
MOMENTS = {
    "terminal": (6, 40),
    "worker": (5, 17, 30, 44),
    "redis": (9, 24, 38),
    "container": (7, 20, 41),
    "lid": (12, 35),
}
"""After how many entries of the run's journal what is killed, or put to sleep with all the rest."""
ASLEEP_SECONDS = 6.0
"""Longer than a lease."""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[CountingModel]:
    with counting_model(write_script(tmp_path, *SCRIPT)) as model:
        yield model


@pytest.fixture
def place(install: Installer, provider: str, model: CountingModel) -> Installation:
    settings = {"FANOUT_SANDBOX__PROVIDER": provider, "FANOUT_WORKER__LEASE_SECONDS": "4"}
    return install(**settings, **model.environment())


def read(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def started(place: Installation, folder: Path) -> tuple[ForkedProcess, str]:
    """A run with a terminal, and its id."""
    folder.mkdir()
    (folder / "kept.txt").write_text("kept\n")
    options = ("--workspace", str(folder), "--yes", "--full-ids")
    pipe = subprocess.PIPE
    terminal = ForkedProcess(
        "orchestrator", ("run", "make six", *options), place.environment, folder=folder,
        stdin=pipe, stdout=pipe, stderr=pipe,
    )  # fmt: skip
    assert terminal.stderr is not None
    for line in iter(terminal.stderr.readline, b""):
        if line.startswith(b"Run "):
            return terminal, line.split()[1].decode()
    raise AssertionError("it did not start")


async def until_entries(client: JobClient, job_id: str, count: int) -> None:
    await until_event(client, job_id, lambda _: True, count)


def kill(place: Installation, victim: str, terminal: ForkedProcess) -> None:
    if victim == "worker":
        place.workers[-1].kill()
        place.start_worker()
    elif victim == "redis":
        place.redis.kill()
        place.redis.start()
    elif victim == "lid":
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(terminal.pid, number)
            for service in (place.redis, place.workers[-1]):
                service.send(number)
            time.sleep(ASLEEP_SECONDS if number is signal.SIGSTOP else 0)
        terminal.communicate(timeout=60)
        return
    elif victim == "container":
        engine = ["docker", "ps", "-q", "--filter", f"label=fanout.installation={place.identity}"]
        listed = subprocess.run(
            [*engine, "--filter", "label=fanout.role=sandbox"],
            check=True,
            capture_output=True,
            text=True,
        )
        if found := listed.stdout.split():
            subprocess.run(["docker", "kill", *found], check=False, capture_output=True)
    terminal.kill()


@pytest.mark.parametrize("victim", MOMENTS)
async def test_a_run_survives_a_death_at_any_moment_and_lands_as_if_undisturbed(
    place: Installation, model: CountingModel, tmp_path: Path, provider: str, victim: str
) -> None:
    if victim == "container" and provider == "local":
        pytest.skip("there is none")
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        for moment in MOMENTS[victim]:
            folder = tmp_path / f"at-{moment}"
            model.completed.clear()
            model.asked.clear()
            terminal, run_id = await asyncio.to_thread(started, place, folder)
            async with asyncio.timeout(60):
                await until_entries(client, run_id, moment)
            await asyncio.to_thread(kill, place, victim, terminal)

            landed: Any = await asyncio.to_thread(
                run_module,
                *("orchestrator", "attach", run_id),
                environment=place.environment,
                timeout=60,
            )

            assert (landed.returncode, landed.stdout) == (0, "Six are made.\n"), landed.stderr
            assert read(folder) == FOLDER, moment
            jobs = await client.tree(run_id)
            assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 7, moment
            assert (await client.tree_usage(run_id)).model_calls == MODEL_CALLS, moment
            # An answer that comes while the worker sleeps, or as it is killed, is not heard.
            assert max(model.completed.values()) <= 2, model.completed
            assert victim == "lid" or model.asked_again() == []
            assert len(model.completed) == MODEL_CALLS, moment
            commands = [
                str(event.data["arguments"])
                for job in jobs
                async for event in client.events(job.id, follow=False)
                if event.type is EventType.TOOL_CALL and event.data["tool"] == "execute"
            ]
            assert len(set(commands)) == len(commands), moment  # none ran twice
