"""What a job does at this moment, from the worker's note to a line for people."""

from __future__ import annotations

import json
import time

import pytest

from fanout.orchestrator.cli.terminal import formatting, live_view
from fanout.orchestrator.jobs.state import Activity, JobRecord
from fanout.orchestrator.jobs.store.stored import read_record
from fanout.workers.agent.activity import JobActivity
from tests.builders import make_spec

NOW = 1_000_000.0


def stored(noted: str, *, state: str = "running", attempt: int = 2) -> JobRecord:
    spec = make_spec("a task")
    fields = {
        "spec": spec.model_dump_json(exclude_defaults=True),
        "state": state,
        "attempt": str(attempt),
        "submitted_at": str(NOW * 1000),
        "activity": noted,
        "activity_at": str(NOW * 1000),
    }
    return read_record(spec.id, fields)


def test_a_request_that_failed_and_is_repeated_keeps_its_time_and_says_why() -> None:
    activity = JobActivity(attempt=2)
    activity.asked("chat/x", 1)
    activity.failed("503")
    activity.asked("chat/x", 2)
    activity.received(481)

    found = stored(activity.taken()).activity

    assert found is not None
    assert found.model_dump(exclude={"since"}) == {
        "kind": "model", "model": "chat/x", "attempt": 2, "error": "503", "tokens": 120,
        "tool": None,
    }  # fmt: skip
    assert not activity.is_changed
    activity.answered()
    assert activity.taken() == ""


@pytest.mark.parametrize(
    ("noted", "state", "attempt"),
    [
        ('{"kind": "model", "seconds": 1, "of_attempt": 1}', "running", 2),
        ('{"kind": "model", "seconds": 1, "of_attempt": 2}', "waiting", 2),
        ("[]", "running", 2),
        ('{"seconds": "long"}', "running", 2),
        ("not JSON", "running", 2),
    ],
)
def test_what_is_of_an_earlier_attempt_or_of_another_form_is_not_shown(
    noted: str, state: str, attempt: int
) -> None:
    assert stored(noted, state=state, attempt=attempt).activity is None


@pytest.mark.parametrize(
    ("noted", "line"),
    [
        ({"kind": "model", "attempt": 2, "error": "503"}, "model, 40s, try 2: 503"),
        ({"kind": "model", "tokens": 1200}, "model, 40s, ~1,200 tokens"),
        ({"kind": "sandbox"}, "starting its sandbox, 40s"),
        ({"kind": "queue"}, "waiting for the model's rate limit, 40s"),
        ({"kind": "of a later release"}, "of a later release, 40s"),
    ],
)
def test_a_person_reads_what_a_job_does_and_for_how_long(
    noted: dict[str, object], line: str
) -> None:
    record = stored(json.dumps({**noted, "seconds": 0, "of_attempt": 2}))
    assert formatting.doing(record, NOW + 40) == line


def test_a_log_says_what_is_waited_for_after_growing_pauses_and_a_failure_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(live_view.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live_view.output, "_printed_at", 0.0)  # a test before may have printed
    silence = live_view._Silence()
    record = stored('{"kind": "model", "seconds": 0, "of_attempt": 2}')
    said = []
    for clock[0] in range(120):
        said += [clock[0]] * len(silence.lines([record]))
    assert said == [2, 6, 14, 30, 62]

    failed = Activity(kind="model", since=time.time(), error="503")
    news = record.model_copy(update={"activity": failed})
    assert len(silence.lines([news])) == 1
    assert silence.lines([news]) == []
