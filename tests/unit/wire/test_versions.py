"""No field is added, changed or taken away unseen.

What is not known is refused in words, or passed over.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.cli.terminal.formatting import event_line
from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.changes import ChangeBundle, NewerBundle
from fanout.orchestrator.jobs.failures import NotUnderstood
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import UNREADABLE, Claim, Ledger
from fanout.orchestrator.jobs.store.stored import IN_RECORD, OF_ANOTHER_RELEASE, submission
from fanout.orchestrator.jobs.store.waiting import Workforce, occupancy, waiting_reason
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.agent.session_journal import AttemptJournal
from fanout.workers.heartbeat import HeldLease
from tests.builders import make_result, make_spec, make_worker
from tests.unit.wire.forms import forms
from tests.unit.wire.layout import layout
from tests.unit.wire.record import FIRST, FULL, RECORDED

STRICT = ("ApprovalAnswer", "Changes", "JobState", "AdkEvent")
"""Work goes on from these: another form needs a new version. The others are read leniently, and may
grow."""
RECORD_AGAIN = (
    "raise WIRE_NEWEST in orchestrator/jobs/versions.py, then run python -m tests.unit.wire.record"
)


def recorded_forms(version: int) -> Any:
    return json.loads((RECORDED / str(version) / "forms.json").read_text())


def test_every_field_of_a_specification_is_in_the_table_of_versions() -> None:
    now, first = forms()["JobSpec"], recorded_forms(1)["JobSpec"]
    entered = set().union(*versions.ADDED.values())
    new = {
        name
        for name, form in now.items()
        if name not in IN_RECORD and first.get(name) != _as_before(name, form, entered)
    }
    unseen = {name for name in new if not entered & _with_outer_fields(name)}
    assert not unseen, f"enter {sorted(unseen)} in ADDED of orchestrator/jobs/versions.py"
    assert set(first) <= set(now), "older jobs have these fields: a worker must know them"
    assert max(versions.ADDED, default=1) <= versions.WIRE_NEWEST


def _as_before(name: str, form: Any, entered: set[str]) -> Any:
    """A field's form, without the defaults of those within it that were added."""
    default = form.get("default") if isinstance(form, dict) else None
    if not isinstance(default, dict):
        return form
    kept = {inner: value for inner, value in default.items() if f"{name}.{inner}" not in entered}
    return {**form, "default": kept}


def _with_outer_fields(name: str) -> set[str]:
    """A field and those that it is in: `a.b.c`, `a.b` and `a`."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


@pytest.mark.parametrize("model", sorted(recorded_forms(versions.WIRE_NEWEST)))
def test_what_the_newest_version_has_is_still_there_in_the_same_form(model: str) -> None:
    now, then = json.loads(json.dumps(forms()[model])), recorded_forms(versions.WIRE_NEWEST)[model]
    changed = {name for name, form in then.items() if now.get(name) != form}
    assert not changed, f"{model}: {sorted(changed)}: {RECORD_AGAIN}"
    if model in STRICT:
        assert now == then, f"{model}: {RECORD_AGAIN}"


def test_the_layout_of_redis_is_that_of_its_version() -> None:
    recorded = json.loads((RECORDED / str(versions.WIRE_NEWEST) / "layout.json").read_text())
    now = json.loads(json.dumps(layout()))
    changed = {
        name: (recorded[part].get(name), now[part].get(name))
        for part in recorded
        for name in recorded[part].keys() | now[part].keys()
        if recorded[part].get(name) != now[part].get(name)
    }
    assert not changed, (
        f"{changed}: if a release has wire version {versions.WIRE_NEWEST}, {RECORD_AGAIN}; else "
        "record it with --forms. Releases before must read this: tests/faults/test_releases.py"
    )


def test_a_specification_with_every_field_was_recorded() -> None:
    unused = {
        name for name in JobSpec.model_fields if name not in json.loads(submission(FULL).spec)
    } - IN_RECORD | {name for name, value in FULL.limits if value is None}
    assert not unused, f"{sorted(unused)}: add it to FULL in tests/unit/wire/record.py"


@pytest.fixture
def ledger(redis: FakeAsyncRedis) -> Ledger:
    return Ledger(redis, Keys())


@pytest.fixture
def labels_and_pids_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        versions, "ADDED", {2: frozenset({"labels"}), 3: frozenset({"limits.pids"})}
    )
    monkeypatch.setattr(versions, "WIRE_NEWEST", 3)


@pytest.mark.usefixtures("labels_and_pids_are_new")
@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({}, 1),
        ({"labels": {}}, 1),
        ({"labels": {"pids": "x"}}, 2),
        ({"limits": {"cpus": 1}}, 1),
        ({"limits": {"pids": 99}, "labels": {"a": "b"}}, 3),
    ],
)
def test_a_job_needs_the_version_of_the_newest_field_that_it_uses(
    fields: dict[str, Any], version: int
) -> None:
    assert submission(make_spec(**fields)).wire == version


@pytest.mark.usefixtures("labels_and_pids_are_new")
async def test_a_worker_that_is_too_old_turns_a_job_away_unharmed(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    old, new = make_worker("old", wire_newest=1), make_worker("new", wire_newest=2)
    await ledger.register(old, 60)
    await ledger.register(new, 60)
    await ledger.submit([make_spec(id="new-job", labels={"a": "b"})])

    for _ in range(3):
        await ledger.dispatch(1)
        refusal = await ledger.claim("new-job", old, 60)
    record = await ledger.get("new-job")

    assert refusal == "wire version 2: this worker knows 1 to 1"
    assert (record.state, record.attempt) == (JobState.QUEUED, 0)
    assert record.waiting_for == "a newer worker, for wire version 2"
    told = [event.data.get("reason") for event in await Journal(redis, Keys()).read("new-job")]
    assert told == [None, f"{refusal}; it waits for a newer worker, for wire version 2"]
    await ledger.dispatch(1)
    claim = await ledger.claim("new-job", new, 60)
    assert isinstance(claim, Claim)
    assert (await ledger.get("new-job")).waiting_for is None


async def test_a_worker_that_is_too_new_says_so(ledger: Ledger) -> None:
    new = make_worker(wire_oldest=2, wire_newest=3)
    await ledger.register(make_worker("old"), 60)
    await ledger.submit([make_spec(id="job")])
    await ledger.dispatch(1)

    assert await ledger.claim("job", new, 60) == "wire version 1: this worker knows 2 to 3"
    assert (await ledger.get("job")).waiting_for == "an older worker, for wire version 1"


UNKNOWN_FIELD = '{"id":"job","root_id":"job","description":"x","gpus":2}'


@pytest.mark.parametrize("spec", [UNKNOWN_FIELD, None], ids=["unknown field", "moved away"])
async def test_a_job_that_cannot_be_read_stays_as_it_is_and_waits_for_a_worker_that_has_not_tried(
    ledger: Ledger, redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch, spec: str | None
) -> None:
    first, second = make_worker("first"), make_worker("second")
    await ledger.register(first, 60)
    await ledger.submit([make_spec(id="job"), make_spec(id="other")])
    readable = str(await redis.hget(Keys().job("job"), "spec"))
    await redis.hdel(Keys().job("job"), "spec")
    if spec:
        await redis.hset(Keys().job("job"), "spec", spec)

    assert [job.spec.id for job in await ledger.dispatch(9)] == ["job", "other"]
    assert await ledger.claim("job", first, 60) == UNREADABLE
    await _rest(ledger, redis)

    record = await ledger.get("job")
    assert (record.state, record.attempt, record.wire) == (JobState.QUEUED, 0, 1)
    assert await redis.hget(Keys().job("job"), "spec") == spec
    assert await ledger.dispatch(9) == [], "it is not offered to the same worker again"
    assert waiting_reason(record, await occupancy(redis, Keys(), [record], Workforce([first]))) == (
        "a newer worker: the living ones cannot read it"
    )
    for _ in range(3):
        await _rest(ledger, redis)
    events = len(await Journal(redis, Keys()).read("job"))

    await ledger.register(second, 60)
    await _rest(ledger, redis)
    assert waiting_reason(
        record, await occupancy(redis, Keys(), [record], Workforce([first, second]))
    ) == ("its turn")
    assert len(await ledger.dispatch(9)) == 1
    assert "cannot read it" in str(await ledger.claim("job", first, 60)), "a message to anybody"
    assert len(await Journal(redis, Keys()).read("job")) == events, "a journal does not grow by it"
    await _rest(ledger, redis)
    await ledger.dispatch(9)
    await redis.hset(Keys().job("job"), "spec", readable)  # as if it were of that release
    claim = await ledger.claim("job", second, 60)
    assert isinstance(claim, Claim), claim
    assert (claim.attempt, (await ledger.get("job")).waiting_for) == (1, None)


async def _rest(ledger: Ledger, redis: FakeAsyncRedis) -> None:
    """Let the rest of a job that could not be read be over."""
    await redis.zadd(Keys().leases, {"job": 1}, xx=True)
    await ledger.reap()


async def test_a_job_that_rests_can_be_cancelled(ledger: Ledger, redis: FakeAsyncRedis) -> None:
    worker = make_worker()
    await ledger.register(worker, 60)
    await ledger.submit([make_spec(id="job")])
    await redis.hset(Keys().job("job"), "spec", UNKNOWN_FIELD)
    await ledger.dispatch(1)
    await ledger.claim("job", worker, 60)

    assert await ledger.cancel("job") is JobState.QUEUED

    assert (await ledger.get("job")).state is JobState.CANCELLED
    assert not await redis.exists(Keys().leases)


async def test_workers_that_are_gone_are_not_remembered_by_a_job_that_they_could_not_read(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec(id="job")])
    await redis.hset(Keys().job("job"), "spec", UNKNOWN_FIELD)
    for number in range(20):
        worker = make_worker(f"worker-{number}")
        await ledger.register(worker, 60)
        await _rest(ledger, redis)
        await ledger.dispatch(1)
        assert await ledger.claim("job", worker, 60) == UNREADABLE
        await ledger.register(worker, 0)

    assert await redis.hget(Keys().job("job"), "unread_by") == " worker-19"


async def test_a_job_that_an_earlier_release_has_raised_runs_here_and_is_lowered_again(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    worker = make_worker()
    await ledger.register(worker, 60)
    with pytest.MonkeyPatch.context() as raised:
        raised.setattr(
            "fanout.orchestrator.jobs.store.ledger.submission",
            lambda spec: submission(spec)._replace(wire=2),
        )
        await ledger.submit([make_spec(id="job")])

    await ledger.dispatch(1)
    claim = await ledger.claim("job", worker, 60)

    assert isinstance(claim, Claim), claim
    assert (await ledger.get("job")).wire == 1


async def test_a_job_of_the_second_layout_is_put_where_every_release_reads_it_before_it_is_sent(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(make_worker(), 60)
    await ledger.submit([make_spec(id="job")])
    await _in_second_layout(redis, "job", "spec")
    assert (await ledger.get("job")).description == "do it"

    await ledger.dispatch(1)

    assert "do it" in str(await redis.hget(Keys().job("job"), "spec"))


async def _in_second_layout(redis: FakeAsyncRedis, job_id: str, name: str) -> None:
    text = str(await redis.hget(Keys().job(job_id), name))
    await redis.hdel(Keys().job(job_id), name)
    await redis.set(f"fanout:{name}:{job_id}", text)


async def test_a_job_of_a_release_to_come_is_left_as_it_is(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    worker = make_worker()
    await ledger.register(worker, 60)
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(
            "fanout.orchestrator.jobs.store.ledger.submission",
            lambda spec: submission(spec)._replace(wire=versions.WIRE_NEWEST + 1),
        )
        await ledger.submit([make_spec(id="job")])
    await redis.hset(Keys().job("job"), "spec", UNKNOWN_FIELD)
    before = await redis.hgetall(Keys().job("job"))

    assert await ledger.dispatch(9) == []
    await ledger.reap()

    assert await redis.hgetall(Keys().job("job")) == before


async def test_readers_pass_over_what_they_do_not_know(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    spec = '{"id":"job","root_id":"job","description":"x","gpus":2,"limits":{"pids":99,"gpus":2}}'
    await ledger.submit([make_spec(id="job")])
    result = json.loads(make_result("job").model_dump_json()) | {"mood": "good"}
    result["usage"] |= {"gpu_seconds": 3}
    await redis.hset(
        Keys().job("job"), mapping={"spec": spec, "result": json.dumps(result), "colour": "red"}
    )
    await redis.xadd(
        Keys().journal("job"), {"type": "gpu", "attempt": "1", "data": '{"n": 2}', "more": "x"}
    )

    record = await ledger.get("job")
    known = await ledger.result("job")
    *_, event = await Journal(redis, Keys()).read("job")

    assert (record.description, record.limits.pids) == ("x", 99)
    assert known is not None
    assert known.success
    assert (event.type, event.ends_job) == ("gpu", False)
    assert event_line(event).endswith('gpu            {"n": 2}')


async def test_a_form_that_is_not_known_is_told_in_words_and_does_not_hide_other_jobs(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec(id="job"), make_spec("other", id="other")])
    spec = '{"id":"job","root_id":"job","description":"x","limits":{"network":{"allow":[]}}}'
    await redis.hset(Keys().job("job"), mapping={"spec": spec, "result": '{"files_modified": 3}'})

    records = await ledger.get_many(["job", "other"])

    assert [record.description for record in records] == [OF_ANOTHER_RELEASE, "other"]
    with pytest.raises(NotUnderstood, match="Job job is of another release"):
        await ledger.specification("job")
    with pytest.raises(NotUnderstood, match="The result of job job is of another release"):
        await ledger.result("job")


@pytest.mark.parametrize(
    "newer",
    [
        {"on_failure": "retry"},
        {"name": "{a new form}"},
        {"tasks_failed": "3 of 7"},
        {"landed": '{"outcome": {"in": 2, "out": 1}}'},
        {"approvals": "ap_1:quorum"},
        {"timeline": " hibernating:1795869999999 x:y:z"},
    ],
    ids=lambda newer: next(iter(newer)),
)
async def test_a_record_is_shown_without_what_is_not_understood(
    ledger: Ledger, redis: FakeAsyncRedis, newer: dict[str, str]
) -> None:
    await ledger.submit([make_spec(id="job"), make_spec("other", id="other")])
    await redis.hset(Keys().job("job"), mapping=newer)

    records = await ledger.get_many(["job", "other"])

    assert [record.description for record in records] == ["do it", "other"]


async def test_a_job_in_a_state_that_is_not_known_hides_no_other_job(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec(id="job"), make_spec("other", id="other")])
    await redis.hset(Keys().job("job"), "state", "paused")

    assert [record.id for record in await ledger.get_many(["job", "other"])] == ["other"]
    with pytest.raises(NotUnderstood, match="Job job is of another release"):
        await ledger.get("job")


async def test_a_job_whose_specification_cannot_be_read_is_still_its_owners(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec(id="job", owner="ann", labels={"a": "b"})])
    spec = '{"id":"job","root_id":"job","description":["x"],"labels":["a"]}'
    await redis.hset(Keys().job("job"), "spec", spec)

    assert (await ledger.get("job")).owner == "ann"
    [account] = await ledger.accounts(["job"])
    assert account.labels == {}


async def _with_result(ledger: Ledger, redis: FakeAsyncRedis, **newer: Any) -> None:
    await ledger.submit([make_spec(id="job")])
    written = json.loads(make_result("job").model_dump_json()) | newer
    await redis.hset(Keys().job("job"), "result", json.dumps(written))


async def test_a_result_is_shown_without_what_is_not_understood_and_says_what_that_is(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    files = [{"path": "a", "change": "added"}, {"path": "b", "change": "cloned"}]
    await _with_result(ledger, redis, files_modified=files, summary="x" * 9_000, verified=[1])

    shown = await ledger.shown_result("job")

    assert shown is not None
    assert (shown.success, [file.path for file in shown.files_modified]) == (True, ["a"])
    assert shown.not_understood == ("files_modified", "summary", "verified")
    with pytest.raises(NotUnderstood):  # a parent's worker leaves its children to a newer one
        await ledger.result("job")


@pytest.mark.parametrize(
    "newer", [{"changes": ["a", "b"]}, {"collection": "elsewhere"}, {"state": "paused"}]
)
async def test_a_result_is_not_believed_when_what_became_of_the_changes_is_not_understood(
    ledger: Ledger, redis: FakeAsyncRedis, newer: dict[str, Any]
) -> None:
    await _with_result(ledger, redis, **newer)

    with pytest.raises(NotUnderstood, match="The result of job job is of another release"):
        await ledger.shown_result("job")


async def test_what_another_release_counts_besides_does_not_hide_what_a_job_has_used(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec(id="job")])
    used = {"model_calls": "2", "reasoning_tokens": "9", "model_calls@m": "2", "gpu_hours@m": "0.5"}
    await redis.hset(Keys().usage("job"), mapping=used)

    [usage], [account] = await ledger.usage(["job"]), await ledger.accounts(["job"])

    assert usage.model_calls == account.account.by_model["m"].model_calls == 2


async def test_a_waiting_call_that_is_not_understood_can_only_be_rejected_and_hides_no_other(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    request = {
        "agent": "a", "call_id": "1", "tool": "t", "arguments": {}, "sha256": "0", "id": "known",
        "job_id": "job", "decisions": ["approve", "escalate"], "quorum": 3,
    }  # fmt: skip
    for number, (name, text) in enumerate(
        {"newer": '{"v": 2}', "known": json.dumps(request)}.items()
    ):
        fields = {"job": "job", "request": text, "requested_at": "1000"}
        await redis.hset(Keys().approval(name), mapping=fields)
        await redis.zadd(Keys().approvals, {name: number})

    newer, known = await ledger.approvals()

    assert (newer.id, newer.job_id, newer.decisions) == ("newer", "job", ("reject",))
    assert (known.tool, known.decisions) == ("t", ("approve",))


OTHER_FORMS: dict[str, dict[str, str]] = {
    "a list": {"type": "todos", "attempt": "1", "data": "[1]"},
    "no JSON": {"type": "todos", "attempt": "1", "data": "packed"},
    "no data": {"type": "todos", "attempt": "1", "blob": "x"},
    "no attempt": {"type": "todos", "data": "{}"},
    "no kind": {"kind": "todos", "attempt": "1", "data": "{}"},
    "without its id": {"type": "tool.call", "attempt": "1", "data": '{"calls": []}'},
    "an unknown state": {"type": "job.state", "attempt": "1", "data": '{"state": "paused"}'},
}


@pytest.mark.parametrize("entry", OTHER_FORMS.values(), ids=OTHER_FORMS)
async def test_an_entry_of_another_form_is_passed_over_by_readers(
    ledger: Ledger, redis: FakeAsyncRedis, entry: dict[str, str]
) -> None:
    await ledger.submit([make_spec(id="job")])
    await redis.xadd(Keys().journal("job"), entry)

    *_, event = await Journal(redis, Keys()).read("job")

    assert str(event.type).endswith("(of another form)")
    assert not event.ends_job
    assert event_line(event)


def test_limits_of_a_newer_form_have_their_defaults() -> None:
    policy = '{"tree_jobs": {"default": 3}, "tenant_jobs": 7, "regions": {}}'

    read = AdmissionPolicy.read(policy)

    assert (read.tree_jobs, read.tenant_jobs) == (AdmissionPolicy().tree_jobs, 7)


def _of_a_newer_tool(entry: dict[str, Any]) -> dict[str, Any]:
    data = json.loads(entry["data"])
    data["event"] = {"author": "a", "content": {"role": "model", "parts": [{"hologram": {"x": 1}}]}}
    return {**entry, "data": json.dumps(data)}


@pytest.mark.parametrize(
    ("make_newer", "why"),
    [
        (
            lambda entry: {**entry, "type": "thought"},
            "has an event that this release does not know: thought",
        ),
        (
            lambda entry: {**entry, "data": '"packed"'},
            r"has an event that this release does not know: model.reply \(of another form\)",
        ),
        (
            lambda entry: {
                **entry,
                "type": "approval.resolved",
                "data": '{"id": "ap_1", "decision": "escalate"}',
            },
            "has an event of a form that this release does not know: approval.resolved",
        ),
        (_of_a_newer_tool, "has a model.reply of a form that this release does not know"),
    ],
)
async def test_a_conversation_that_cannot_be_read_is_refused_in_words(
    redis: FakeAsyncRedis,
    tmp_path: Path,
    make_newer: Callable[[dict[str, Any]], dict[str, Any]],
    why: str,
) -> None:
    entries = json.loads((RECORDED / "1" / "journal-conversation.json").read_text())
    place = [entry["type"] for entry in entries].index("model.reply")
    entries[place] = make_newer(entries[place])
    for entry in entries:
        await redis.xadd(Keys().journal(FULL.id), entry)
    claim = Claim(spec=FIRST, token=1, attempt=2, ran_seconds=1, submitted_at=0, started_at=0)
    lease = HeldLease(claim, 60, lambda _: None)

    with pytest.raises(NotUnderstood, match=why):
        await AttemptJournal(
            Journal(redis, Keys()), BlobStore(tmp_path.as_uri()), lease, lambda _line: None
        ).history()


def test_a_bundle_of_a_newer_release_is_refused_in_words() -> None:
    document = json.dumps({"version": 3, "trees": []}).encode()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("changes.json")
        member.size = len(document)
        archive.addfile(member, io.BytesIO(document))
    file.seek(0)

    with (
        pytest.raises(NewerBundle, match=r"newer release of fanout .*version 3; this one reads 2"),
        ChangeBundle.open(file),
    ):
        pass
