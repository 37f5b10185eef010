"""Children start from layers: what their parent changed is read, not what it started from."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.delegation.continuation import Continuations
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_spec
from tests.integration.jobs.bench import LONG_LEASE_SECONDS, Bench, opened_bench
from tests.integration.scripts import DONE, call, calls, conversation, shell, write_script
from tests.integration.worker.children import delegating_agents
from tests.services import RedisProcess

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

WAITS = 60
SCRIPT = (
    conversation(
        "^waits often",
        *(calls(call("task", description=f"adds {number}")) for number in range(WAITS)),
        DONE,
        shell("rm given.txt"),
        calls(call("task", description="adds more")),
        DONE,
    ),
    conversation(r"adds (\w+)", shell("ls > f{{1}}"), DONE),
)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each blob was read, by whatever way."""
    counted: Counter[str] = Counter()
    genuine = BlobStore._fetch

    def counting(blobs: BlobStore, blob_id: str) -> Path:
        counted[blob_id] += 1
        return genuine(blobs, blob_id)

    monkeypatch.setattr(BlobStore, "_fetch", counting)
    return counted


@pytest.fixture
async def bench(redis_server: RedisProcess, tmp_path: Path) -> AsyncIterator[Bench]:
    redis: Redis = connect(redis_server.url)
    await redis.flushall()
    script = await asyncio.to_thread(write_script, tmp_path, *SCRIPT)
    async with opened_bench(redis, tmp_path, script, LONG_LEASE_SECONDS) as made:
        agents = await asyncio.to_thread(delegating_agents, tmp_path)
        made.configure(await asyncio.to_thread(load_agent_definitions, agents))
        yield made
    await redis.aclose()


async def test_sixty_waits_of_a_job_and_its_continuation_unpack_the_snapshot_once(
    bench: Bench, read: Counter[str]
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("given.txt"))
    base = await bench.blobs.put(buffer.getvalue())

    parent = await bench.submit(make_spec("waits often", agent="lead", snapshot=base))
    await bench.work_off()
    result = await bench.ended(parent)

    assert result.success, result.error
    assert len(result.files_modified) == WAITS
    children = await _children(bench, parent)
    assert {(child.snapshot, len(child.layers)) for child in children[1:]} == {(base, 1)}
    assert children[0].start == (base, ())
    assert read[base] == 2, "unpacked once, and looked through once for a memory file"

    definitions = await asyncio.to_thread(load_agent_definitions)
    continuations = Continuations(bench.ledger, bench.journal, bench.blobs, definitions)
    spec = await continuations.completed(JobSpec(description="and more", continues=parent))
    second = await bench.submit(spec)
    await bench.work_off()

    assert (await bench.ended(second)).success
    assert [len(one.layers) for one in (spec, *await _children(bench, second))] == [1, 2]
    assert read[base] == 2


async def _children(bench: Bench, parent: str) -> list[JobSpec]:
    entries = await bench.journal.read(parent)
    ids = [str(one.data["id"]) for one in entries if one.type is EventType.CHILD_LANDED]
    return [await bench.ledger.specification(job_id) for job_id in ids]
