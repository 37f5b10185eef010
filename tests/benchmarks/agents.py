"""The same work for a deep agent and for ADK's own: one model, as many tools, one session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout.orchestrator.deep_agent.backends.directory import DirectoryBackend
from fanout.orchestrator.deep_agent.budget import Budget, BudgetLimits
from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from fanout.orchestrator.deep_agent.models.retries import ResilientModel
from fanout.orchestrator.deep_agent.models.scripted_model import Script, ScriptedModel

Kind = Literal["deep", "plain"]

INSTRUCTION = "You look at things.\n"
MEMORY = "# Project\n\nUse tabs.\n"


def _model(turns: int) -> ScriptedModel:
    """Calls a tool in every turn but the last, each time with another argument."""
    replies: list[dict[str, Any]] = [
        {"calls": [{"tool": "ls", "args": {"path": f"/workspace/{turn}"}}]}
        for turn in range(turns - 1)
    ]
    script = Script.model_validate({"conversations": [{"replies": [*replies, {"text": "Done."}]}]})
    return ScriptedModel(script=script, agent_name="bench")


def deep_app(turns: int, folder: Path) -> App:
    """A deep agent as a worker makes it: files, memory, a budget."""
    (folder / "AGENTS.md").write_text(MEMORY)
    scripted = _model(turns)
    agent = create_deep_agent(
        ResilientModel(model=scripted.model, candidates=[scripted]),
        instruction=INSTRUCTION,
        backend=DirectoryBackend(folder, mount="/workspace"),
        memory=["/workspace/AGENTS.md"],
        name="bench",
        is_subagent=True,
        delegation=None,
    )
    return create_deep_app(agent, budget=Budget(BudgetLimits(max_model_calls=10_000)))


def plain_app(turns: int, folder: Path) -> App:
    """ADK's agent with as many function tools as the deep one has.

    They do nothing and are shared.
    """
    agent = LlmAgent(
        name="bench", model=_model(turns), instruction=INSTRUCTION, tools=list(_plain_tools(folder))
    )
    return App(
        name="fanout", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True)
    )


@cache
def _plain_tools(folder: Path) -> tuple[Callable[..., Any], ...]:
    count = len(deep_app(1, folder).root_agent.tools)

    async def ls(path: str) -> dict[str, Any]:
        """List a directory."""
        return {"status": "success", "path": path, "entries": []}

    def another(number: int) -> Callable[..., Any]:
        async def tool(path: str, limit: int = 10) -> dict[str, Any]:
            """Do something else."""
            return {"path": path, "limit": limit}

        tool.__name__ = f"tool_{number}"
        return tool

    return (ls, *(another(number) for number in range(1, count)))


KINDS: dict[Kind, Callable[[int, Path], App]] = {"deep": deep_app, "plain": plain_app}


async def converse(runner: InMemoryRunner) -> None:
    """One run of the agent to its end, in a new session."""
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="Look around.")])
    run = runner.run_async(user_id="u", session_id=session.id, new_message=message)
    async with contextlib.aclosing(run) as events:
        async for _ in events:
            pass
