"""Programs with limits, awaited: nothing that they have started outlives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...bounded_process import ProcessBounds
from . import processes
from .protocol import Execution


async def run_bounded(
    argv: Sequence[str],
    bounds: ProcessBounds,
    *,
    env: Mapping[str, str],
    stdin: bytes,
    seconds: float,
    max_output_bytes: int,
) -> Execution:
    """Run a program to its end; a cancelled caller leaves none of its processes behind.

    Args:
        argv: The program with its arguments.
        bounds: What it may use.
        env: Its whole environment.
        stdin: Its standard input.
        seconds: After this time it is killed.
        max_output_bytes: The longest output that is kept whole; of a longer one the middle is lost.
    """
    launch = processes.Launch(
        argv=bounds.command(argv),
        env=env,
        stdin=stdin,
        timeout_seconds=seconds,
        max_output_bytes=max_output_bytes,
        merge_stderr=False,
    )
    ended = await processes.run(launch)
    if ended.left_running is not None:
        await processes.stop_leftovers(launch.marker)
    return ended
