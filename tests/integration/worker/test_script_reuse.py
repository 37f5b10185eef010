"""Scripts with `reuse`: calls that jobs of earlier scripts have answered start no jobs."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.store.journal import EventType
from tests.fixtures import bench_fixture
from tests.integration.jobs.bench import Bench
from tests.integration.scripts import DONE, conversation, says, shell
from tests.integration.worker.test_scripts import entries, run

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

SCRIPT = (
    conversation("^review", says("## Summary\nIt is fine.")),
    conversation("^write", shell("echo made > made.txt"), DONE),
    conversation("^append", shell("echo more >> made.txt"), DONE),
    conversation("^break", {"raise": "broken"}),
)

bench = bench_fixture(*SCRIPT, real_redis=True, retry_pause_seconds=0.01)

TWO_PHASES = """
phase("write")
await agent("write it")
phase("append")
await agent("append to it")
await agent("append to it")
phase("end")
[await files(), await read("made.txt")]
"""


async def started(bench: Bench, result: JobResult) -> int:
    """How many jobs a script has started."""
    return len(await bench.tree_ids(result.job_id)) - 1


async def counts(bench: Bench, result: JobResult) -> dict[str, Any]:
    (ended,) = await entries(bench, result.job_id, EventType.SCRIPT_ENDED)
    return dict(ended.data)


async def test_what_is_reused_lands_and_shapes_later_phases_as_if_it_had_been_run(
    bench: Bench,
) -> None:
    first = await run(bench, TWO_PHASES)
    again = await run(bench, TWO_PHASES, reuse=True)

    assert (first.error, again.error) == (None, None)
    assert again.output == first.output == [["made.txt"], "made\nmore\n"]
    assert await started(bench, again) == 0
    assert (await counts(bench, again))["reused"] == 3
    assert [one.path for one in again.files_modified] == ["made.txt"]
