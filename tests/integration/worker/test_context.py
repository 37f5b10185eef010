"""A job on a real worker that passes its window many times, and loses its worker in the middle."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from google.adk.events import Event

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent.models.tokens import summary_calls
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import call, calls, conversation
from tests.services import Installation, Installer
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 400
KILLED_AFTER = 150
GOAL = "Write four hundred numbered files, one by one."
AGENT = {
    "name": "scribe",
    "description": "Writes for long.",
    "instruction": "Write.",
    "limits": {"max_model_calls": 1_000, "timeout_seconds": 600},
    "summarization": {"trigger": ["tokens", 4_000], "keep": ["tokens", 400]},
}


def script() -> tuple[dict[str, Any], ...]:
    steps = [
        calls(
            call("write_file", file_path=f"/workspace/{number}.txt", content=f"text {number} " * 40)
        )
        for number in range(STEPS)
    ]
    look_back = calls(call("grep", pattern="/workspace/3.txt", path="/conversation_history"))
    last = {"text": "Done.\n\n## Summary\nTask: {{task}}\nIn the history: {{last_result}}"}
    return (
        conversation("^An AI agent works on a task", {"text": "## Done so far\nSome files."}),
        conversation("numbered files", *steps, look_back, last),
    )


place = place_fixture(
    *script(), agents={"scribe": yaml.safe_dump(AGENT)}, FANOUT_WORKER__LEASE_SECONDS="4"
)


@pytest.fixture
def blobs(place: Installation) -> BlobStore:
    return BlobStore(place.settings.blobs)


async def events(client: JobClient, job_id: str) -> list[JournalEvent]:
    return [event async for event in client.events(job_id, follow=False)]


async def session_events(client: JobClient, blobs: BlobStore, job_id: str) -> list[Event]:
    found = []
    for entry in await events(client, job_id):
        if "event" in entry.data:
            found.append(Event.model_validate(entry.data["event"]))
        elif "event_blob" in entry.data:
            found.append(Event.model_validate_json(await blobs.get(str(entry.data["event_blob"]))))
    return found


async def test_four_hundred_steps_survive_their_windows_and_their_worker(
    place: Installation, blobs: BlobStore
) -> None:
    place.start_worker(concurrency=1)
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec(GOAL, agent="scribe"))
        await until_event(client, job_id, EventType.MODEL_REQUEST, KILLED_AFTER)
        place.workers[0].kill()
        place.start_worker(concurrency=1)

        result = await client.wait(job_id, 200)

        assert result.success, result.error
        assert result.attempts == 2
        assert result.summary.startswith(f"Task: {GOAL}\n"), "the goal is not in the last request"
        assert "/conversation_history/" in result.summary, "the history is not found"
        assert len(result.files_modified) >= STEPS - 1, (
            "only the write that was under way may be lost"
        )
        found = await session_events(client, blobs, job_id)
        summaries = [event for event in found if event.actions.compaction]
        assert len(summaries) > 10
        parts = [key for event in summaries for key in event.actions.state_delta]
        folder = f"file:/conversation_history/{job_id}"
        assert parts == [f"{folder}/{number:04}.md" for number in range(1, len(summaries) + 1)]
        times = [event.timestamp for event in found]
        assert times == sorted(set(times)), "times are not strictly increasing"
        replies = [event for event in found if event.content and event.content.role == "model"]
        made = sum(map(summary_calls, summaries))
        assert result.usage.model_calls == len(replies) + made


@pytest.fixture
def small_place(install: Installer) -> Installation:
    small = {"trigger": ["tokens", 4_000], "keep": ["tokens", 400], "window_tokens": 8_000}
    steps = [calls(call("execute", command="mkdir -p src && echo 1 > src/by_shell.py"))]
    steps += [calls(call("execute", command=f"seq {number} 900")) for number in range(12)]
    return install(
        conversation("^An AI agent works on a task", {"text": "## Done so far\nSome."}),
        conversation("numbered files", *steps, {"text": "Done."}),
        agents={"scribe": yaml.safe_dump({**AGENT, "summarization": small})},
    )


@pytest.mark.representative
async def test_a_summary_lists_what_the_shell_changed_and_the_result_tells_of_it(
    small_place: Installation,
) -> None:
    small_place.start_worker(concurrency=1)
    async with small_place.client() as client:
        await small_place.ready(client)
        job_id = await client.submit(make_spec(GOAL, agent="scribe"))
        result = await client.wait(job_id, 100)
        assert result.success, result.error
        told = [
            event.data["context_summary"]
            for event in await events(client, job_id)
            if "context_summary" in event.data
        ]
    assert result.context.summary_count == len(told) > 0
    assert result.context.tokens_saved > 0
    assert all(found["files_modified"] == ["/workspace/src/by_shell.py"] for found in told)
