"""Children start from layers: what their parent changed is read, not what it started from."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.delegation.continuation import Continuations
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_spec
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.integration.worker.children import DELEGATING

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


bench = bench_fixture(*SCRIPT, agents=DELEGATING, real_redis=True)


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
