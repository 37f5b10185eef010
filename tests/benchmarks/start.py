"""How soon a command of the command line has done its work, beside Python's own start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from pathlib import Path

from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved, milliseconds_of
from tests.services import installation

ROUNDS = 20
MOST_STARTS = 28
"""Starts of Python: a quarter of a second on a machine where one takes 9 ms."""

HELP = Benchmark(
    name="start-help",
    title="`fanout --help`, from start to end",
    unit="ms",
    floor="python -c pass",
    target_ratio=MOST_STARTS,
)
PS = Benchmark(
    name="start-ps",
    title="`fanout ps`, from start to end",
    unit="ms",
    floor="python -c pass",
    target_ratio=MOST_STARTS,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """A command and an empty program in turn."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with installation(folder) as place:
            nothing = partial(_run, folder, place.environment, "-c", "pass")
            for benchmark, arguments in ((HELP, "--help"), (PS, "ps")):
                if benchmark.name in wanted:
                    ours = partial(_run, folder, place.environment, "-P", "-m", "fanout", arguments)
                    yield benchmark, await interleaved(ROUNDS, ours, nothing)


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


SECTION = Section(benchmarks=(HELP, PS), run=run)
