"""A coordinator's limits: for each run of an app, and not while a person thinks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from fakeredis import FakeAsyncRedis
from google.adk.apps import App
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from orchestrator.approvals import ApprovalAnswer
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings
from orchestrator.coordinator.coordinator import (
    APP_NAME,
    budgets_of,
    create_coordinator,
    create_coordinator_app,
)
from orchestrator.deep_agent.approval.requests import answers_message, pending_approvals
from orchestrator.deep_agent.guards import budget as budget_module
from orchestrator.jobs.store.keys import Keys
from orchestrator.jobs.store.rate_limiter import RateLimiter
from tests.integration.scripts import call, calls, conversation, says, write_script

NOBODY = "redis://127.0.0.1:9/0"
"""No job is started here: only the turns at models are asked for, elsewhere."""
LOOK = calls(call("ls", path="/workspace"))
LIMITS = {"max_model_calls": 3, "max_tool_calls": 5, "timeout_seconds": 60}


def definition(folder: Path, **more: Any) -> None:
    given = {"name": "bound", "description": "d", "instruction": "i", "limits": LIMITS, **more}
    (folder / "bound.yaml").write_text(yaml.safe_dump(given))


def connected(tmp_path: Path) -> JobClient:
    made = JobClient.from_settings(Settings(redis_url=NOBODY, agents_dir=tmp_path))
    made.rate_limiter = RateLimiter(FakeAsyncRedis(decode_responses=True), Keys(), {})
    return made


@pytest.fixture
def client(tmp_path: Path) -> JobClient:
    definition(tmp_path)
    return connected(tmp_path)


@pytest.fixture
def asking(tmp_path: Path) -> JobClient:
    definition(tmp_path, interrupt_on={"write_file": True})
    return connected(tmp_path)


def scripted(folder: Path, *replies: dict[str, Any]) -> str:
    return f"scripted:{write_script(folder, conversation('.*', *replies))}"


def app_of(client: JobClient, workspace: Path, model: str) -> App:
    coordinator = create_coordinator(client, workspace=workspace, agent="bound", model=model)
    return create_coordinator_app(coordinator, budgets_of(client.definitions["bound"]))


class Chat:
    """Sessions of one app, as a server has them."""

    def __init__(self, app: App) -> None:
        self.sessions = InMemorySessionService()
        self.app = app

    async def say(self, session_id: str, content: types.Content) -> list[Event]:
        known = await self.sessions.get_session(
            app_name=APP_NAME, user_id="u", session_id=session_id
        )
        if known is None:
            await self.sessions.create_session(
                app_name=APP_NAME, user_id="u", session_id=session_id
            )
        runner = Runner(app=self.app, session_service=self.sessions)
        run = runner.run_async(user_id="u", session_id=session_id, new_message=content)
        return [event async for event in run]


def message(text: str = "go") -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def texts(events: list[Event]) -> str:
    parts = [
        part for event in events for part in (event.content.parts if event.content else None) or []
    ]
    return "".join(part.text or "" for part in parts)


async def test_each_run_of_an_app_has_its_own_limits(client: JobClient, tmp_path: Path) -> None:
    chat = Chat(app_of(client, tmp_path, scripted(tmp_path, *[LOOK] * 9)))

    first, other = await chat.say("a", message()), await chat.say("b", message())
    again = await chat.say("a", message())

    for events in (first, other, again):
        assert "The limit max_model_calls=3 is reached" in texts(events)
    assert [
        sum(bool(event.get_function_calls()) for event in events) for events in (first, other)
    ] == [2, 2]


async def test_an_account_goes_on_after_an_approval_also_in_another_process(
    asking: JobClient, tmp_path: Path
) -> None:
    write = calls(call("write_file", file_path="/workspace/a.txt", content="one"))
    model = scripted(tmp_path, write, *[LOOK] * 9)
    chat = Chat(app_of(asking, tmp_path, model))
    (pending,) = pending_approvals(await chat.say("a", message()))

    chat.app = app_of(asking, tmp_path, model)
    ended = await chat.say("a", answers_message([(pending, ApprovalAnswer(decision="approve"))]))

    assert (tmp_path / "a.txt").read_text() == "one"
    assert "The limit max_model_calls=3 is reached" in texts(ended)


async def test_the_time_is_each_runs_own(
    client: JobClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(value=1000.0)
    monkeypatch.setattr(budget_module, "time", SimpleNamespace(monotonic=lambda: now.value))
    chat = Chat(app_of(client, tmp_path, scripted(tmp_path, says("one"), says("two"))))

    first = await chat.say("a", message())
    now.value += 500
    second = await chat.say("a", message())

    assert (texts(first), texts(second)) == ("one", "two")
