"""Runs deep agents with scripted models, through ADK's own Runner."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from fanout.orchestrator.deep_agent.backends.state import KEY_PREFIX, DictState
from fanout.orchestrator.deep_agent.budget import Budget, BudgetFactory
from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from fanout.orchestrator.deep_agent.models.retries import ResilientModel, RetryPolicy
from fanout.orchestrator.deep_agent.models.scripted_model import Script, ScriptedModel

AT_ONCE = RetryPolicy(first_delay_seconds=0.001)


def scripted(replies: Sequence[dict[str, Any]] | str, name: str = "deep_agent") -> ResilientModel:
    """A model that gives these replies, with the harness's retries."""
    if isinstance(replies, str):
        replies = yaml.safe_load(textwrap.dedent(replies))
    script = Script.model_validate({"conversations": [{"replies": replies}]})
    model = ScriptedModel(script=script, agent_name=name)
    return ResilientModel(model=model.model, candidates=[model], retries=AT_ONCE)


def make_state(files: Mapping[str, bytes]) -> DictState:
    """A state with text files, given by their absolute paths."""
    records = {
        path: {"content": data.decode(), "encoding": "utf-8"} for path, data in files.items()
    }
    return DictState({KEY_PREFIX + path: record for path, record in records.items()})


class Run:
    """One run of an agent, and what came of it."""

    def __init__(
        self,
        model: Any,
        *,
        budget: Budget | BudgetFactory | None = None,
        streaming: bool = False,
        **agent: Any,
    ) -> None:
        self.app = create_deep_app(create_deep_agent(model, **agent), budget=budget)
        self.sessions = InMemorySessionService()
        self.services: dict[str, Any] = {}
        """More services of ADK for the runner."""
        self.events: list[Event] = []
        self._mode = StreamingMode.SSE if streaming else StreamingMode.NONE

    async def to_end(self, task: str = "go") -> "Run":
        await self.sessions.create_session(app_name="fanout", user_id="u", session_id="s")
        return await self.go_on(task)

    async def go_on(self, task: str) -> "Run":
        """Another message of the user in the same session, to the end of what it starts."""
        return await self.answer(types.Content(role="user", parts=[types.Part(text=task)]))

    async def answer(self, message: types.Content) -> "Run":
        """A message, such as a person's answer, to the end of what it starts."""
        runner = Runner(app=self.app, session_service=self.sessions, **self.services)
        async for event in runner.run_async(
            user_id="u",
            session_id="s",
            new_message=message,
            run_config=RunConfig(streaming_mode=self._mode),
        ):
            if event.content or event.error_code:  # a resumable app also tells when an agent ends
                self.events.append(event)
        return self

    @property
    def results(self) -> list[dict[str, Any]]:
        """What the tools answered, in order."""
        return [
            dict(found.response or {})
            for event in self.events
            for found in event.get_function_responses()
        ]

    @property
    def text(self) -> str:
        """The last message."""
        return texts(self.events[-1])


def texts(event: Event) -> str:
    parts = (event.content.parts or []) if event.content else []
    return "".join(part.text or "" for part in parts)


def script_file(folder: Path, text: str) -> Path:
    path = folder / "script.yaml"
    path.write_text(textwrap.dedent(text))
    return path
