"""What a job of many steps takes of Redis: tools that return a few kilobytes each.

An agent reads source files, searches in them, changes some, runs commands, and does some of it
twice, as agents do.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, call, calls, conversation, shell, write_script
from tests.services import installation

MODEL_CALLS = 41
FILES = (
    "orchestrator/jobs/store/ledger.py",
    "orchestrator/output_schema.py",
    "orchestrator/workspace/merge.py",
    "workers/sandbox/docker/provider.py",
    "workers/sandbox/inside/commands.py",
)
"""What the agent works on: real texts of some twenty kilobytes, which compress as such do."""
NOTES_CHARACTERS = 5_000
JOB_SECONDS = 120.0
KIB = 1024

LONG = Benchmark(
    name="redis-long-job",
    title=f"an ended job of {MODEL_CALLS} model calls in Redis, with all that belongs to it",
    unit="KiB",
    floor="what its tools were given and returned",
    target_ratio=0.5,
)


def steps() -> list[dict[str, Any]]:
    """What the agent does, but for its last word: 40 calls, 8 for each file."""
    made = []
    for file in map(Path, FILES):
        name, path = file.name, f"/workspace/{file.name}"
        notes = (REPOSITORY / file).read_text()[:NOTES_CHARACTERS]
        made += [
            calls(call("read_file", file_path=path)),
            calls(call("grep", pattern="self", path="/workspace")),
            shell(f"git log -3; grep -n import {name}; cat {name}"),
            calls(call("edit_file", file_path=path, old_string='"""', new_string='"""Well, ')),
            shell(f"cp {name} ~old; diff ~old {name}; wc {name}"),
            calls(call("write_file", file_path=f"{path}.md", content=notes)),
            shell("ls -la; cat *.md"),
            calls(call("read_file", file_path=path)),
        ]
    return made


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Run one such job on a worker, and weigh its keys."""
    del wanted
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        workspace = Path(name) / "workspace"
        workspace.mkdir()
        for file in FILES:
            shutil.copy(REPOSITORY / file, workspace)
        script = write_script(Path(name), conversation(".*", *steps(), DONE))
        with installation(Path(name), script=script) as place:
            await asyncio.to_thread(place.start_worker)
            async with place.client() as client, connect(place.redis.url) as redis:
                await place.ready(client)
                job_id = await client.submit(JobSpec(description="Explain."), workspace=workspace)
                result = await client.wait(job_id, JOB_SECONDS)
                assert result.usage.tool_calls == MODEL_CALLS - 1, (
                    result
                )  # a summary may be one call more
                used = sum((await weigh(redis, job_id)).values())
                exchanged = await _exchanged(redis, job_id)
    yield LONG, Samples([used / KIB], [exchanged / KIB])


async def weigh(redis: Redis, job_id: str) -> dict[str, int]:
    """The bytes of each key that belongs to a job, by the kind of key."""
    found: dict[str, int] = {}
    async for key in redis.scan_iter(f"{Keys.prefix}:*{job_id}*", count=1000):
        if await redis.ttl(key) > 0:
            continue  # it is gone in a minute
        kind = key.removeprefix(f"{Keys.prefix}:").partition(":")[0]
        found[kind] = found.get(kind, 0) + int(await redis.memory_usage(key, samples=0) or 0)
    return found


async def _exchanged(redis: Redis, job_id: str) -> int:
    """The characters of all arguments and results of tools in a journal."""
    journal, total = Journal(redis, Keys()), 0
    for entry in await journal.read(job_id):
        event: Any = entry.data.get("event") or {}
        for part in (event.get("content") or {}).get("parts") or ():
            for kind, values in (("function_call", "args"), ("function_response", "response")):
                total += sum(len(str(one)) for one in part.get(kind, {}).get(values, {}).values())
    await journal.close()
    return total


SECTION = Section(benchmarks=(LONG,), run=run)
