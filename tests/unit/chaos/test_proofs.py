"""A proof that proves nothing is noticed here.

Each finds what was planted, and nothing in a sound run.
"""

from __future__ import annotations

import pytest

from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED
from fanout.orchestrator.jobs.result import CollectionState, JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_result
from tests.chaos.evidence import JobEvidence, Leftovers
from tests.chaos.file_proof import files_as_told, overlapping
from tests.chaos.proofs import all_ended, committed_once, never_two_at_once, nothing_left
from tests.chaos.script import lines_of
from tests.unit.chaos.planted import BEGIN, END, JOB, Journal, evidence, whole

SOUND = evidence(whole().state("succeeded"))


def jobs(job: JobEvidence) -> dict[str, JobEvidence]:
    return {job.id: job}


def test_a_sound_run_has_no_violations() -> None:
    assert all_ended(jobs(SOUND), [JOB]) == []
    assert committed_once(jobs(SOUND)) == []
    assert never_two_at_once(jobs(SOUND)) == []
    assert files_as_told(jobs(SOUND)) == []


def test_a_lost_job_is_found() -> None:
    assert all_ended({}, [JOB]) == [f"{JOB} was acknowledged and is lost"]
    (found,) = all_ended(jobs(evidence(whole())), [JOB])
    assert "has not ended: it is running" in found


def test_a_wrong_end_is_found_and_one_for_want_of_attempts_is_not() -> None:
    failed = whole().state("failed")
    broken = {"type": "AgentFailed", "message": "no", "retryable": False}
    (found,) = all_ended(
        jobs(evidence(failed, result=make_result(JOB, JobState.FAILED, error=broken))), [JOB]
    )
    assert "ended failed" in found
    lost = {**broken, "type": "AttemptsUsedUp"}
    early = make_result(JOB, JobState.FAILED, error=lost, attempts=3)
    late = make_result(JOB, JobState.FAILED, error=lost, attempts=50)
    assert all_ended(jobs(evidence(failed, result=early)), [JOB])
    assert all_ended(jobs(evidence(failed, result=late)), [JOB]) == []


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        (whole().state("succeeded").state("succeeded"), "ended 2 times"),
        (whole().state("succeeded").answers(), "went on after its end"),
        (whole().state("failed"), "several ends"),
    ],
)
def test_a_doubled_commit_is_found(journal: Journal, words: str) -> None:
    job = evidence(journal, result=make_result(JOB), first_result=None)
    assert any(words in found for found in committed_once(jobs(job)))


def test_a_result_that_changed_is_found() -> None:
    job = evidence(whole().state("succeeded"), first_result=make_result(JOB, summary="another"))
    assert committed_once(jobs(job)) == [f"{JOB} has another result now than its parent was given"]


def test_changes_may_follow_a_result_that_waits_for_them_and_no_other() -> None:
    journal = whole().state("cancelled").add(EventType.CHANGES_COLLECTED, files=1)
    result = make_result(JOB, JobState.CANCELLED, files_omitted=1)
    waiting = result.model_copy(update={"collection": CollectionState.PENDING, "files_omitted": 0})
    another = waiting.model_copy(update={"summary": "another"})

    def found(first: JobResult) -> list[str]:
        return committed_once(jobs(evidence(journal, result=result, first_result=first)))

    assert found(waiting) == []
    assert found(another) == [f"{JOB} has another result now than its parent was given"]
    assert found(result) == [f"{JOB} went on after its end: changes.collected"]


@pytest.mark.parametrize(
    ("told", "violations"),
    [({"error": CALL_INTERRUPTED}, []), ({"status": "success"}, [f"{JOB}: made.txt is ''"])],
)
def test_a_missing_file_is_a_loss_unless_its_call_was_interrupted(
    told: dict[str, str], violations: list[str]
) -> None:
    journal = whole().answers(tool="write_file", **told).state("succeeded")
    assert files_as_told(jobs(evidence(journal, kind="files"))) == violations


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        (whole().state("running", 2), "was given to attempt 2 while 1 held it"),
        (whole().state("queued").answers(), "while the job was queued"),
        (whole().state("queued").state("running", 2).answers(1), "while 2 was at work"),
        (whole().state("waiting", 0).calls(), "while the job was waiting"),
    ],
)
def test_an_attempt_that_works_beside_another_is_found(journal: Journal, words: str) -> None:
    assert any(words in found for found in never_two_at_once(jobs(evidence(journal))))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("", "was finished, and its lines are []"),
        (BEGIN, "was finished, and its lines are ['begin']"),
        ((BEGIN + END) * 2, "was finished, and its lines are"),
        (BEGIN + END + "2 begin 77 3.7\n", "lines of steps that nobody ran: [2]"),
        (BEGIN + END + "torn", "out of order"),
    ],
)
def test_a_lost_a_doubled_and_a_strange_line_are_found(steps: str, words: str) -> None:
    found = files_as_told(jobs(evidence(whole().state("succeeded"), steps)))
    assert any(words in problem for problem in found), found


def test_a_job_that_succeeded_without_its_file_is_found() -> None:
    (found,) = files_as_told(jobs(evidence(whole().state("succeeded"), None)))
    assert "was finished" in found


def test_an_interrupted_step_may_have_left_its_lines_once_or_not() -> None:
    journal = Journal().state("queued", 0).state("running").ready().calls().answers(status="error")
    journal.state("succeeded")
    for steps in (None, BEGIN, BEGIN + END):
        assert files_as_told(jobs(evidence(journal, steps))) == []
    assert files_as_told(jobs(evidence(journal, BEGIN + BEGIN)))


def test_containers_that_write_at_once_are_found() -> None:
    lines = lines_of("1 begin 77 3.1\n1 begin 88 3.2\n1 end 77 3.3\n1 end 88 3.4\n")
    assert any("at once" in found for found in overlapping(lines, []))
    late = lines_of("1 begin 77 3.5\n1 end 77 9.0\n")
    ready_again = whole().ready(2).events
    assert any("after the next one was ready" in found for found in overlapping(late, ready_again))
    assert overlapping(lines_of(BEGIN + END), ready_again) == []


def test_what_is_left_is_found() -> None:
    kept = {"fanout:job:a": "hash of 3", "fanout:queue:_kombu.binding.fanout": "set of 1"}
    steward, sandbox = "steward (running)", "sandbox of a (exited)"
    kept["fanout:installation"] = "string of 16"
    shared, volumes = "shared (running)", ["store (fanout-x)", "shared (fanout-x.shared)"]
    clean = Leftovers(keys=kept, containers=[steward, shared], volumes=volumes)
    assert nothing_left(clean, workers_live=True) == []
    assert nothing_left(clean, workers_live=False) == [
        f"container {steward} is left",
        f"container {shared} is left",
        f"volume {volumes[1]} is left",
    ]
    left = Leftovers(
        keys={
            "fanout:leases": "zset of 1",
            "fanout:active:a": "set of 1",
            "fanout:live": "set of 1",
        },
        containers=[sandbox],
        volumes=["workspace of a (fanout-x.job.a)"],
        folders=["a"],
    )
    assert len(nothing_left(left, workers_live=True)) == 6


def test_events_are_ordered_by_their_ids() -> None:
    journal = whole().state("succeeded")
    late = journal.events[-1].model_copy(
        update={"id": "10000-0", "type": EventType.LOG, "data": {}}
    )
    journal.events.append(late)
    assert any("went on after" in found for found in committed_once(jobs(evidence(journal))))
