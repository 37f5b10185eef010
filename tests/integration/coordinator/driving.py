"""A coordinator driven as a program would: through ADK's Runner, with a scripted model."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.genai import types

from fanout.orchestrator.adk.task_toolset import TaskToolset
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent import DelegationStyle, create_deep_agent, create_deep_app
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.integration.scripts import call, calls, conversation, says, write_script
from tests.waits import eventually

WORKER_SCRIPT = (
    conversation(
        "^fail after: (.*?)$",
        calls(call("execute", command="{{1}}")),
        {"raise": "the client broke"},
    ),
    conversation(
        "^plan and run: (.*?)$",
        calls(call("write_todos", todos=[{"content": "canary-todo", "status": "in_progress"}])),
        {**calls(call("execute", command="{{1}}")), "text": "canary-message"},
        says("canary-thought\n\n## Summary\nplanned and ran"),
    ),
    conversation(
        "^run: (.*?)$",
        calls(call("execute", command="{{1}}")),
        says("Done.\n\n## Summary\nran {{1}}"),
    ),
)
"""What sub-agents do: as their description says."""

GOAL = "the goal"
APP_NAME, USER_ID = "chat", "parent"


def task(description: str, **more: Any) -> dict[str, Any]:
    return call("task", description=description, **more)


@dataclass
class Run:
    """What came of a run: ADK's events, with the time at which each was seen."""

    session_id: str
    events: list[Event] = field(default_factory=list)

    @property
    def root_id(self) -> str:
        """The id of the tree of its jobs."""
        return hashlib.sha256(f"{USER_ID}/{self.session_id}".encode()).hexdigest()[:32]

    @property
    def text(self) -> str:
        return "".join(
            part.text or ""
            for event in self.events
            if not event.partial
            for part in _parts(event)
            if part.text
        )

    @property
    def results(self) -> list[dict[str, Any]]:
        """The tools' answers, in the order of their calls."""
        return [
            answer.response or {}
            for event in self.events
            if not event.partial
            for answer in event.get_function_responses()
        ]

    @property
    def progress(self) -> list[Event]:
        return [event for event in self.events if event.partial]


def coordinating(tools: TaskToolset, model: str) -> LlmAgent:
    """An agent of a program's own, with the tools that delegate to jobs."""
    return create_deep_agent(
        model, [tools], name="coordinator", instruction=f"Coordinate.\n\n{tools.instruction}"
    )


class Coordination:
    """Runs coordinators on one workspace."""

    def __init__(self, client: JobClient, folder: Path, workspace: Path) -> None:
        self.client = client
        self.workspace = workspace
        self.sessions: BaseSessionService = InMemorySessionService()
        self.delegation: DelegationStyle = "task"
        self._folder = folder
        self._numbers = itertools.count()

    async def run(
        self, *replies: dict[str, Any], session_id: str | None = None, **more: Any
    ) -> Run:
        """Run a coordinator whose model gives these replies, then says `all done`.

        One turn of a session.
        """
        run = Run(session_id or await self.new_session())
        session = await self.session(run)
        said = sum(
            bool(event.content and event.content.role == "model") for event in session.events
        )
        earlier = [
            says("said before")
        ] * said  # a script counts the replies of the whole conversation
        await self.drive(self.runner(*earlier, *replies, says("all done")), run, **more)
        return run

    async def new_session(self) -> str:
        session = await self.sessions.create_session(app_name=APP_NAME, user_id=USER_ID)
        return session.id

    async def session(self, run: Run) -> Session:
        session = await self.sessions.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=run.session_id
        )
        assert session is not None
        return session

    def runner(self, *replies: dict[str, Any], model: str | None = None) -> Runner:
        """A runner of a coordinator with that model, or one that gives these replies."""
        agent = coordinating(
            TaskToolset(self.client, self.workspace, delegation=self.delegation),
            model or f"scripted:{self._script(replies)}",
        )
        app = create_deep_app(agent, name=APP_NAME)
        return Runner(app=app, session_service=self.sessions)

    def _script(self, replies: Sequence[dict[str, Any]]) -> Path:
        folder = self._folder / f"coordinator-{next(self._numbers)}"
        folder.mkdir()
        return write_script(folder, {"agent": "coordinator", **conversation("", *replies)})

    async def drive(
        self, runner: Runner, run: Run, *, stop_at: str | None = None, **more: Any
    ) -> None:
        """Read the run to its end, or leave it at the first event that says `stop_at`."""
        message = types.Content(role="user", parts=[types.Part(text=GOAL)])
        if "invocation_id" not in more:
            more["new_message"] = message
        stream = runner.run_async(user_id=USER_ID, session_id=run.session_id, **more)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                run.events.append(event)
                if stop_at and stop_at in event_text(event):
                    break

    async def until_called(self, run: Run) -> None:
        """Wait until the model's calls have been seen."""
        await eventually(lambda: any(event.get_function_calls() for event in run.events))

    async def until_progress(self, run: Run, words: str, count: int = 1) -> None:
        """Wait until that many progress events hold these words."""
        await eventually(lambda: sum(words in event_text(event) for event in run.progress) >= count)


def event_text(event: Event) -> str:
    return "".join(part.text or "" for part in _parts(event))


def _parts(event: Event) -> list[types.Part]:
    return (event.content.parts or []) if event.content else []


async def journal(client: JobClient, job_id: str) -> list[JournalEvent]:
    return [event async for event in client.events(job_id, follow=False)]


async def running_times(client: JobClient, job_id: str) -> tuple[float, float]:
    """When a job began to run and when it ended."""
    states = [event for event in await journal(client, job_id) if event.type is EventType.JOB_STATE]
    begun = next(event.at for event in states if event.data["state"] == "running")
    return begun, states[-1].at
