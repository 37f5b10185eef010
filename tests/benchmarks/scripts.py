"""A thousand agents called by a script, beside the same thousand submitted as one list."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.policy import TREE_JOBS
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved, milliseconds
from tests.integration.models.model_server import Answer, environment, model_server, text
from tests.integration.scripts import conversation, says, write_script
from tests.integration.worker.children import children_of
from tests.services import installation

AGENTS = 1_000
PAIRS = 5
AT_ONCE = TREE_JOBS
"""The slots of the worker: a script's agents are one tree, and no more of one run at once."""
THINKS_SECONDS = 2.0
"""What the model takes for its only answer: half a minute for all, with these slots."""
WAIT_SECONDS = 600.0
SOURCE = """
import asyncio

async def main():
    calls = [agent(f"review {number}") for number in range(inputs["count"])]
    return len(await asyncio.gather(*calls))
"""
BENCHMARK = Benchmark(
    name="script-1000",
    title=f"a script that calls {AGENTS:,} agents, from its submission to its value",
    unit="ms",
    floor="the same jobs in one list",
    target_ratio=1.05,
)


LOSERS = Benchmark(
    name="script-losers",
    title="after the first candidate has passed, until the last of the others is cancelled",
    unit="s",
    target=2.0,
)
ROUNDS = 5


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure what is wanted, on one worker each."""
    if BENCHMARK.name in wanted:
        yield BENCHMARK, await _many_calls()
    if LOSERS.name in wanted:
        yield LOSERS, Samples([await _until_losers_end() for _ in range(ROUNDS)])


async def _until_losers_end() -> float:
    """Seconds between the ends of the winner and of the last of two that are still asking."""
    answers = [Answer(parts=[text("## Summary\nDone.")])]
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        model_server(answers + [Answer(hangs=True)] * 2) as service,
        installation(
            Path(name), **environment(service, "key"), FANOUT_MODEL="gemini-2.5-flash"
        ) as place,
    ):
        place.start_worker(forked=False)
        async with place.client() as client:
            await place.ready(client)
            result = await client.run_script('(await best_of(3, "Solve it.")).summary')
            ends = [one.finished_at or 0.0 for one in await children_of(client, result.job_id)]
    return max(ends) - min(ends)


async def _many_calls() -> Samples:
    script = conversation("^review", says("## Summary\nIt is fine.", delay_seconds=THINKS_SECONDS))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with installation(folder, script=write_script(folder, script)) as place:
            place.start_worker(concurrency=AT_ONCE, forked=False)
            async with place.client() as client:
                await place.ready(client)
                return await interleaved(
                    PAIRS,
                    lambda: milliseconds(_by_script(client)),
                    lambda: milliseconds(_as_list(client)),
                )


async def _by_script(client: JobClient) -> None:
    result = await client.run_script(SOURCE, inputs={"count": AGENTS})
    assert result.output == AGENTS, result.error


async def _as_list(client: JobClient) -> None:
    jobs = [JobSpec(description=f"review {number}") for number in range(AGENTS)]
    ids = await client.submit_many([(job, None) for job in jobs])
    results: list[JobResult] = await asyncio.gather(
        *(client.wait(one, WAIT_SECONDS) for one in ids)
    )
    assert {result.state for result in results} == {JobState.SUCCEEDED}


SECTION = Section(benchmarks=(BENCHMARK, LOSERS), run=run)
