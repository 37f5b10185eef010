"""`python -m tests.benchmarks`.

What fanout promises about speed and size, measured beside its floors.

Everything is measured in one run, each benchmark in turn with its floor, so that a busy machine is
slow for both. A missed target is said in the table; the exit code is 0 all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from tests.benchmarks import (
    agent_setup,
    children,
    costly_work,
    fleet,
    growth,
    harness,
    jobs,
    latency,
    leaks,
    ledger_load,
    long_jobs,
    many_agents,
    memory,
    model_turns,
    neighbours,
    page,
    recovery,
    sandboxes,
    scripts,
    service,
    snapshots,
    start,
    starts_at_once,
    state_loop,
    stopped_at_once,
    warm,
    workspaces,
)
from tests.benchmarks.measure import Row, Section, missing_row, row_of
from tests.benchmarks.plots import write_pictures
from tests.benchmarks.report import document, print_table

SECTIONS = (
    sandboxes.SECTION,
    starts_at_once.SECTION,
    warm.SECTION,
    neighbours.SECTION,
    costly_work.SECTION,
    leaks.SECTION,
    snapshots.SECTION,
    workspaces.SECTION,
    children.SECTION,
    scripts.SECTION,
    latency.SECTION,
    jobs.SECTION,
    memory.SECTION,
    agent_setup.SECTION,
    many_agents.SECTION,
    harness.SECTION,
    state_loop.SECTION,
    ledger_load.SECTION,
    long_jobs.SECTION,
    growth.SECTION,
    model_turns.SECTION,
    fleet.SECTION,
    recovery.SECTION,
    stopped_at_once.SECTION,
    service.SECTION,
    page.SECTION,
    start.SECTION,
)
REASON_CHARACTERS = 300
WIDTH = 132
"""Of the table, whatever the terminal's: a wrapped one cannot be read."""


def main() -> None:
    """Measure what is asked for and report it."""
    names = [benchmark.name for section in SECTIONS for benchmark in section.benchmarks]
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measure fanout."
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write a JSON document there; - is standard output"
    )
    parser.add_argument(
        "--pictures", metavar="FOLDER", help="draw there what was measured, as SVG files"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=" · ".join(names))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    progress = Console(stderr=True, width=WIDTH)
    began = time.monotonic()
    rows = asyncio.run(_measure(options.only or names, progress))
    content = document(rows, time.monotonic() - began)
    on_stdout = options.json != "-"
    print_table(rows, Console(width=WIDTH) if on_stdout else progress)
    if not on_stdout:
        print(content)
    elif options.json:
        Path(options.json).write_text(content + "\n")
    if options.pictures:
        for path in write_pictures(rows, Path(options.pictures)):
            progress.print(f"drawn: {path}", highlight=False)


async def _measure(wanted: Collection[str], progress: Console) -> list[Row]:
    rows = []
    for section in SECTIONS:
        if any(benchmark.name in wanted for benchmark in section.benchmarks):
            rows += await _measure_section(section, wanted, progress)
    return rows


async def _measure_section(
    section: Section, wanted: Collection[str], progress: Console
) -> list[Row]:
    """The rows of a section; what could not be measured says why, the rest goes on."""
    found: dict[str, Row] = {}
    why = "it was not reached"
    try:
        async for benchmark, samples in section.run(wanted):
            found[benchmark.name] = row_of(benchmark, samples)
            progress.print(f"measured: {benchmark.title}", highlight=False)
    except Exception as error:  # noqa: BLE001 - whatever is missing here, the other sections are measured
        why = _in_short(error)
    return [
        found.get(benchmark.name) or missing_row(benchmark, why)
        for benchmark in section.benchmarks
        if benchmark.name in wanted
    ]


def _in_short(error: Exception) -> str:
    """The end of a message: of a traceback or a log that is the line that matters."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:REASON_CHARACTERS]


if __name__ == "__main__":
    main()
