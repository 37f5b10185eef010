"""How soon a command has done its work and a worker is ready, beside Python's own start."""

from __future__ import annotations

import asyncio
import compileall
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from fanout.orchestrator.jobs.spec import JobSpec
from tests.benchmarks.measure import (
    Benchmark,
    Samples,
    Section,
    interleaved,
    milliseconds,
    milliseconds_of,
)
from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, call, calls, conversation, write_script
from tests.services import Installation, installation

ROUNDS = 20
LONG_ROUNDS = 3
"""Of what takes seconds."""
MOST_STARTS = 28
"""Starts of Python: a quarter of a second on a machine where one takes 9 ms."""
JOBS = 50
JOBS_ROUNDS = 3
TURNS = 5
EMPTY = "python -c pass"

HELP, PS, SHOW = (
    Benchmark(
        name=f"start-{command}",
        title=f"`fanout {arguments}`, from start to end",
        unit="ms",
        floor=EMPTY,
        target_ratio=MOST_STARTS,
    )
    for command, arguments in (("help", "--help"), ("ps", "ps"), ("show", "show ID"))
)
UP, RUN_COLD, RUN_WARM, WORKER = (
    Benchmark(name=name, title=title, unit="ms", floor=EMPTY, target=target)
    for name, title, target in (
        ("start-up", "`fanout up` without services, from start to end", 2500),
        ("start-run-cold", "`fanout run` without services: one job of one turn, landed", 2500),
        ("start-run-warm", "the same with the services that the first one started", 1000),
        ("start-worker", "a worker, from its start until jobs are sent to it", 1200),
    )
)
PROCESSES = Benchmark(
    name="jobs-50-processes",
    title=f"{JOBS} jobs of {TURNS} turns, a process for each core",
    unit="s",
    floor="the same, one process",
    target_ratio=0.85,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Each in turn with its floor, compiled as an installation is."""
    await asyncio.to_thread(_compile)
    for part in (_commands, _services, _worker, _processes):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            async for benchmark, samples in part(Path(name), wanted):
                yield benchmark, samples


def _compile() -> None:
    """Compile our code, as pip does: the environment of a test run may forbid that Python does."""
    for package in ("fanout", "orchestrator", "workers"):
        compileall.compile_dir(REPOSITORY / package, quiet=1)


async def _commands(
    folder: Path, wanted: Collection[str]
) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """A command and an empty program in turn."""
    if not {HELP.name, PS.name, SHOW.name} & set(wanted):
        return
    with installation(folder) as place:
        async with place.client() as client:
            job_id = await client.submit(JobSpec(description="Wait."))
        nothing = partial(_run, folder, place.environment, "-c", "pass")
        for benchmark, arguments in ((HELP, ["--help"]), (PS, ["ps"]), (SHOW, ["show", job_id])):
            if benchmark.name in wanted:
                ours = partial(_fanout, folder, place.environment, *arguments)
                yield benchmark, await interleaved(ROUNDS, ours, nothing)


async def _services(
    folder: Path, wanted: Collection[str]
) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """What starts services of its own, in the local sandbox; they are stopped in between."""
    (work := folder / "work").mkdir()
    script = write_script(folder, conversation(".*", DONE))
    environment = {name: value for name, value in os.environ.items() if "FANOUT_" not in name} | {
        "PYTHONPATH": str(REPOSITORY),
        "FANOUT_STATE_DIR": str(folder / "state"),
        "FANOUT_SANDBOX__PROVIDER": "local",
        "FANOUT_MODEL": f"scripted:{script}",
    }
    fanout = partial(_fanout, work, environment)
    goal = ("run", "Say hello.", "--yes", "--json")

    async def from_nothing(*arguments: str) -> float:
        took = await fanout(*arguments)
        await fanout("down")
        return took

    nothing = partial(_run, work, environment, "-c", "pass")
    for benchmark, ours in (
        (UP, partial(from_nothing, "up")),
        (RUN_COLD, partial(from_nothing, *goal)),
        (RUN_WARM, partial(fanout, *goal)),
    ):
        if benchmark.name in wanted:
            try:
                yield benchmark, await interleaved(LONG_ROUNDS, ours, nothing)
            finally:
                await fanout("down")


async def _worker(
    folder: Path, wanted: Collection[str]
) -> AsyncIterator[tuple[Benchmark, Samples]]:
    if WORKER.name not in wanted:
        return
    with installation(folder) as place:
        nothing = partial(_run, folder, place.environment, "-c", "pass")

        async def ready() -> float:
            took = await milliseconds(_registered(place))
            place.workers.pop().stop()
            async with place.client() as client:
                while await client.workers():  # noqa: ASYNC110 - until its registration is gone
                    await asyncio.sleep(0.05)
            return took

        yield WORKER, await interleaved(LONG_ROUNDS, ready, nothing)


async def _registered(place: Installation, processes: int = 1) -> None:
    place.start_worker(JOBS, forked=False, options=("--processes", str(processes)))
    async with place.client() as client:
        while len(await client.workers()) < processes:  # noqa: ASYNC110 - the worker tells it by itself only
            await asyncio.sleep(0.005)


async def _processes(
    folder: Path, wanted: Collection[str]
) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Jobs of installations of their own, one with as many worker processes as there are cores."""
    if PROCESSES.name not in wanted:
        return
    write = calls(call("write_file", file_path="/workspace/note.txt", content="Here I was.\n"))
    script = write_script(folder, conversation(".*", *[write] * (TURNS - 1), DONE))
    for name in ("several", "one"):
        (folder / name).mkdir()
    cores = os.cpu_count() or 1
    with (
        installation(folder / "several", script=script) as several,
        installation(folder / "one", script=script) as one,
    ):
        await _registered(several, cores)
        await _registered(one)
        yield PROCESSES, await interleaved(JOBS_ROUNDS, _all_done(several), _all_done(one))


def _all_done(place: Installation) -> Callable[[], Awaitable[float]]:
    """Return what runs the jobs and returns the seconds that they took."""

    async def jobs() -> None:
        async with place.client() as client:
            specs = [JobSpec(description=f"Write, number {number}.") for number in range(JOBS)]
            ids = await client.submit_many([(spec, None) for spec in specs])
            results = await asyncio.gather(*(client.wait(job_id) for job_id in ids))
        assert all(result.success for result in results)

    async def seconds() -> float:
        return await milliseconds(jobs()) / 1000

    return seconds


async def _fanout(folder: Path, environment: Mapping[str, str], *arguments: str) -> float:
    return await _run(folder, environment, "-P", "-m", "fanout", *arguments)


async def _run(folder: Path, environment: Mapping[str, str], *arguments: str) -> float:
    def program() -> None:
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )

    return await milliseconds_of(program)


SECTION = Section(benchmarks=(HELP, PS, SHOW, UP, RUN_COLD, RUN_WARM, WORKER, PROCESSES), run=run)
