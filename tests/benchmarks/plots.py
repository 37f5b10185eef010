"""The measured rows as pictures for the README and the documentation.

A picture is drawn from one document, so that all its points are of one run; a picture for which
the document has no rows is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.measure import Row

OURS, FLOOR, PEER = "#1f6feb", "#8b949e", "#d29922"
LATENCIES = {
    "sandbox-warm": "open a warm sandbox",
    "cold-start": "start a sandbox, first command",
    "seed-open": "open one with 5,000 files",
    "command": "run a command",
    "read": "read 4 KB",
    "write": "write 4 KB",
    "changes": "collect changes in 5,000 files",
}
PEERS = {"seed-open": 1733.0}
"""SWE-ReX in Docker, in milliseconds: measured once on a machine like this one, on another day."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture, and what draws it; `draw` tells whether there was anything to draw."""

    name: str
    title: str
    draw: Callable[[Axes, Sequence[Row]], bool]


def write_pictures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw what the rows are enough for.

    Args:
        rows: The measured rows.
        folder: Where the pictures go.

    Returns:
        The files that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [path for picture in PICTURES if (path := _written(picture, rows, folder))]


def _written(picture: Picture, rows: Sequence[Row], folder: Path) -> Path | None:
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    if not picture.draw(axes, [row for row in rows if row.median is not None]):
        return None
    axes.set_title(picture.title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / f"bench-{picture.name}.svg"
    with mpl.rc_context({"svg.hashsalt": "fanout"}):  # the same rows give the same file
        figure.savefig(path, metadata={"Date": None})
    return path


def _latencies(axes: Axes, rows: Sequence[Row]) -> bool:
    by_name = {row.name: row for row in rows if row.name in LATENCIES}
    shown = [by_name[name] for name in reversed(LATENCIES) if name in by_name]
    places = list(range(len(shown)))
    axes.barh(
        [place + 0.2 for place in places],
        [row.median or 0 for row in shown],
        height=0.38, color=OURS, label="fanout",
    )  # fmt: skip
    axes.barh(
        [place - 0.2 for place in places],
        [row.floor_median or 0 for row in shown],
        height=0.38, color=FLOOR, label="the engine's API or Git alone",
    )  # fmt: skip
    peers = [(place, PEERS[row.name]) for place, row in enumerate(shown) if row.name in PEERS]
    if peers:
        axes.scatter(
            [value for _, value in peers], [place for place, _ in peers],
            marker="D", color=PEER, label="SWE-ReX (another day)", zorder=3,
        )  # fmt: skip
    axes.set_yticks(places, [LATENCIES[row.name] for row in shown])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("milliseconds, median")
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.3, -0.13))
    return bool(shown)


def _curves(
    axes: Axes, rows: Sequence[Row], wanted: Collection[str], *, x: str, y: str, floor: str = ""
) -> bool:
    """Draw the series of these names over their size, and the floor of the first."""
    found = False
    for series in wanted:
        points = sorted((row for row in rows if row.series == series), key=lambda row: row.at or 0)
        sizes = [row.at for row in points]
        if len(points) > 1:
            found = True
            axes.plot(sizes, [row.median for row in points], marker="o", label=series)
            if floor:
                axes.plot(
                    sizes, [row.floor_median for row in points], "--o", color=FLOOR, label=floor
                )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if found:
        axes.legend(frameon=False, fontsize=8, ncols=2)
        sizes = sorted({row.at for row in rows if row.series in wanted and row.at})
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        axes.minorticks_off()
    return found


def _starts(axes: Axes, rows: Sequence[Row]) -> bool:
    return _curves(
        axes, rows, ["sandboxes ready a second"],
        x="sandboxes asked for at once", y="ready a second", floor="the engine's API alone",
    )  # fmt: skip


def _agents(axes: Axes, rows: Sequence[Row]) -> bool:
    memory = axes.twinx()
    has_memory = _curves(memory, rows, ["memory (MiB)"], x="", y="MiB of the worker")
    if has_memory:
        memory.get_lines()[0].set_color(PEER)
        memory.legend(frameon=False, fontsize=8, loc="lower right")
    has_time = _curves(
        axes, rows, ["all at work (s)"], x="agents in one worker", y="seconds until all are at work"
    )
    return has_memory and has_time


def _growth(axes: Axes, rows: Sequence[Row]) -> bool:
    shown = [row for row in rows if row.name.startswith("grow-")][::-1]
    places = list(range(len(shown)))
    titles = [row.title.partition(", ") for row in shown]
    for offset, color, label, values in (
        (0.2, OURS, {tree for _, _, tree in titles}, [row.median or 0 for row in shown]),
        (-0.2, FLOOR, {row.floor for row in shown}, [row.floor_median or 0 for row in shown]),
    ):
        at = [place + offset for place in places]
        axes.barh(at, values, height=0.38, color=color, label=" ".join(label))
    axes.set_yticks(places, [operation for operation, _, _ in titles])
    axes.set_xlabel("milliseconds of processor, Redis and client together")
    if shown:
        axes.legend(frameon=False, fontsize=9)
    return bool(shown)


PICTURES = (
    Picture(name="latency", title="What a sandbox costs", draw=_latencies),
    Picture(name="starts", title="Sandboxes at once", draw=_starts),
    Picture(name="agents", title="Agents in one worker", draw=_agents),
    Picture(name="growth", title="What an operation costs in large trees", draw=_growth),
)
