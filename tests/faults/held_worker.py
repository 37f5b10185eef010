"""`python -m tests.faults.held_worker`: a worker in which chosen jobs stop for ever at an append to their journal.

FANOUT_TEST_HOLDS is a folder. A file `<job id>.<number>` in it holds the job at its tool result of that number,
counted from 1: before it is appended, or after, as the file says. A job that stops there leaves a file `….held`
and does not stop there again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from orchestrator.jobs.journal import EventType, Journal
from workers.__main__ import main

HOLDS = Path(os.environ["FANOUT_TEST_HOLDS"])
append = Journal.append


async def holding(
    journal: Journal,
    job_id: str,
    attempt: int,
    kind: EventType,
    data: Mapping[str, JsonValue],
    line: str | None = None,
) -> str:
    """Append, and hold what is to be held."""
    if kind is not EventType.TOOL_RESULT:
        return await append(journal, job_id, attempt, kind, data, line)
    earlier = [entry for entry in await journal.read(job_id) if entry.type is kind]
    hold = HOLDS / f"{job_id}.{len(earlier) + 1}"
    await stop(hold, "before")
    event = await append(journal, job_id, attempt, kind, data, line)
    await stop(hold, "after")
    return event


async def stop(hold: Path, when: str) -> None:
    held = hold.with_name(f"{hold.name}.held")
    if hold.exists() and hold.read_text() == when and not held.exists():
        held.touch()
        await asyncio.Event().wait()


if __name__ == "__main__":
    Journal.append = holding  # type: ignore[method-assign]
    main()
