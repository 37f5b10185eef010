"""A coordinator in a program of one's own: a deep agent whose tasks become jobs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.tools.tool_context import ToolContext

from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR, AgentDefinition
from orchestrator.coordinator.task_tools import TaskTools
from orchestrator.coordinator.workspace_files import DEFINITION_FOLDER, workspace_files
from orchestrator.deep_agent import (
    Accounts,
    Budget,
    BudgetFactory,
    McpTools,
    create_deep_app,
    price,
    usage_of,
)
from orchestrator.delegation.agents import (
    budget_limits,
    create_agent,
    remote_mcp_server,
)
from orchestrator.delegation.calls import agent_list
from orchestrator.jobs.failures import (
    InvalidJob,
)

APP_NAME = "orchestrator"
"""ADK expects an app's name to be that of its folder."""
USER_ID = "parent"
ABORTED = "INVOCATION_ABORTED"
"""ADK's error code of a run that our budget ended; the budget knows the reason."""
CALL_CHARACTERS = 100
"""A tool call is shown in one line of a terminal."""


def create_coordinator(
    client: JobClient,
    *,
    workspace: Path,
    agent: str = COORDINATOR,
    model: str | None = None,
    default_model: str = "gemini-2.5-flash",
) -> LlmAgent:
    """Return an ADK agent that delegates to jobs; it works with any ADK Runner.

    Args:
        client: Submits the jobs.
        workspace: The folder that jobs start from and whose files their changes are merged into.
        agent: The name of the coordinator's definition.
        model: Overrides the definition's model.
        default_model: The model if neither `model` nor the definition names one.

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
