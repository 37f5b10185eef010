"""A job is one trace: its children, an attempt whose worker was killed, and the landing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.integration.worker.children import DELEGATING, children_of, task
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver, tree
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
CANARY = "canary-4711"
"""Stands in a goal, in a command and in its output: no span has it."""
SCRIPT = (
    conversation(
        f"^lead {CANARY}",
        shell(f"echo {CANARY}"),
        calls(task(f"adds one {CANARY}"), task("adds two")),
        DONE,
    ),
    conversation("^adds one", shell("sleep 150"), shell("echo 1 > one.txt"), DONE),
    conversation(
        "^adds two", calls(call("write_file", file_path="/workspace/two.txt", content="2")), DONE
    ),
)


@pytest.fixture(params=["http/protobuf", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[OtlpReceiver]:
    with otlp_receiver(request.param) as receiver:
        yield receiver


@pytest.fixture
def place(install: Installer, collector: OtlpReceiver) -> Installation:
    return install(*SCRIPT, agents=DELEGATING, **collector.environment)


def named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == name]


def all_but_the_running_attempt_has_come(spans: list[ReceivedSpan]) -> bool:
    """Whether the worker has sent all that has ended: the rest is lost when it is killed.

    The lead is parked, one child has ended, and the other one runs.
    """
    attempts = named(spans, "invoke_agent lead"), named(spans, "invoke_agent general-purpose")
    return all(attempts) and len(named(spans, "job general-purpose")) == 2


async def test_a_job_is_one_trace_although_a_worker_is_killed(
    place: Installation, collector: OtlpReceiver
) -> None:
    lost = place.start_worker(concurrency=4)
    spec = make_spec(
        agent="lead",
        description=f"lead {CANARY}",
        verify="test -f one.txt",
        verify_merges="true",
        traceparent=f"00-{TRACE}-{CALLER}-01",
    )
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(spec)
        await _until_a_child_runs_a_command(client, job_id)
        await collector.until(TRACE, all_but_the_running_attempt_has_come, CALLER)
        lost.kill()
        place.start_worker(concurrency=4)
        result = await client.wait(job_id)
        assert result.state is JobState.SUCCEEDED, result
        record = await client.get(job_id)
    spans = await collector.connected(TRACE, CALLER, attempts=3)

    assert len({span.span_id for span in spans}) == len(spans), "a span was sent twice"
    assert record.trace_id == TRACE
    names = Counter(span.name for span in spans)
    assert names["job lead"] == 1
    assert names["job general-purpose"] == 2
    assert names.keys() >= {
        "queue", "dispatch", "claim", "open sandbox", "run command", "close sandbox", "park", "parked",
        "land", "verify", "collect changes", "commit", "execute_tool task", "execute_tool execute",
    }  # fmt: skip
    by_id = {span.span_id: span for span in spans}
    for child in named(spans, "job general-purpose"):
        assert by_id[child.parent_id].name == "execute_tool task"
    leads = named(spans, "invoke_agent lead")
    assert len(leads) == 2, tree(spans)
    first, second = sorted(leads, key=lambda span: span.begin)
    assert second.links == (first.span_id,)
    again = [one for one in named(spans, "invoke_agent general-purpose") if one.links]
    assert {by_id[one.links[0]].message for one in again} == {"WorkerLost"}, tree(spans)
    model = next(span for span in spans if span.name.startswith("generate_content"))
    assert model.attributes["gen_ai.operation.name"] == "generate_content"
    assert model.attributes["gen_ai.usage.input_tokens"] >= 0
    assert CANARY.encode() not in collector.raw
    assert {span.service for span in spans} == {"fanout-worker"}
    assert f'"trace_id": "{TRACE}"' in place.workers[1].log.read_text()


async def _until_a_child_runs_a_command(client: JobClient, job_id: str) -> None:

    async def runs_a_command() -> bool:
        calls = [
            event.data["tool"]
            for child in await children_of(client, job_id)
            async for event in client.events(child.id, follow=False)
            if event.type is EventType.TOOL_CALL
        ]
        return "execute" in calls

    await eventually(runs_a_command)
