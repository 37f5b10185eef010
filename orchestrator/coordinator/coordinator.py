"""The coordinator: a deep agent with task tools, and its run on a goal."""

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
from orchestrator.configuration.agent_definitions import COORDINATOR, AgentDefinition
from orchestrator.coordinator.conflicts import Conflicts, HeldBackChange, OpenConflict
from orchestrator.coordinator.delivery import Delivery
from orchestrator.coordinator.task_tools import TaskTools
from orchestrator.coordinator.workspace_files import DEFINITION_FOLDER, workspace_files
from orchestrator.deep_agent import (
    Account,
    Accounts,
    Budget,
    BudgetFactory,
    BudgetLimits,
    McpServerFailed,
    McpTools,
    ModelFailed,
    PendingApproval,
    answers_message,
    confirmation_calls,
    create_deep_app,
    is_reply,
    pending_approvals,
    preload_client,
    price,
    text_mode,
    text_of,
    usage_of,
)
from orchestrator.delegation.agents import (
    budget_limits,
    create_agent,
    job_failure,
    model_usage,
    remote_mcp_server,
    tree_account,
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
"""ADK expects an app's name to be that of its folder."""
USER_ID = "parent"
ABORTED = "INVOCATION_ABORTED"
"""ADK's error code of a run that our budget ended; the budget knows the reason."""
CALL_CHARACTERS = 100
"""A tool call is shown in one line of a terminal."""


@dataclass(frozen=True)
class CoordinatorEvent:
    """An event of a coordinator's run, for a person to read."""

    kind: Literal["text", "partial", "tool", "progress", "error"]
    """`partial` is a piece of the next `text`, if text is streamed."""
    text: str
    job_id: str | None = None


@dataclass(frozen=True)
class RunOutcome:
    """How a coordinator's run ended."""

    success: bool
    text: str
    """The coordinator's last message."""
    root_id: str
    """The id of the tree of its jobs."""
    error: JobError | None = None
    conflicts: tuple[OpenConflict, ...] = ()
    """Changes of jobs that are not in the workspace."""
    held_back: tuple[HeldBackChange, ...] = ()
    """Changes that wait for a person's word, because they become code on the host."""


Decide = Callable[[PendingApproval], Awaitable[ApprovalAnswer]]
"""Returns a person's answer to a request for approval."""

NOBODY_TO_ASK = "Nobody can be asked: this run has no terminal, and was started without --yes."


async def reject_unasked(_pending: PendingApproval) -> ApprovalAnswer:
    """Return a rejection, for runs in which no person can be asked."""
    return ApprovalAnswer(decision="reject", message=NOBODY_TO_ASK)


def create_coordinator(
    client: JobClient,
    *,
    workspace: Path,
    agent: str = COORDINATOR,
    model: str | None = None,
    default_model: str = "gemini-2.5-flash",
    on_delivery: Callable[[Delivery], None] = lambda _: None,
    include_executable_config: bool = False,
) -> LlmAgent:
    """Return an ADK agent that delegates to jobs; it works with any ADK Runner.

    Args:
        client: Submits the jobs.
        workspace: The folder that jobs start from and whose files their changes are merged into.
        agent: The name of the coordinator's definition.
        model: Overrides the definition's model.
        default_model: The model if neither `model` nor the definition names one.
        on_delivery: Is called with the delivery of each job that has ended.
        include_executable_config: Whether a person has said that jobs' changes which become code on
            the host are merged too. The agent's own file tools never write such files.

    Raises:
        UnknownAgent: No definition has that name.
        InvalidJob: The definition cannot be used: its model, a tool's name or an MCP server.
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
        include_executable_config=include_executable_config,
    )
    return create_agent(
        definition,
        model or definition.model or default_model,
        [*task_tools.tools(), *_mcp_tools(definition)],
        added_instruction=f"\n\n{agent_list(callable_agents)}",
        files_folder=DEFINITION_FOLDER,
        backend=workspace_files(definition, client.workspace(workspace)),
        rate_limiter=client.rate_limiter,
    )


def create_coordinator_app(
    coordinator: LlmAgent, budget: Budget | BudgetFactory | None = None
) -> App:
    """Return the ADK app of a coordinator, with the plugins of a deep agent.

    Args:
        coordinator: The agent, as of `create_coordinator`.
        budget: The budget of one run, or a factory (`budgets_of`) for an app of many runs.
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
    include_executable_config: bool = False,
) -> RunOutcome:
    """Run a coordinator on a goal to its end, and merge its jobs' changes as they end.

    Cancelling the run cancels the jobs that it waits for. A failure of the run is in the outcome.

    Args:
        client: Submits the jobs.
        goal: What the coordinator has to achieve.
        workspace: The folder that jobs start from and whose files their changes are merged into.
        agent: The name of the coordinator's definition.
        model: Overrides the definition's model.
        default_model: The model if neither `model` nor the definition names one.
        root_id: The id of the job tree; a new one if None.
        on_event: Is called with each event.
        decide: Is called with each of the coordinator's own calls that needs an approval.
        stream_text: Whether `partial` events are reported as well.
        include_executable_config: As of `create_coordinator`.

    Raises:
        UnknownAgent: No definition has that name.
        InvalidJob: The definition cannot be used: its model, a tool's name or an MCP server.
    """
    definition = client.definitions[agent]
    root_id = root_id or new_job_id()
    budget = budgets_of(definition, partial(_tree_accounts, client, root_id))([])
    conflicts = Conflicts(workspace)
    await preload_client(model or definition.model or default_model)
    coordinator = create_coordinator(
        client,
        workspace=workspace,
        agent=agent,
        model=model,
        default_model=default_model,
        on_delivery=conflicts.add,
        include_executable_config=include_executable_config,
    )
    runner = InMemoryRunner(app=create_coordinator_app(coordinator, budget))
    await runner.session_service.create_session(
        app_name=APP_NAME, user_id=USER_ID, session_id=root_id
    )
    config = RunConfig(streaming_mode=text_mode(streamed=stream_text))
    try:
        text = await _run_to_end(runner, root_id, goal, on_event, decide=decide, run_config=config)
    except (ModelFailed, McpServerFailed, JobFailure) as error:
        failure = error if isinstance(error, JobFailure) else job_failure(error)
        on_event(CoordinatorEvent("error", str(failure)))
        return _outcome(root_id, "", failure, conflicts)
    finally:
        await runner.close()
    failed = _limit_failure(budget)
    if not text and failed is None:
        failed = AgentFailed("The coordinator ended without an answer.")
    return _outcome(root_id, text, failed, conflicts)


def _outcome(
    root_id: str, text: str, failure: JobFailure | None, conflicts: Conflicts
) -> RunOutcome:
    error = failure.as_error() if failure else None
    left = conflicts.open_conflicts(), conflicts.held_back()
    return RunOutcome(failure is None, text, root_id, error, *left)


async def _tree_accounts(client: JobClient, root_id: str) -> Sequence[Account]:
    """Return the account that a coordinator's jobs share; the coordinator ends when it is used up.

    Raises:
        LedgerUnavailable: Redis does not answer for a long time.
    """
    account = tree_account(client.tree_bounds)
    if account.limits == BudgetLimits():
        return []
    usage = await through_outage(partial(client.tree_usage, root_id))
    return [replace(account, used=model_usage(usage))]


def budgets_of(definition: AgentDefinition, shared: Accounts | None = None) -> BudgetFactory:
    """Return a factory that makes the budget of a run from the run's earlier events.

    Args:
        definition: The coordinator's definition; its limits hold for each run as for a job.
        shared: Reads the accounts that the runs share with jobs.
    """
    limits = definition.job_limits()
    run_limits = replace(budget_limits(limits), max_seconds=limits.timeout_seconds)
    return lambda events: Budget(
        run_limits, used=usage_of(events, price), price=price, shared=shared
    )


def _limit_failure(budget: Budget) -> JobFailure | None:
    if budget.reached is None:
        return None
    if budget.is_out_of_time:
        return DeadlineExceeded(
            f"The coordinator's {budget.limits.max_seconds:g} seconds are used up; "
            "limits.timeout_seconds in its definition gives more."
        )
    return LimitReached(budget.reached)


async def _run_to_end(
    runner: InMemoryRunner,
    session_id: str,
    goal: str,
    on_event: Callable[[CoordinatorEvent], None],
    *,
    decide: Decide,
    run_config: RunConfig,
) -> str:
    """Run until no request for approval is left, and return the last text.

    Raises:
        AgentFailed: The run ended with an error.
    """
    message = types.Content(role="user", parts=[types.Part(text=goal)])
    while True:
        text = await _run_until_pause(runner, session_id, message, on_event, run_config)
        session = await runner.session_service.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session_id
        )
        waiting = pending_approvals(session.events if session else [])
        if not waiting:
            return text
        message = answers_message([(pending, await decide(pending)) for pending in waiting])


async def _run_until_pause(
    runner: InMemoryRunner,
    session_id: str,
    message: types.Content,
    on_event: Callable[[CoordinatorEvent], None],
    run_config: RunConfig,
) -> str:
    """Run until the agent ends or pauses, report its events, and return the last text.

    Raises:
        AgentFailed: The run ended with an error.
    """
    last, error = "", None
    run = runner.run_async(
        user_id=USER_ID, session_id=session_id, new_message=message, run_config=run_config
    )
    async with contextlib.aclosing(run) as events:
        async for event in events:
            for visible in _visible_events(event):
                on_event(visible)
                if visible.kind == "text":
                    last, error = visible.text, None
            if event.error_code and event.error_code != ABORTED:
                error = event.error_message or event.error_code
    if error is not None:
        raise AgentFailed(f"The coordinator ended without an answer: {error}")
    return last


def _visible_events(event: Event) -> list[CoordinatorEvent]:
    """Return the events for a person that an ADK event contains."""
    text = text_of(event)
    if event.partial:
        job_id = (event.custom_metadata or {}).get("job_id")
        if job_id:
            return [CoordinatorEvent("progress", text.strip(), job_id)]
        return [] if event.custom_metadata or not text else [CoordinatorEvent("partial", text)]
    replies = [CoordinatorEvent("text", text)] if text and is_reply(event) else []
    calls = [] if confirmation_calls(event) else event.get_function_calls()
    return replies + [CoordinatorEvent("tool", _call_line(call)) for call in calls]


def _call_line(call: types.FunctionCall) -> str:
    """Return a tool call in one line: the tool and the start of its description or first text."""
    arguments = call.args or {}
    texts = (value for value in arguments.values() if isinstance(value, str))
    first = arguments.get("description") or next(texts, "")
    return one_line(f"{call.name} {first}", CALL_CHARACTERS)


def root_id_of(tool_context: ToolContext) -> str:
    """Return the id of the tree of a session's jobs.

    For a session of `run_goal` it is the session's id. For any other it is a hash of the user's and
    the session's ids, because two users may choose the same session id.
    """
    session = tool_context.session
    if session.user_id == USER_ID and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", session.id):
        return session.id
    return hashlib.sha256(f"{session.user_id}/{session.id}".encode()).hexdigest()[:32]


def _mcp_tools(definition: AgentDefinition) -> list[McpTools]:
    """Return the tools of the definition's MCP servers.

    Raises:
        InvalidJob: A server has a command, or a header needs a variable that is not set.
    """
    for server in definition.mcp_servers:
        if server.command:
            raise InvalidJob(
                f"mcp server {server.name} has a command, which runs in a job's sandbox only; "
                "a coordinator can use only servers with a url."
            )
    servers = [remote_mcp_server(server) for server in definition.mcp_servers]
    return [McpTools(servers)] if servers else []
