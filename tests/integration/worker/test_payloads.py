"""A job's long values: once in Redis, large ones as blobs, gone with the job, back when resumed."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from fanout.orchestrator.jobs.bounds import KIB
from fanout.orchestrator.jobs.conversation import event_json
from fanout.orchestrator.jobs.payloads import GONE, take_out
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.orchestrator.workspace.blobs import BlobStore, BlobStoreUnusable
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, shell

MARKER = "the only copy of this line"
LINES = (
    f"for n in $(seq 40); do echo line $n of many; done; echo {MARKER[:8]}''{MARKER[8:]}; seq 90"
)
"""Its output has the marker behind what previews show, and the command does not have it."""


bench = bench_fixture(
    conversation("twice", shell(LINES), shell(LINES), shell(LINES), DONE),
    conversation(
        "large",
        shell(f"head -c {32 * KIB} /dev/zero | tr '\\0' a"),
        shell(f"head -c {32 * KIB + 1} /dev/zero | tr '\\0' b"),
        DONE,
    ),
    conversation("small", shell("echo one"), DONE),
)


async def run(bench: Bench, what: str) -> str:
    job_id = await bench.submit(make_spec(what))
    await bench.work_off()
    return job_id


async def everything(redis: Redis) -> str:
    """All keys and values of Redis as text, with what is packed unpacked."""
    commands = {"hash": "HGETALL", "string": "GET", "stream": "XRANGE", "zset": "ZRANGE"}
    commands |= {"set": "SMEMBERS", "list": "LRANGE"}
    ranges = {"XRANGE": ("-", "+"), "ZRANGE": (0, -1), "LRANGE": (0, -1)}
    found = []
    async for key in redis.scan_iter():
        command = commands[await redis.type(key)]
        options: Any = {NEVER_DECODE: True}
        value = await redis.execute_command(command, key, *ranges.get(command, ()), **options)
        found += [key, *_texts(value)]
    return "\n".join(found)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, (list, tuple, set)):
        return [text for one in value for text in _texts(one)]
    if not isinstance(value, bytes):
        return [str(value)]
    try:
        return [zlib.decompress(value).decode()]
    except zlib.error:
        return [value.decode()]


async def outputs(bench: Bench, job_id: str) -> list[Any]:
    """What the job's commands returned, as an attempt that resumes it reads it."""
    found = []
    for entry in await bench.journal.read(job_id):
        raw = await event_json(entry, bench.journal, bench.blobs.get)
        if raw is not None and entry.type is EventType.TOOL_RESULT:
            event = json.loads(raw)
            found += [
                part["function_response"]["response"]["output"]
                for part in event["content"]["parts"]
            ]
    return found


async def test_the_same_output_is_in_redis_once_however_often_it_is_returned(
    bench: Bench, redis: Redis
) -> None:
    job_id = await run(bench, "twice")

    assert (await everything(redis)).count(MARKER) == 1
    assert [one.count(MARKER) for one in await outputs(bench, job_id)] == [1, 1, 1]
    shown = [one for one in await bench.journal.read(job_id) if one.type is EventType.TOOL_RESULT]
    assert all(MARKER in str(one.data["results"]) for one in shown), "the live view has it"


async def test_above_32_kb_an_output_is_a_blob_and_at_32_kb_it_is_not(
    bench: Bench, redis: Redis
) -> None:
    job_id = await run(bench, "large")

    in_redis = await everything(redis)
    assert "a" * 32 * KIB in in_redis
    assert "b" * 4 * KIB not in in_redis
    assert await outputs(bench, job_id) == ["a" * 32 * KIB, "b" * (32 * KIB + 1)]


async def test_only_a_job_with_long_values_needs_a_release_that_reads_them(bench: Bench) -> None:
    long, small = await run(bench, "twice"), await run(bench, "small")

    assert (await bench.ledger.get(long)).wire == 3
    assert (await bench.ledger.get(small)).wire == 1


async def test_a_job_with_long_values_keeps_its_version_when_it_is_claimed_again(
    bench: Bench,
) -> None:
    job_id = await bench.submit(make_spec("small"))
    first = await bench.ledger.claim(job_id, bench.worker, 60)
    assert isinstance(first, Claim)
    data, payloads = take_out({"text": MARKER * 100})
    packed = {name: one.packed() for name, one in payloads.items()}
    journal = bench.journal
    await journal.append(job_id, 1, EventType.LOG, data, token=first.token, payloads=packed)
    await bench.ledger.release(job_id, first.token, "Its worker stops.")
    await bench.admission.pump()

    again = await bench.ledger.claim(job_id, bench.worker, 60)

    assert isinstance(again, Claim)
    assert (await bench.ledger.get(job_id)).wire == 3


async def test_an_output_whose_blob_has_expired_is_a_sentence(bench: Bench) -> None:
    job_id = await run(bench, "large")
    for entry in await bench.journal.read(job_id):
        names: Any = entry.data.get("payloads", {})
        for name in names:
            await bench.blobs.delete(name)

    assert await outputs(bench, job_id) == ["a" * 32 * KIB, GONE]


async def test_without_a_blob_store_that_takes_it_a_large_output_is_kept_in_redis(
    bench: Bench, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> str:
        raise BlobStoreUnusable("It is away.")

    monkeypatch.setattr(BlobStore, "put", refuse)
    job_id = await run(bench, "large")

    assert "b" * 32 * KIB in await everything(redis)
    assert (await outputs(bench, job_id))[1] == "b" * (32 * KIB + 1)


async def test_the_values_go_with_their_job_also_when_another_release_has_deleted_it(
    bench: Bench, redis: Redis
) -> None:
    kept, deleted = await run(bench, "twice"), await run(bench, "twice")
    await redis.delete(Keys().job(deleted), Keys().journal(deleted))  # it knows no payloads
    await redis.zadd("fanout:journal:with_payloads", {kept: 1, deleted: 1})

    await bench.ledger.forget(3600)

    assert await redis.exists(Keys().payloads(kept)) == 1
    assert await redis.exists(Keys().payloads(deleted)) == 0
    await redis.zadd("fanout:ended", {kept: 1})
    await bench.ledger.forget(3600)
    assert not [key async for key in redis.scan_iter() if "payloads" in key]


async def test_a_read_brings_no_more_values_along_than_it_may(
    bench: Bench, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await run(bench, "large")
    monkeypatch.setattr("fanout.orchestrator.jobs.store.journal.MAX_RESTORED_BYTES", 10)

    entries = await Journal(redis, Keys()).read(job_id)

    results = [one for one in entries if one.type is EventType.TOOL_RESULT]
    assert all("event" not in one.data for one in results)
    assert await outputs(bench, job_id) == ["a" * 32 * KIB, "b" * (32 * KIB + 1)]
