"""`python -m tests.unit.wire.record`: writes every kind of message as this release writes it.

The files in `recorded/<wire version>/` stand for what older releases left in Redis, queues and
blobs; tests read them with today's code. They are written once for each version, when `WIRE_NEWEST`
is raised: a compatible change needs no new ones. `--forms` writes the models' forms and the layout
of Redis only, for a version that no release has yet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from fakeredis import FakeAsyncRedis
from kombu import Connection

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Dispatched, Ledger
from fanout.orchestrator.jobs.store.queue import CeleryQueue
from fanout.orchestrator.jobs.versions import WIRE_NEWEST
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_result, make_spec, make_worker
from tests.integration.jobs.bench import LONG_LEASE_SECONDS, Bench, opened_bench
from tests.integration.scripts import DONE, call, calls, conversation, shell, write_script
from tests.unit.wire.forms import forms
from tests.unit.wire.layout import layout

RECORDED = Path(__file__).parent / "recorded"
HASH = "5" * 64

FULL = JobSpec.model_validate(
    {
        "id": "job-full", "root_id": "job-root", "parent_id": "job-parent", "depth": 1, "tenant": "a-team",
        "owner": "ann",
        "caller_policy": {"models": ["gemini-*"], "limits": {"cpus": 4}},
        "agent": "tester", "description": "Move the tax rates.", "context": "The rates are in rates.py.",
        "script": HASH, "script_inputs": {"files": ["a.py"]}, "reuse": True,
        "continues": "job-earlier", "at": "1700000000000-0", "conversation": HASH, "inherit": "conversation",
        "snapshot": HASH, "layers": [HASH],
        "changes": HASH, "output_schema": {"type": "object"}, "verify": "make test", "max_reworks": 1,
        "verify_merges": "make check", "model": "gemini-2.5-pro",
        "limits": {
            "timeout_seconds": 60, "max_model_calls": 5, "max_tokens": 10_000, "max_cost_usd": 0.5,
            "max_tool_calls": 9, "max_calls": 40, "max_wait_seconds": 600, "cpus": 2,
            "memory_bytes": 1024**3, "pids": 100, "disk_bytes": 1024**3,
            "network": ["pypi.org"], "network_bytes": 10**9,
        },
        "interrupt_on": {"execute": ["approve", "reject"], "write_file": True}, "priority": 7,
        "max_attempts": 2, "labels": {"module": "tax"}, "idempotency_key": "once",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
)  # fmt: skip
"""Every field is set to something else than its default."""

FIRST = FULL.model_copy(
    update={"continues": None, "at": None, "conversation": None, "inherit": None}
)
"""The same job, without an earlier one."""

RESULT = JobResult.model_validate(
    {
        "job_id": "job-full", "state": "failed", "success": False, "summary": "Half is done.",
        "verified": {"command": "make test", "exit_code": 1, "output_tail": "1 failed", "seconds": 2.5},
        "output": {"moved": 3}, "changes": HASH, "attempts": 2, "queued_seconds": 0.5,
        "execution_seconds": 12.25, "unread_messages": ["stop"], "sandbox": "docker",
        "files_modified": [
            {"path": "b.py", "change": "renamed", "from_path": "a.py", "lines_added": 1, "lines_removed": 2,
             "binary": False, "size_bytes": 120},
        ],
        "usage": {"model_calls": 3, "input_tokens": 900, "output_tokens": 90, "cached_tokens": 10,
                  "cost_usd": 0.01, "tool_calls": 4},
        "error": {"type": "LimitReached", "message": "5 model calls were made.", "retryable": False},
    }
)  # fmt: skip

CONNECTION = {
    "host": "pypi.org", "port": 443, "allowed": True, "sent_bytes": 100, "received_bytes": 1000,
    "seconds": 0.5, "reason": "idle for 600 s", "secret": "TOKEN",
}  # fmt: skip
SUMMED = {"connections": 2, "refused": 1, "sent_bytes": 100, "received_bytes": 1000}

SCRIPT = conversation(
    ".*",
    calls(call("write_todos", todos=[{"content": "move it", "status": "in_progress"}])),
    calls(call("write_file", file_path="/workspace/new.txt", content="new\n")),
    shell("echo moved"),
    DONE,
)


async def record(folder: Path) -> None:
    """Write all messages there."""
    with tempfile.TemporaryDirectory() as scratch:
        redis = FakeAsyncRedis(decode_responses=True)
        script = write_script(Path(scratch), SCRIPT)
        async with redis, opened_bench(redis, Path(scratch), script, LONG_LEASE_SECONDS) as bench:
            messages = await _lived_through(bench, redis)
    messages |= {
        "result-full": json.loads(RESULT.model_dump_json()),
        "celery-message": _celery_message(),
    }
    messages["worker"] = make_worker(why_local="no engine").fields()
    for name, message in messages.items():
        _write(folder / f"{name}.json", message)


async def _lived_through(bench: Bench, redis: FakeAsyncRedis) -> dict[str, Any]:
    """What a job leaves that asks a person, has a child and hears a message.

    And one that only waits.
    """
    spec = make_spec("move it", id="job-1", interrupt_on={"execute": True})
    await bench.submit(spec)
    await bench.work_off()
    (approval,) = await bench.ledger.approvals()
    stored = await redis.hgetall(Keys().approval(approval.id))
    waiting = await _record(redis, "job-1")
    await bench.ledger.send("job-1", "be quick")
    await bench.ledger.answer(
        approval.id, ApprovalAnswer(decision="approve", message="yes", by="ann")
    )
    await bench.admission.pump()
    await bench.work_off()
    result = await bench.ended("job-1")
    await bench.ledger.submit([FULL])
    return {
        "record-waiting": waiting,
        "record-ended": await _record(redis, "job-1"),
        "record-queued-full": await _record(redis, "job-full"),
        "approval": stored,
        "journal-conversation": await _journal(redis, "job-1"),
        "journal-others": await _other_events(bench.ledger, redis),
        "changes": await _changes(bench.blobs, str(result.changes)),
    }


async def _record(redis: FakeAsyncRedis, job_id: str) -> dict[str, str]:
    fields: dict[str, str] = await redis.hgetall(Keys().job(job_id))
    return fields


SCRIPT_CALL = {
    "key": "c0ffee/1", "function": "agent", "label": "review a", "jobs": ["job-3"],
    "agent": "general-purpose", "phase": "review",
}  # fmt: skip
SCRIPT_VALUE = {"id": "job-3", "ok": True, "state": "succeeded", "summary": "It is fine."}


async def _other_events(ledger: Ledger, redis: FakeAsyncRedis) -> list[dict[str, str]]:
    """A parent's journal, and the kinds that only a lost host or a stream of words brings about."""
    worker = make_worker(concurrency=50)
    await ledger.register(worker, 600)
    await ledger.submit([make_spec(id="job-2")])
    await ledger.dispatch(10)
    claim = await ledger.claim("job-2", worker, 60)
    assert not isinstance(claim, str), claim
    child = make_spec(id="job-3", root_id="job-2", parent_id="job-2", depth=1)
    await ledger.park("job-2", claim.token, [], [child])
    await ledger.cancel("job-3")
    entries = await _journal(redis, "job-2")
    for kind, data in (
        (EventType.CHECKPOINT, {"changes": HASH}),
        (EventType.LANDING, {"children": ["job-3"], "before": HASH}),
        (EventType.CHILD_LANDED, {"id": "job-3", "outcome": "in", "applied": 1, "conflicts": []}),
        (
            EventType.VERIFY,
            {"command": "make test", "exit_code": 0, "output_tail": "", "seconds": 2.5},
        ),
        (EventType.CHANGES_COLLECTED, {"files": 1}),
        (EventType.LOG, {"text": "words"}),
        (
            EventType.MODEL_STATE,
            {"model": "gpt-5", "state": "away", "why": "does not answer (503)", "until": 1.7e9},
        ),
        (EventType.NETWORK_CONNECTION, CONNECTION),
        (EventType.NETWORK_SUMMARY, {"hosts": {"pypi.org:443": SUMMED}}),
        (EventType.NETWORK_LIMIT, {"limit_bytes": 1024, "used_bytes": 1100}),
        (EventType.SCRIPT_STARTED, {"interpreter": "1.4.0"}),
        (EventType.SCRIPT_PHASE, {"name": "review", "snapshot": HASH, "layers": [HASH]}),
        (EventType.SCRIPT_CALL, {"calls": [SCRIPT_CALL]}),
        (
            EventType.SCRIPT_RESULT,
            {"key": "c0ffee/1", "function": "agent", "label": "review a", "ok": True}
            | {"value": {"kind": "result", "value": SCRIPT_VALUE}, "job": "job-3"},
        ),
        (EventType.SCRIPT_LOG, {"lines": ["one of two"]}),
        (
            EventType.SCRIPT_ENDED,
            {"asked": 2, "answered": 1, "failed": 0, "cancelled": 0, "never_run": 1, "kept": 0}
            | {"reasons": ["limits.max_calls"]},
        ),
    ):
        entries.append({"type": str(kind), "attempt": "1", "data": json.dumps(data)})
    return entries


async def _journal(redis: FakeAsyncRedis, job_id: str) -> list[dict[str, str]]:
    entries: Any = await redis.xrange(Keys().journal(job_id))
    return [fields for _, fields in entries]


async def _changes(blobs: BlobStore, bundle: str) -> Any:
    path = await blobs.fetch(bundle)

    def read() -> Any:
        with ChangeBundle.open(path) as opened:
            return opened.changes.model_dump(mode="json")

    return await asyncio.to_thread(read)


def _celery_message() -> Any:
    """The message of a job as it stands in the broker's list."""
    queue = CeleryQueue("redis://recorded", "fanout", "recorded")
    queue._app.conf.update(broker_url="memory://", broker_transport_options={})
    queue._send([Dispatched(FULL, 1)])
    with Connection("memory://") as connection:
        message: Any = connection.default_channel._get("recorded")
    message["headers"]["origin"] = "gen1@host"
    return message


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def main() -> None:
    """Record the messages of today's version."""
    parser = argparse.ArgumentParser(prog="python -m tests.unit.wire.record", description=__doc__)
    parser.add_argument("--forms", action="store_true", help="forms and layout only")
    folder = RECORDED / str(WIRE_NEWEST)
    if not parser.parse_args().forms:
        asyncio.run(record(folder))
        _write(folder / "result-small.json", json.loads(make_result("job-1").model_dump_json()))
    _write(folder / "forms.json", forms())
    _write(folder / "layout.json", layout())


if __name__ == "__main__":
    main()
