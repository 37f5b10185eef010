"""The results as a table for people and as a JSON document for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.measure import Row

READS_AS_PART = 0.2
"""Below this a ratio reads better as a part: 1/30 instead of 0.033."""


def document(rows: Sequence[Row], seconds: float) -> str:
    """All rows and what the machine was like."""
    machine: dict[str, Any] = {
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    content = {
        "machine": machine,
        "seconds": round(seconds, 1),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def print_table(rows: Sequence[Row], console: Console) -> None:
    """A line a row; below it why some have no numbers."""
    table = Table()
    for heading in ("", "median", "p95", "max", "unit", "floor", "median", "ratio", "target", "ok"):
        table.add_column(heading, justify="left" if heading in {"", "unit", "floor"} else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for why in dict.fromkeys(row.not_measured for row in rows if row.not_measured):
        names = ", ".join(row.name for row in rows if row.not_measured == why)
        console.print(f"not measured: {names}: {why}", markup=False)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.title,
        _number(row.median),
        _number(row.p95),
        _number(row.most),
        row.unit,
        row.floor,
        _number(row.floor_median),
        _ratio(row.ratio),
        _target(row),
        {True: "yes", False: "NO", None: "-"}[row.ok],
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"1/{1 / value:.0f}" if 0 < value < READS_AS_PART else f"{value:.2f}"


def _target(row: Row) -> str:
    parts = []
    if row.target_ratio is not None:
        parts.append(f"≤ {_ratio(row.target_ratio)}")
    if row.target is not None:
        parts.append(f"≤ {row.target:g} {row.unit}")
    if row.target_least is not None:
        parts.append(f"≥ {row.target_least:g} {row.unit}")
    if row.target_p95 is not None:
        parts.append(f"p95 ≤ {row.target_p95:g} {row.unit}")
    if row.target_p95_ratio is not None:
        parts.append(f"p95 ≤ {row.target_p95_ratio:g} floors")
    return ", ".join(parts) or "-"
