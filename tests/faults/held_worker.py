"""`python -m tests.faults.held_worker`: a worker in which chosen jobs stop for ever at an append.

FANOUT_TEST_HOLDS is a folder. A file `<job id>.<number>` in it holds the job at its tool result of
that number, counted from 1: before it is written to the journal, or after, as the file says. One
that stops there leaves a file `….held`, and does not stop there again.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.workers.__main__ import main

HOLDS = Path(os.environ["FANOUT_TEST_HOLDS"])
append = Journal.append


async def holding(
    journal: Journal, job_id: str, attempt: int, kind: EventType, *rest: Any, **more: Any
) -> str:
    """Append, and hold what is to be held."""
    if kind is not EventType.TOOL_RESULT:
        return await append(journal, job_id, attempt, kind, *rest, **more)
    earlier = [entry for entry in await journal.read(job_id) if entry.type is kind]
    hold = HOLDS / f"{job_id}.{len(earlier) + 1}"
    if begins_hold(hold, "before"):
        await asyncio.Event().wait()
    event = await append(journal, job_id, attempt, kind, *rest, **more)
    if begins_hold(hold, "after"):
        await asyncio.Event().wait()
    return event


def begins_hold(hold: Path, when: str) -> bool:
    held = hold.with_name(f"{hold.name}.held")
    if held.exists() or not hold.exists() or hold.read_text() != when:
        return False
    held.touch()
    return True


if __name__ == "__main__":
    Journal.append = holding
    main()
