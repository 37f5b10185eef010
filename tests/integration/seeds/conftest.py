"""Runs the seeds' examples as they stand, with a scripted model in place of a real one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

import fanout
import fanout.backends
import fanout.execution
import fanout.execution.local
from fanout.orchestrator.deep_agent import assembly
from tests.unit.deep_agent.running import scripted, texts

ALIASES = {
    "adk_deepagents": fanout,
    "adk_deepagents.backends": fanout.backends,
    "adk_deepagents.execution": fanout.execution,
    "adk_deepagents.execution.local": fanout.execution.local,
}
"""The name that the seeds give the package."""

Example = Callable[..., dict[str, Any]]
Replies = list[dict[str, Any]]


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Replies:
    """What every model says whose name an example gives; empty at first."""
    said: Replies = []

    def scripted_model(_name: str, *, agent_name: str, **_: Any) -> Any:
        return scripted(said or [{"text": "done"}], agent_name)

    monkeypatch.setattr(assembly, "resolve_model", scripted_model)
    return said


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, replies: Replies) -> Example:
    """Executes an example's text, with the names that it takes for granted; returns its names."""
    del replies
    for name, module in ALIASES.items():
        monkeypatch.setitem(sys.modules, name, module)

    def execute(text: str, **given: Any) -> dict[str, Any]:
        names = {"__name__": "example", **given}
        done = eval(_compiled(text), names)  # noqa: S307 - the example's text
        if inspect.iscoroutine(done):
            asyncio.run(done)
        return names

    return execute


def _compiled(text: str) -> CodeType:
    source = textwrap.dedent(text)
    return compile(source, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class Conversation:
    """What a run of an agent gave."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.text = ""


async def converse(agent: LlmAgent, message: str = "go") -> Conversation:
    """Run an agent in ADK's own runner to the end of one message."""
    runner = InMemoryRunner(agent=agent)
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="u")
    run = Conversation()
    async for event in runner.run_async(
        user_id="u",
        session_id=session.id,
        new_message=types.Content(role="user", parts=[types.Part(text=message)]),
    ):
        run.results += [dict(each.response or {}) for each in event.get_function_responses()]
        run.text = texts(event) or run.text
    return run
