"""The coordinator: a deep agent with task tools."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from config.agent_definitions import COORDINATOR, GENERAL_PURPOSE, AgentDefinition
from orchestrator.client import JobClient
from orchestrator.deep_agent.backends.directory import DirectoryBackend
from orchestrator.deep_agent.budget import Budget, BudgetLimits
from orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from orchestrator.deep_agent.failures import ModelFailed
from orchestrator.deep_agent.models import resolve_model
from orchestrator.jobs.failures import AgentFailed, InvalidJob, JobFailure, LimitReached, ModelUnavailable
from orchestrator.jobs.result import JobError
from orchestrator.jobs.spec import new_job_id
from orchestrator.task_tools import TaskTools

APP_NAME = "orchestrator"
"""ADK wants an app to be named like the folder that it is found in."""
USER_ID = "parent"
CALL_CHARACTERS = 100
"""A tool call is told in one line of a terminal."""


@dataclass(frozen=True)
class CoordinatorEvent:
    """Something that happened in a coordinator's run, for a person to read."""

    kind: Literal["text", "tool", "progress", "error"]
    text: str
    job_id: str | None = None


@dataclass(frozen=True)
class RunOutcome:
    """How a coordinator's run ended."""

    success: bool
    text: str
    """The coordinator's last message."""
    root_id: str
    """The tree of its jobs."""
    error: JobError | None = None


def create_coordinator(
    client: JobClient,
    *,
    workspace: Path,
    agent: str = COORDINATOR,
    model: str | None = None,
    default_model: str = "gemini-2.5-flash",
) -> LlmAgent:
    """An ADK agent that delegates to jobs on `workspace`; works with any ADK Runner.

    Raises:
        UnknownAgent: there is no definition of that name.
        InvalidJob: its model cannot be used as configured.
    """
    definition = client.definitions[agent]
    name = model or definition.model or default_model
    callable_agents = _callable_agents(client, definition)
    try:
        return create_deep_agent(
            resolve_model(name, agent_name=definition.name),
            TaskTools(client, workspace, callable_agents, root_id_of).tools(),
            instruction=f"{definition.instruction}\n\n{_agent_list(client, callable_agents)}",
            backend=DirectoryBackend(workspace, mount="/workspace"),
            built_in_tools=definition.tools,
            output_schema=definition.output_schema,
            name=definition.name,
            description=definition.description,
        )
    except ValueError as error:  # a model's name or key, a tool's name, the schema
        raise InvalidJob(str(error)) from error


def create_coordinator_app(coordinator: LlmAgent, budget: Budget | None = None) -> App:
    """The ADK app of a coordinator, with the harness's plugins."""
    return create_deep_app(coordinator, name=APP_NAME, budget=budget)


async def run_goal(
    client: JobClient,
    *,
    goal: str,
    workspace: Path,
    agent: str = COORDINATOR,
    model: str | None = None,
    default_model: str = "gemini-2.5-flash",
    root_id: str | None = None,
    on_event: Callable[[CoordinatorEvent], None] = lambda _: None,
) -> RunOutcome:
    """Run a coordinator on a goal to its end; its jobs' changes are merged into the workspace as they come.

    Cancelling it cancels the jobs that it waits for.
    """
    definition = client.definitions[agent]
    limits = definition.job_limits()
    budget = Budget(
        BudgetLimits(
            max_model_calls=limits.max_model_calls,
            max_tokens=limits.max_tokens,
            max_cost_usd=limits.max_cost_usd,
        ),
    )
    coordinator = create_coordinator(
        client, workspace=workspace, agent=agent, model=model, default_model=default_model
    )
    runner = InMemoryRunner(app=create_coordinator_app(coordinator, budget))
    root_id = root_id or new_job_id()
    await runner.session_service.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=root_id)
    try:
        text = await _drain(runner, root_id, goal, on_event)
    except (ModelFailed, JobFailure) as error:
        failure = _as_failure(error)
        on_event(CoordinatorEvent("error", str(failure)))
        return RunOutcome(success=False, text="", root_id=root_id, error=failure.as_error())
    finally:
        await runner.close()
    failed: JobFailure | None = LimitReached(budget.reached) if budget.reached else None
    if not text and failed is None:
        failed = AgentFailed("The coordinator ended without an answer.")
    return RunOutcome(
        success=failed is None, text=text, root_id=root_id, error=failed.as_error() if failed else None
    )


async def _drain(
    runner: InMemoryRunner, session_id: str, goal: str, on_event: Callable[[CoordinatorEvent], None]
) -> str:
    """Run to the end and pass on what happens; the last text."""
    message = types.Content(role="user", parts=[types.Part(text=goal)])
    last = ""
    run = runner.run_async(user_id=USER_ID, session_id=session_id, new_message=message)
    async with contextlib.aclosing(run) as events:
        async for event in events:
            for told in _told(event):
                on_event(told)
                if told.kind == "text":
                    last = told.text
    return last


def _told(event: Event) -> list[CoordinatorEvent]:
    """What a person is told of an ADK event."""
    text = "".join(part.text for part in _parts(event) if part.text and not part.thought)
    if event.partial:
        job_id = (event.custom_metadata or {}).get("job_id")
        return [CoordinatorEvent("progress", text.strip(), job_id)] if job_id else []
    told = (
        [CoordinatorEvent("text", text)] if text and event.content and event.content.role == "model" else []
    )
    return told + [CoordinatorEvent("tool", _in_one_line(call)) for call in event.get_function_calls()]


def _in_one_line(call: types.FunctionCall) -> str:
    """A tool call as a person is told of it: the tool, and how its description or first argument begins."""
    arguments = call.args or {}
    texts = (value for value in arguments.values() if isinstance(value, str))
    first = arguments.get("description") or next(texts, "")
    line = " ".join(f"{call.name} {first}".split())
    return line if len(line) <= CALL_CHARACTERS else line[: CALL_CHARACTERS - 1] + "…"


def _parts(event: Event) -> list[types.Part]:
    return (event.content.parts or []) if event.content else []


def _as_failure(error: ModelFailed | JobFailure) -> JobFailure:
    if isinstance(error, JobFailure):
        return error
    return (ModelUnavailable if error.retryable else AgentFailed)(str(error))


def root_id_of(tool_context: ToolContext) -> str:
    """The tree of a session's jobs: the session's id where that is ours and can be a job id, else a hash.

    Elsewhere people choose the ids of their sessions, and two of them may choose the same.
    """
    session = tool_context.session
    if session.user_id == USER_ID and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", session.id):
        return session.id
    return hashlib.sha256(f"{session.user_id}/{session.id}".encode()).hexdigest()[:32]


def _callable_agents(client: JobClient, definition: AgentDefinition) -> list[str]:
    """The agents that a coordinator may call: those that it names, and general-purpose."""
    for name in definition.subagents:
        client.definitions[name]  # raises in words
    return sorted({GENERAL_PURPOSE, *definition.subagents})


def _agent_list(client: JobClient, names: list[str]) -> str:
    lines = [f"- {name}: {client.definitions[name].description}" for name in names]
    return "Values of subagent_type:\n" + "\n".join(lines)
