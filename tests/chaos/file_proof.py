"""The proof that a job's files are what its journal says was done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.chaos.evidence import JobEvidence
from tests.chaos.script import Line, lines_of, step_of


@dataclass
class Step:
    """What the journal says of one command."""

    number: int
    file: str
    begun: bool = False
    finished: bool = False


def files_as_told(jobs: Mapping[str, JobEvidence]) -> list[str]:
    """A finished command has left its lines once, an interrupted one at most once.

    Nothing else is there.
    """
    return [problem for job in jobs.values() for problem in _problems(job, jobs)]


def _problems(job: JobEvidence, jobs: Mapping[str, JobEvidence]) -> list[str]:
    if job.files is None and not (job.result and job.result.success):
        return []  # what could not be collected is not told either
    files = job.files or {}
    steps = steps_told(job.events)
    by_file: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        by_file[step.file].append(step)
    found: list[str] = []
    for name, told in by_file.items():
        lines = lines_of(files.get(name, ""))
        found += [f"{job.id}: {name}: {problem}" for problem in _compared(told, lines)]
        found += [f"{job.id}: {name}: {problem}" for problem in overlapping(lines, job.events)]
    return found + _made_file(job, files) + _of_children(job, files, jobs)


def steps_told(events: list[JournalEvent]) -> list[Step]:
    """The steps since the conversation last began anew, in order."""
    steps: dict[str, Step] = {}
    for event in events:
        if event.type is EventType.SANDBOX_READY and event.data.get("resumed") is False:
            steps = {}
        for call in _parts(event, "function_call"):
            if call.get("name") == "execute" and (
                of := step_of(str(call["args"].get("command", "")))
            ):
                steps.setdefault(call["id"], Step(*of))
        if event.type is EventType.TOOL_CALL and event.data["id"] in steps:
            steps[str(event.data["id"])].begun = True
        for answer in _parts(event, "function_response"):
            if answer.get("id") in steps and (answer.get("response") or {}).get("exit_code") == 0:
                steps[answer["id"]].finished = True
    return list(steps.values())


def _parts(event: JournalEvent, kind: str) -> list[dict[str, Any]]:
    whole: Any = event.data.get("event") or {}
    parts = (whole.get("content") or {}).get("parts") or []
    return [part[kind] for part in parts if part.get(kind)]


def _compared(told: list[Step], lines: list[Line]) -> list[str]:
    found = []
    for step in told:
        words = [line.word for line in lines if line.step == step.number]
        if step.finished and words != ["begin", "end"]:
            found.append(f"step {step.number} was finished, and its lines are {words}")
        if not step.finished and words not in ([], ["begin"], ["begin", "end"]):
            found.append(f"step {step.number} was interrupted, and its lines are {words}")
        if not step.begun and words:
            found.append(f"step {step.number} was never begun, and its lines are {words}")
    numbers = [line.step for line in lines]
    if numbers != sorted(numbers):
        found.append(f"the steps are out of order: {numbers}")
    if strange := set(numbers) - {step.number for step in told}:
        found.append(f"there are lines of steps that nobody ran: {sorted(strange)}")
    return found


def overlapping(lines: list[Line], events: list[JournalEvent]) -> list[str]:
    """Containers that wrote in between each other, or after the next attempt's was ready."""
    attempts = [event for event in events if event.type is EventType.SANDBOX_READY]
    if any(event.data.get("sandbox") == "local" for event in attempts):
        return []  # all of this machine is one place
    ready = [event.at for event in attempts]
    times: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        times[line.place].append(line.at)
    found, last = [], 0.0
    for place, at in times.items():
        if min(at) < last:
            found.append(f"two containers wrote at once ({place})")
        last = max(last, *at)
        # The journal's times are whole milliseconds, cut off.
        later = [start for start in ready if min(at) < start and start + 0.001 < max(at)]
        if later:
            found.append(
                f"container {place} wrote {max(at) - later[0]:.2f} s after the next one was ready"
            )
    return found


def _made_file(job: JobEvidence, files: Mapping[str, str]) -> list[str]:
    """The file of the `files` jobs: written once, edited once."""
    if job.kind != "files" or not (job.result and job.result.success):
        return []
    answers = [
        answer
        for event in _since_fresh_start(job.events)
        for answer in _parts(event, "function_response")
        if answer.get("name") in {"write_file", "edit_file"}
    ]
    content = files.get("made.txt", "")
    if any((answer.get("response") or {}).get("error") == CALL_INTERRUPTED for answer in answers):
        return (
            []
            if content in {"", "start end\n", "start more end\n"}
            else [f"{job.id}: made.txt is {content!r}"]
        )
    return [] if content == "start more end\n" else [f"{job.id}: made.txt is {content!r}"]


def _since_fresh_start(events: list[JournalEvent]) -> list[JournalEvent]:
    starts = [
        place
        for place, event in enumerate(events)
        if event.type is EventType.SANDBOX_READY and event.data.get("resumed") is False
    ]
    return events[starts[-1] :] if starts else events


def _of_children(
    job: JobEvidence, files: Mapping[str, str], jobs: Mapping[str, JobEvidence]
) -> list[str]:
    """What a child made is in its parent's files, if the parent heard that it succeeded."""
    found = []
    told = {
        str((answer.get("response") or {}).get("task_id")): answer["response"]
        for event in _since_fresh_start(job.events)
        for answer in _parts(event, "function_response")
        if answer.get("name") == "task"
        and (answer.get("response") or {}).get("status") == "success"
    }
    for child_id in told:
        child = jobs.get(child_id)
        for path, content in ((child.files or {}) if child else {}).items():
            if files.get(path) != content:
                found.append(f"{job.id}: {path} of its child {child_id} is not what the child left")
    return found
