"""Journals of jobs as a run would leave them, to plant violations in."""

from __future__ import annotations

from typing import Any

from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_result
from tests.chaos.evidence import JobEvidence

JOB = "chaos-1-000001"
COMMAND = ": step 1 steps.txt; echo"
BEGIN, END = "1 begin 77 3.5\n", "1 end 77 3.6\n"


class Journal:
    """Events, one a second."""

    def __init__(self) -> None:
        self.events: list[JournalEvent] = []

    def add(self, kind: EventType, attempt: int = 1, **data: Any) -> Journal:
        at = len(self.events) + 1
        event = JournalEvent(
            id=f"{at}000-0", at=at, job_id=JOB, attempt=attempt, type=kind, data=data
        )
        self.events.append(event)
        return self

    def state(self, state: str, attempt: int = 1, **data: Any) -> Journal:
        return self.add(EventType.JOB_STATE, attempt, state=state, **data)

    def ready(self, attempt: int = 1, *, resumed: bool = False) -> Journal:
        return self.add(EventType.SANDBOX_READY, attempt, resumed=resumed)

    def calls(self, attempt: int = 1) -> Journal:
        part = {"function_call": {"id": "c1", "name": "execute", "args": {"command": COMMAND}}}
        self.add(EventType.MODEL_REPLY, attempt, event={"content": {"parts": [part]}})
        return self.add(EventType.TOOL_CALL, attempt, id="c1", tool="execute")

    def answers(self, attempt: int = 1, *, tool: str = "execute", **response: Any) -> Journal:
        part = {
            "function_response": {
                "id": "c1",
                "name": tool,
                "response": response or {"exit_code": 0},
            }
        }
        return self.add(EventType.TOOL_RESULT, attempt, event={"content": {"parts": [part]}})


def whole() -> Journal:
    """A job that did its one step; the events up to its end."""
    return Journal().state("queued", 0).state("running", worker="w1").ready().calls().answers()


def evidence(journal: Journal, steps: str | None = BEGIN + END, **fields: Any) -> JobEvidence:
    """What a job with this journal and this file leaves."""
    last = JobState(
        str([e for e in journal.events if e.type is EventType.JOB_STATE][-1].data["state"])
    )
    record = JobRecord(
        id=JOB, description="chaos tiny 0", state=last, attempt=1, submitted_at=1, max_attempts=50
    )
    result: JobResult | None = make_result(JOB, last, attempts=1) if last.is_terminal else None
    values: dict[str, Any] = {
        "kind": "tiny",
        "result": result,
        "first_result": result,
        "files": None if steps is None else {"steps.txt": steps},
        **fields,
    }
    return JobEvidence(record, journal.events, **values)
