"""Jobs whose agents ask a model over HTTP.

The providers' own clients in a real worker, a server here.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.run_config import RunConfig, StreamingMode

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import AgentFailed, LimitReached, ModelClosed
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.workers.upkeep.warm_up import warm_up
from tests.builders import make_spec
from tests.integration.coordinator.driving import Coordination, Run
from tests.integration.models.model_server import (
    Answer,
    ModelServer,
    call,
    environment,
    text,
)
from tests.integration.models.providers import told
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = pytest.mark.redis

KEY = "canary-key-4f1d9c"
PROMPT = "canary-prompt-81aa"
CONTENT = "canary-content-3c07"
AT_ONCE = {"Retry-After": "0"}
ECHO = f'{{"error": {{"code": 401, "type": "authentication_error", "message": "the key {KEY} is wrong"}}}}'
MODELS = ["gemini-2.5-flash", "gpt-5", "responses/gpt-5", "claude-sonnet-4-5", "openai/gpt-5"]
SETTINGS = {"FANOUT_MODEL": "gemini-2.5-flash", "FANOUT_LOG_LEVEL": "debug"}


@pytest.fixture(scope="module")
def place(install_for_module: Installer, model_service: ModelServer) -> Installation:
    return install_for_module(workers=1, **environment(model_service, KEY), **SETTINGS)


class Agent:
    """Runs one job after the other, each with the service's answers to it."""

    def __init__(self, client: JobClient, service: ModelServer, workspace: Path) -> None:
        self.client = client
        self.service = service
        self.workspace = workspace

    async def run(self, *answers: Answer, **spec: Any) -> JobResult:
        self.service.answers[:] = answers
        self.service.requests.clear()
        job_id = await self.client.submit(make_spec(PROMPT, **spec), workspace=self.workspace)
        return await self.client.wait(job_id, 60)

    def told(self, request: int) -> str:
        """What the model was told with its request of that number."""
        return told(self.service.requests[request])


@pytest.fixture
async def agent(
    place: Installation, model_service: ModelServer, tmp_path: Path
) -> AsyncIterator[Agent]:
    async with open_agent(place, model_service, tmp_path) as opened:
        yield opened


@pytest.fixture
def own_place(install: Installer, model_service: ModelServer) -> Installation:
    return install(workers=1, **environment(model_service, KEY), **SETTINGS)


@pytest.fixture
async def own_agent(
    own_place: Installation, model_service: ModelServer, tmp_path: Path
) -> AsyncIterator[Agent]:
    """An agent whose key no job has used."""
    async with open_agent(own_place, model_service, tmp_path) as opened:
        yield opened


@contextlib.asynccontextmanager
async def open_agent(
    place: Installation, service: ModelServer, folder: Path
) -> AsyncIterator[Agent]:
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "kept.txt").write_text(f"{CONTENT}\n")
    async with place.client() as client:
        await place.ready(client)
        yield Agent(client, service, workspace)


DONE = Answer([text("Finished.\n\n## Summary\ndone")])


async def test_a_job_works_with_the_tools_that_the_model_calls(agent: Agent) -> None:
    result = await agent.run(
        Answer([text("reading"), call("read_file", file_path="/workspace/kept.txt")]),
        Answer(
            [
                call("write_file", file_path="/workspace/new.txt", content="new\n"),
                call("execute", command="cat kept.txt"),
            ]
        ),
        DONE,
    )

    assert result.success, result.error
    assert result.summary == "done"
    assert [file.path for file in result.files_modified] == ["new.txt"]
    assert agent.told(1).count(CONTENT) == 1
    assert agent.told(2).count(CONTENT) == 2
    assert (result.usage.model_calls, result.usage.tool_calls) == (3, 3)
    assert (result.usage.input_tokens, result.usage.output_tokens) == (300, 30)


@pytest.mark.slow
async def test_an_overloaded_service_is_asked_again_when_it_says(agent: Agent) -> None:
    begun = time.monotonic()
    result = await agent.run(
        Answer(status=503, headers=AT_ONCE),
        Answer(status=429, headers={"Retry-After": "1"}),
        Answer(body="<html>a proxy's page</html>"),
        DONE,
    )

    assert result.success, result.error
    assert time.monotonic() - begun > 1
    assert len(agent.service.requests) == 4
    assert (result.attempts, result.usage.model_calls) == (1, 1)


@pytest.mark.slow
async def test_a_service_that_stays_down_fails_a_job_that_may_not_wait(agent: Agent) -> None:
    down = [Answer(status=503, headers=AT_ONCE)] * 20
    result = await agent.run(*down, limits=Limits(max_wait_seconds=0))

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.retryable) == (ModelClosed.__name__, False)
    assert "does not answer (503)" in result.error.message
    assert result.attempts == 1
    assert len(agent.service.requests) == 5


async def test_what_the_model_does_wrong_comes_back_to_it_as_text(agent: Agent) -> None:
    result = await agent.run(
        Answer([], finish_reason="MALFORMED_FUNCTION_CALL"),
        Answer([
            call("nosuch"),
            call("read_file"),
            call("ls", path="/workspace", depth=3),
            call("write_file", file_path="/workspace/kept.txt/below", content="x"),
            call("read_file", file_path=["/workspace/kept.txt"]),
            call("execute", command="exit 3"),
            call("execute", command="\x00"),
        ]),
        DONE,
    )  # fmt: skip

    assert result.success, result.error
    assert "could not be read" in agent.told(1)
    (*_, answers) = agent.service.requests[2]["contents"]
    told = [part["functionResponse"]["response"] for part in answers["parts"]]
    assert "no tool with that name" in str(told[0])
    assert "file_path: Field required" in str(told[1])
    assert "depth: Extra inputs are not permitted" in str(told[2])
    assert told[3]["status"] == "error"
    assert "file_path: Input should be a valid string" in str(told[4])
    assert told[5]["exit_code"] == 3
    assert told[6]["status"] == "error"


async def test_a_request_that_is_refused_without_streaming_too_fails_the_job(agent: Agent) -> None:
    result = await agent.run(Answer(status=400), Answer(status=400), DONE)

    assert result.error is not None
    assert (result.error.type, result.attempts) == (AgentFailed.__name__, 1)
    assert "400: not now" in result.error.message
    assert len(agent.service.requests) == 2


async def test_the_budget_of_model_calls_ends_a_job_in_order(agent: Agent) -> None:
    step = Answer([text("a step"), call("execute", command="echo x >> steps.txt")])
    summed_up = Answer(
        [text("## Summary\ntwo steps done"), call("execute", command="echo never >> steps.txt")]
    )
    result = await agent.run(step, step, summed_up, DONE, limits=Limits(max_model_calls=3))

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == LimitReached.__name__
    assert "max_model_calls=3" in result.error.message
    assert result.summary.startswith("two steps done")
    assert result.usage.model_calls == 3
    assert [(file.path, file.lines_added) for file in result.files_modified] == [("steps.txt", 2)]


async def test_the_budget_of_tokens_ends_a_job_in_order(agent: Agent) -> None:
    none = await agent.run(limits=Limits(max_tokens=350))
    assert none.error is not None
    assert none.error.type == LimitReached.__name__
    assert "max_tokens=350" in none.error.message
    assert none.usage.model_calls == 0
    found = re.search(r"a model call may need (\d+)", none.summary)
    assert found is not None, none.summary

    # Enough for two requests, and after the first for one.
    most = 2 * int(found[1]) + 50
    step = Answer([call("execute", command="echo x >> steps.txt")])
    summed_up = Answer([text("## Summary\nas far as it went")])
    result = await agent.run(step, summed_up, limits=Limits(max_tokens=most))

    assert result.error is not None
    assert result.error.type == LimitReached.__name__
    assert f"max_tokens={most}" in result.error.message
    assert result.summary == "as far as it went"
    assert result.usage.input_tokens + result.usage.output_tokens <= most


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}


async def test_a_structured_answer_is_validated_and_sent_back_once(agent: Agent) -> None:
    wrong, right = (
        Answer([text('{"count": "three"}')]),
        Answer([text('```json\n{"count": 3}\n```')]),
    )
    result = await agent.run(wrong, right, output_schema=SCHEMA)

    assert result.success, result.error
    assert result.output == {"count": 3}
    assert "does not fit the schema at $.count" in agent.told(1)


async def test_an_answer_that_does_not_fit_twice_fails_the_job(agent: Agent) -> None:
    result = await agent.run(*[Answer([text("three of them")])] * 3, output_schema=SCHEMA)

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == AgentFailed.__name__
    assert result.output is None
    assert len(agent.service.requests) == 2


async def test_a_streaming_coordinator_and_its_sub_agent(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment(agent.service, KEY).items():
        monkeypatch.setenv(name, value)
    agent.service.paths.clear()
    agent.service.answers[:] = [
        Answer([text("I give "), text("it away."), call("task", description="write new.txt")]),
        Answer([call("write_file", file_path="/workspace/new.txt", content="new\n")]),
        DONE,
        Answer([text("all "), text("done")]),
    ]
    coordination = Coordination(agent.client, tmp_path, agent.workspace)
    run = Run(await coordination.new_session())
    streaming = RunConfig(streaming_mode=StreamingMode.SSE)
    await coordination.drive(
        coordination.runner(model="gemini-2.5-flash"), run, run_config=streaming
    )

    assert ["alt=sse" in path for path in agent.service.paths] == [True] * 4
    assert run.text == "I give it away.all done"
    assert [result["status"] for result in run.results] == ["success"]
    assert (agent.workspace / "new.txt").read_text() == "new\n"
    assert [event for event in run.progress if event.author == "coordinator"]


async def test_warming_up_asks_no_model_and_fails_for_none(
    model_service: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", model_service.url)
    await warm_up(["gemini-2.5-flash", "no-such-model"])  # and there is no key
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    asked_before = len(model_service.paths)
    await warm_up(["gemini-2.5-flash", "scripted:/no/such/file"])
    assert len(model_service.paths) == asked_before


def contents_below(folder: Path) -> dict[Path, bytes]:
    """Every file that Redis, the worker and the blob store wrote; sandboxes go while we look."""
    found = {}
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
async def test_every_provider_serves_a_job_and_its_refusal_tells_no_key(
    own_agent: Agent, model: str
) -> None:
    agent, refusal = own_agent, Answer(status=401, body=ECHO)
    refused = await agent.run(refusal, model=model)
    result = await agent.run(
        Answer([text("reading"), call("read_file", file_path="/workspace/kept.txt")]),
        Answer(
            [
                call("write_file", file_path="/workspace/new.txt", content="new\n"),
                call("execute", command="env"),
            ]
        ),
        DONE,
        model=model,
    )
    # The key has worked by now, so a job would wait for it.
    closed = await agent.run(refusal, model=model, limits=Limits(max_wait_seconds=0))

    assert result.success, result.error
    assert [file.path for file in result.files_modified] == ["new.txt"]
    usage = result.usage
    assert (usage.model_calls, usage.input_tokens, usage.output_tokens) == (3, 300, 30)
    assert usage.cost_usd is not None
    assert 0 < usage.cost_usd < 0.01
    assert refused.error is not None
    assert refused.error.type == AgentFailed.__name__
    assert "the key (hidden) is wrong" in refused.error.message
    assert closed.error is not None
    assert closed.error.type == ModelClosed.__name__
    assert "refuses the key, which had worked (401)" in closed.error.message
    for outcome in (refused, result, closed):
        journal = [event async for event in agent.client.events(outcome.job_id, follow=False)]
        assert KEY not in outcome.model_dump_json() + str(journal)


async def test_the_key_is_found_nowhere_and_the_log_tells_no_content(
    agent: Agent, place: Installation
) -> None:
    result = await agent.run(
        Answer([call("write_file", file_path="/workspace/a", content=CONTENT)]), DONE
    )

    assert result.success, result.error
    written = contents_below(place.folder)
    assert any(
        PROMPT.encode() in content for content in written.values()
    )  # Redis writes all that it gets
    assert [path for path, content in written.items() if KEY.encode() in content] == []
    # A result is readable before the worker has logged it.
    log = await eventually(place.workers[0].log.read_text, lambda log: "attempt ended" in log)
    assert PROMPT not in log
    assert CONTENT not in log
