"""The proofs: each takes what a run left and returns its violations in words.

None is a proof that holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fanout.orchestrator.jobs.result import CollectedChanges, CollectionState, JobResult
from fanout.orchestrator.jobs.state import TERMINAL_STATES, JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.chaos.evidence import JobEvidence, Leftovers
from tests.chaos.plan import JOB_KINDS

Jobs = Mapping[str, JobEvidence]
WORK = frozenset({
    EventType.SANDBOX_READY, EventType.SESSION_EVENT, EventType.MODEL_REQUEST, EventType.MODEL_REPLY,
    EventType.TOOL_CALL, EventType.TOOL_RESULT, EventType.CHECKPOINT, EventType.TODOS,
})  # fmt: skip
"""What only an attempt at work writes."""
OUT_OF_ATTEMPTS = "AttemptsUsedUp"
COLLECTED_LATER = ("collection", *CollectedChanges.model_fields)
"""The fields of a result that may follow after the end of a job that was stopped."""


def states(job: JobEvidence) -> list[JournalEvent]:
    """The job's states, in order."""
    return [event for event in job.events if event.type is EventType.JOB_STATE]


def all_ended(jobs: Jobs, acknowledged: Iterable[str]) -> list[str]:
    """Every acknowledged job, and every child, has ended as it was to end."""
    found = [
        f"{job_id} was acknowledged and is lost" for job_id in acknowledged if job_id not in jobs
    ]
    for job in jobs.values():
        state = job.record.state
        if not state.is_terminal or job.result is None:
            found.append(f"{job.id} ({job.kind or 'child'}) has not ended: it is {state}")
        elif problem := _wrong_end(job, state):
            found.append(f"{job.id} ({job.kind or 'child'}) {problem}")
    return found


def _wrong_end(job: JobEvidence, state: JobState) -> str | None:
    """What is wrong with how a job ended; None when nothing is."""
    assert job.result is not None
    error = job.result.error
    words = f"{error.type}: {error.message}" if error else "no error"
    if state is JobState.FAILED and _used_up(job):
        return None
    ends = JOB_KINDS[job.kind].ends if job.kind else ("succeeded",)
    if state not in ends:
        return f"ended {state} after {job.result.attempts} attempts instead of {' or '.join(ends)} ({words})"
    return None


def _used_up(job: JobEvidence) -> bool:
    """Whether faults took all the attempts that it had: with few that is a legitimate end."""
    assert job.result is not None
    error = job.result.error
    if error is None or not (error.type == OUT_OF_ATTEMPTS or error.retryable):
        return False
    return job.result.attempts >= job.record.max_attempts


def committed_once(jobs: Jobs) -> list[str]:
    """Each job has one end, the last word of its journal, and one result, always the same.

    Changes that a result was still waiting for may follow, once.
    """
    found = []
    for job in jobs.values():
        ends = [event for event in states(job) if event.data["state"] in TERMINAL_STATES]
        if len(ends) > 1:
            found.append(
                f"{job.id} ended {len(ends)} times: {[event.data['state'] for event in ends]}"
            )
        if ends and job.result is not None:
            told = {str(ends[0].data["state"]), str(job.record.state), str(job.result.state)}
            if len(told) > 1:
                found.append(f"{job.id} has several ends: {sorted(told)}")
            after = [event.type for event in job.events if _order(event) > _order(ends[0])]
            if after and not (after == [EventType.CHANGES_COLLECTED] and _may_follow(job)):
                found.append(f"{job.id} went on after its end: {', '.join(after)}")
        if job.first_result is not None and not _is_kept(job.first_result, job.result):
            found.append(f"{job.id} has another result now than its parent was given")
    return found


def _may_follow(job: JobEvidence) -> bool:
    """Whether changes may follow; only what a parent was given says that they must not."""
    return job.first_result is None or job.first_result.collection is CollectionState.PENDING


def _is_kept(first: JobResult, last: JobResult | None) -> bool:
    """Whether a result is still the same; changes that it was waiting for may have followed."""
    if last is None or first.collection is not CollectionState.PENDING:
        return first == last
    return first == last.model_copy(update={name: getattr(first, name) for name in COLLECTED_LATER})


def never_two_at_once(jobs: Jobs) -> list[str]:
    """In the journal, an attempt works only between its own `running` and the job's next state."""
    return [problem for job in jobs.values() for problem in _overlaps(job)]


def _overlaps(job: JobEvidence) -> list[str]:
    found, state, attempt = [], "", 0
    for event in job.events:
        if event.type is EventType.JOB_STATE:
            if event.data["state"] == state == "running":
                found.append(
                    f"{job.id} was given to attempt {event.attempt} while {attempt} held it"
                )
            state, attempt = str(event.data["state"]), event.attempt
        elif event.type in WORK and state != "running":
            found.append(
                f"{job.id}: attempt {event.attempt} wrote {event.type} while the job was {state}"
            )
        elif event.type in WORK and event.attempt != attempt:
            found.append(
                f"{job.id}: attempt {event.attempt} wrote {event.type} while {attempt} was at work"
            )
    return found


def nothing_left(left: Leftovers, *, workers_live: bool) -> list[str]:
    """No lease, slot, message, container, volume or folder of any job is left."""
    found = [
        f"the ledger still has {key}: {held}"
        for key, held in left.keys.items()
        if not _may_stay(key)
    ]
    roles = {"steward", "network", "shared"} if workers_live else set[str]()
    found += [
        f"container {name} is left" for name in left.containers if name.split()[0] not in roles
    ]
    volumes = {"store", "code", *({"shared"} if workers_live else ())}
    found += [f"volume {name} is left" for name in left.volumes if name.split()[0] not in volumes]
    return found + [f"the files of {name} are left" for name in left.folders]


STAYING = (
    "job", "journal", "jobs", "ended", "tree", "children", "offspring", "idempotency",
    "worker", "workers", "approval", "sequence", "fence", "turns", "policy", "usage",
    "virtual_time", "finish_times", "installation", "spec", "result", "ids", "ids_by_end",
    "lease_clock", "dispatch", "counted", "counted_models",
)  # fmt: skip
"""Families of keys that outlive a job: what is known of it, counters, and the ledger's id."""


MESSAGES = ("fanout:queue:_kombu.", "fanout:queue:unacked")
"""The broker's: its routes, and messages that a worker was just given when it died; they come back
after the visibility timeout and claim nothing."""


OF_LIVE_JOBS = tuple(
    f"fanout:dispatch:{kind}"
    for kind in (
        *("bound", "calls", "starved", "working", "model_waiting", "model_turns"),
        *("model_deadlines", "after", "before", "linking", "unlinked", "predecessors"),
    )
)
"""The beginnings of keys with jobs that are in transit, work, call models, or wait for memory, a
model or other jobs; the others of that family are of workers, and counters."""


def _may_stay(key: str) -> bool:
    _, family, *_ = key.split(":")
    if key.startswith(OF_LIVE_JOBS):
        return False
    return family in STAYING or key.startswith(MESSAGES)


def _order(event: JournalEvent) -> tuple[int, ...]:
    return tuple(int(part) for part in event.id.split("-"))
