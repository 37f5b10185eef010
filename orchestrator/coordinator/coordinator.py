"""The coordinator: a deep agent with task tools."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.approvals import ApprovalAnswer
from orchestrator.client import JobClient
from orchestrator.configuration import definition_files
from orchestrator.configuration.agent_definitions import COORDINATOR, AgentDefinition
from orchestrator.coordinator.conflicts import Conflicts, OpenConflict
from orchestrator.coordinator.delivery import Delivery
from orchestrator.coordinator.task_tools import TaskTools
from orchestrator.deep_agent import (
    Account,
    Accounts,
    Backend,
    Budget,
    BudgetFactory,
    BudgetLimits,
    DirectoryBackend,
    McpServerFailed,
    McpTools,
    ModelFailed,
    ModelUsage,
    PendingApproval,
    ReadOnlyBackend,
    StateBackend,
    answers_message,
    composite,
    confirmation_calls,
    create_deep_app,
    is_reply,
    pending_approvals,
    preload_client,
    price,
    state_with,
    text_mode,
    text_of,
    usage_of,
)
from orchestrator.delegation.agents import (
    budget_limits,
    create_agent,
    job_failure,
    remote_mcp_server,
    tree_budget_limits,
)
from orchestrator.delegation.calls import agent_list
from orchestrator.jobs.failures import (
    AgentFailed,
    DeadlineExceeded,
    InvalidJob,
    JobFailure,
    LimitReached,
)
from orchestrator.jobs.result import JobError
from orchestrator.jobs.spec import new_job_id
from orchestrator.jobs.store.outage import through_outage
from orchestrator.shortening import one_line

APP_NAME = "orchestrator"
"""ADK wants an app to be named like the folder that it is found in."""
USER_ID = "parent"
DEFINITION_FOLDER = f"/{definition_files.FOLDER}"
"""Where a coordinator finds what its definition brings along."""
ABORTED = "INVOCATION_ABORTED"
"""ADK's error code of a run that was cut: by our budget, which gives the reason."""
CALL_CHARACTERS = 100
"""A tool call is told in one line of a terminal."""


@dataclass(frozen=True)
class CoordinatorEvent:
    """Something that happened in a coordinator's run, for a person to read."""

    kind: Literal["text", "partial", "tool", "progress", "error"]
    """`partial` is a piece of the text that comes next, where it is streamed."""
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
    conflicts: tuple[OpenConflict, ...] = ()
    """Changes of jobs that are not in the workspace."""


Decide = Callable[[PendingApproval], Awaitable[ApprovalAnswer]]
"""Asks a person about a call."""

NOBODY_TO_ASK = "Nobody can be asked: this run has no terminal, and was started without --yes."


async def reject_unasked(_pending: PendingApproval) -> ApprovalAnswer:
    """The answer where nobody can be asked."""
    return ApprovalAnswer(decision="reject", message=NOBODY_TO_ASK)


def create_coordinator(
    client: JobClient,
    *,
    workspace: Path,
    agent: str = COORDINATOR,
    model: str | None = None,
    default_model: str = "gemini-2.5-flash",
    on_delivery: Callable[[Delivery], None] = lambda _: None,
) -> LlmAgent:
    """An ADK agent that delegates to jobs on `workspace`; works with any ADK Runner.

    `on_delivery` is told of each job that has ended, with what became of its changes.

    Raises:
        UnknownAgent: there is no definition of that name.
        InvalidJob: its model cannot be used as configured.
    """
    definition = client.definitions[agent]
    callable_agents = client.definitions.callable_by(definition)
    task_tools = TaskTools(
        client,
        workspace,
        callable_agents,
        root_id_of,
        interrupt_on=definition.interrupt_on,
        delegation=definition.delegation,
        on_delivery=on_delivery,
    )
    return create_agent(
        definition,
        model or definition.model or default_model,
        [*task_tools.tools(), *_mcp_tools(definition)],
        added_instruction=f"\n\n{agent_list(callable_agents)}",
        files_folder=DEFINITION_FOLDER,
        backend=_files(definition, workspace),
        rate_limiter=client.rate_limiter,
    )


def create_coordinator_app(
    coordinator: LlmAgent, budget: Budget | BudgetFactory | None = None
) -> App:
    """The ADK app of a coordinator, with the harness's plugins.

    See `budgets_of` for an app of many runs.
    """
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
    decide: Decide = reject_unasked,
    stream_text: bool = False,
) -> RunOutcome:
    """Run a coordinator on a goal to its end.

    Its jobs' changes are merged into the workspace as they come.

    `decide` is asked about each call of the coordinator's own that needs an approval.
    `stream_text` tells the coordinator's words as they come, too.
    Cancelling it cancels the jobs that it waits for.
    """
    definition = client.definitions[agent]
    root_id = root_id or new_job_id()
    budget = budgets_of(definition, _TreeAccount(client, root_id).read)([])
    conflicts = Conflicts(workspace)
    await preload_client(model or definition.model or default_model)
    coordinator = create_coordinator(
        client,
        workspace=workspace,
        agent=agent,
        model=model,
        default_model=default_model,
        on_delivery=conflicts.note,
    )
    runner = InMemoryRunner(app=create_coordinator_app(coordinator, budget))
    await runner.session_service.create_session(
        app_name=APP_NAME, user_id=USER_ID, session_id=root_id
    )
    config = RunConfig(streaming_mode=text_mode(streamed=stream_text))
    try:
        text = await _to_the_end(runner, root_id, goal, on_event, decide=decide, run_config=config)
    except (ModelFailed, McpServerFailed, JobFailure) as error:
        failure = error if isinstance(error, JobFailure) else job_failure(error)
        on_event(CoordinatorEvent("error", str(failure)))
        return RunOutcome(False, "", root_id, failure.as_error(), conflicts.left())
    finally:
        await runner.close()
    failed = _limit_failure(budget)
    if not text and failed is None:
        failed = AgentFailed("The coordinator ended without an answer.")
    reason = failed.as_error() if failed else None
    return RunOutcome(failed is None, text, root_id, reason, conflicts.left())


class _TreeAccount:
    """What a coordinator's jobs may consume together: with it used up, the coordinator ends too."""

    def __init__(self, client: JobClient, root_id: str) -> None:
        self._client = client
        self._root_id = root_id
        self._limits = tree_budget_limits(client.tree_bounds)

    async def read(self) -> Sequence[Account]:
        """As it is now."""
        if self._limits == BudgetLimits():
            return []
        usage = await through_outage(partial(self._client.tree_usage, self._root_id))
        return [Account(self._limits, ModelUsage(**usage.model_dump()), "tree_")]


def budgets_of(definition: AgentDefinition, shared: Accounts | None = None) -> BudgetFactory:
    """Opens the accounts of a coordinator's runs.

    A definition's limits hold for each as for a job.
    """
    limits = definition.job_limits()
    of_a_run = replace(budget_limits(limits), max_seconds=limits.timeout_seconds)
    return lambda events: Budget(of_a_run, used=usage_of(events, price), price=price, shared=shared)


def _limit_failure(budget: Budget) -> JobFailure | None:
    if budget.reached is None:
        return None
    if budget.is_out_of_time:
        return DeadlineExceeded(
            f"The coordinator's {budget.limits.max_seconds:g} seconds are used up; limits.timeout_seconds in "
            "its definition gives more."
        )
    return LimitReached(budget.reached)


async def _to_the_end(
    runner: InMemoryRunner,
    session_id: str,
    goal: str,
    on_event: Callable[[CoordinatorEvent], None],
    *,
    decide: Decide,
    run_config: RunConfig,
) -> str:
    """Run until nothing waits for a person any more; the last text."""
    message = types.Content(role="user", parts=[types.Part(text=goal)])
    while True:
        text = await _drain(runner, session_id, message, on_event, run_config)
        session = await runner.session_service.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session_id
        )
        waiting = pending_approvals(session.events if session else [])
        if not waiting:
            return text
        message = answers_message([(pending, await decide(pending)) for pending in waiting])


async def _drain(
    runner: InMemoryRunner,
    session_id: str,
    message: types.Content,
    on_event: Callable[[CoordinatorEvent], None],
    run_config: RunConfig,
) -> str:
    """Run as far as it goes and pass on what happens; the last text.

    Raises:
        AgentFailed: the run ended with an error instead.
    """
    last, error = "", None
    run = runner.run_async(
        user_id=USER_ID, session_id=session_id, new_message=message, run_config=run_config
    )
    async with contextlib.aclosing(run) as events:
        async for event in events:
            for told in _told(event):
                on_event(told)
                if told.kind == "text":
                    last, error = told.text, None
            if event.error_code and event.error_code != ABORTED:
                error = event.error_message or event.error_code
    if error is not None:
        raise AgentFailed(f"The coordinator ended without an answer: {error}")
    return last


def _told(event: Event) -> list[CoordinatorEvent]:
    """What a person is told of an ADK event."""
    text = text_of(event)
    if event.partial:
        job_id = (event.custom_metadata or {}).get("job_id")
        if job_id:
            return [CoordinatorEvent("progress", text.strip(), job_id)]
        return [] if event.custom_metadata or not text else [CoordinatorEvent("partial", text)]
    told = [CoordinatorEvent("text", text)] if text and is_reply(event) else []
    calls = [] if confirmation_calls(event) else event.get_function_calls()
    return told + [CoordinatorEvent("tool", _in_one_line(call)) for call in calls]


def _in_one_line(call: types.FunctionCall) -> str:
    """A tool call as a person is told of it.

    The tool, and how its description or first argument begins.
    """
    arguments = call.args or {}
    texts = (value for value in arguments.values() if isinstance(value, str))
    first = arguments.get("description") or next(texts, "")
    return one_line(f"{call.name} {first}", CALL_CHARACTERS)


def root_id_of(tool_context: ToolContext) -> str:
    """The tree of a session's jobs.

    The session's id where that is ours and can be a job id, else a hash.

    Elsewhere people choose the ids of their sessions, and two of them may choose the same.
    """
    session = tool_context.session
    if session.user_id == USER_ID and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", session.id):
        return session.id
    return hashlib.sha256(f"{session.user_id}/{session.id}".encode()).hexdigest()[:32]


def _files(definition: AgentDefinition, workspace: Path) -> Backend:
    """The workspace and, for reading, the memory and the skills beside the definition."""
    files = DirectoryBackend(workspace, mount="/workspace")
    own = definition.files
    if not own:
        return files
    brought = StateBackend(state_with({f"/{file.path}": file.data for file in own}))
    return composite(files, {DEFINITION_FOLDER: ReadOnlyBackend(brought)})


def _mcp_tools(definition: AgentDefinition) -> list[McpTools]:
    """The tools of its MCP servers; only a job has a sandbox to run one in."""
    for server in definition.mcp_servers:
        if server.command:
            raise InvalidJob(
                f"mcp server {server.name} has a command, which runs in a job's sandbox only; "
                "the agent of a coordinator takes servers with a url."
            )
    servers = [remote_mcp_server(server) for server in definition.mcp_servers]
    return [McpTools(servers)] if servers else []
