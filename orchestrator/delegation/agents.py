"""An agent and its budgets, made from a definition and limits, for coordinators and for jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

from ..configuration.agent_definitions import AgentDefinition, McpServerDefinition
from ..configuration.definition_files import resolved_paths
from ..deep_agent import (
    Account,
    BudgetLimits,
    LoopPolicy,
    McpServer,
    McpServerFailed,
    ModelFailed,
    ModelNotOpen,
    ModelUsage,
    SummarizationConfig,
    create_deep_agent,
    resolve_model,
)
from ..jobs.failures import (
    AgentFailed,
    InvalidJob,
    JobFailure,
    McpServerUnavailable,
    ModelUnavailable,
    model_wait_over,
)
from ..jobs.result import Usage
from ..jobs.spec import Limits, TreeBounds

NO_TOOL = "\nThe tool {name} is not available here: {why}.\n"
"""Stands in the instruction of an agent that is used without a tool which its definition names."""


@dataclass(frozen=True)
class NamedTools:
    """The tools of an agent that its definition names, besides the built-in ones."""

    tools: tuple[BaseTool, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The names of those that the agent does without, with the reasons."""

    def instruction(self) -> str:
        """Return what the agent is told of those that it does without."""
        return "".join(NO_TOOL.format(name=name, why=why) for name, why in self.left_out.items())


NO_TOOLS = NamedTools()
"""Those of an agent whose definition names built-in tools only."""


def create_agent(
    definition: AgentDefinition,
    model: str,
    tools: Sequence[BaseTool | BaseToolset],
    *,
    named: NamedTools = NO_TOOLS,
    added_instruction: str,
    files_folder: str,
    max_output_tokens: int | None = None,
    **options: Any,
) -> LlmAgent:
    """Return the deep agent that a definition describes.

    Args:
        definition: The agent's prompt, tools, skills, memory and policies.
        model: A model's name, as `resolve_model` takes it.
        tools: Tools in addition to those that it names, such as `task` and those of MCP servers.
        named: Of those that it names, the ones that are not built in.
        added_instruction: Text after the definition's instruction.
        files_folder: The folder in which the agent finds its definition files.
        max_output_tokens: The most that a reply may have, if the definition sets no limit.
        options: Further arguments of `create_deep_agent`.

    Raises:
        InvalidJob: The model, a tool's name or the schema cannot be used as configured.
    """
    defined: dict[str, Any] = {
        "built_in_tools": definition.built_in_tools,
        "output_schema": definition.output_schema,
        "name": definition.name,
        "description": definition.description,
        "skills": resolved_paths(definition.skills, files_folder),
        "memory": resolved_paths(definition.memory, files_folder),
        "loops": LoopPolicy(**definition.loops.settings()),
        "summarization": SummarizationConfig(**definition.summarization.settings()),
        "interrupt_on": {
            name: policy
            for name, policy in definition.interrupt_on.items()
            if name not in named.left_out
        },
        "instruction": definition.instruction + added_instruction + named.instruction(),
        "delegation": None,  # a job delegates to jobs, by tools that it is given
    }
    try:
        resolved = resolve_model(
            model,
            agent_name=definition.name,
            rate_limiter=options.get("rate_limiter"),
            max_output_tokens=definition.max_output_tokens or max_output_tokens,
        )
        if definition.summarization.model is not None:
            resolve_model(definition.summarization.model, agent_name=definition.name)
        return create_deep_agent(resolved, [*tools, *named.tools], **{**defined, **options})
    except ValueError as error:
        raise InvalidJob(str(error)) from error


def remote_mcp_server(server: McpServerDefinition) -> McpServer:
    """Return an MCP server that is reached by its URL.

    Its headers may use variables of this process's environment.

    Raises:
        InvalidJob: A header needs a variable that is not set.
    """
    try:
        return McpServer(
            name=server.name,
            url=server.url,
            transport=server.transport or "http",
            headers=server.headers,
            tools=server.tools,
            timeout_seconds=server.timeout_seconds,
        ).with_environment(os.environ)
    except ValueError as error:
        raise InvalidJob(str(error)) from error


def budget_limits(limits: Limits) -> BudgetLimits:
    """Return the budgets among a job's limits; its time is not one of them."""
    return BudgetLimits(
        max_model_calls=limits.max_model_calls,
        max_tokens=limits.max_tokens,
        max_cost_usd=limits.max_cost_usd,
        max_tool_calls=limits.max_tool_calls,
    )


def tree_account(bounds: TreeBounds) -> Account:
    """Return the account that all jobs of a tree share, without what they have used."""
    limits = BudgetLimits(
        max_model_calls=bounds.max_tree_model_calls,
        max_tokens=bounds.max_tree_tokens,
        max_cost_usd=bounds.max_tree_cost_usd,
    )
    return Account(limits, ModelUsage(), "tree_")


def model_usage(usage: Usage) -> ModelUsage:
    """Return a job's usage in the form that budgets take."""
    return ModelUsage(**usage.model_dump())


def job_failure(error: ModelFailed | McpServerFailed) -> JobFailure:
    """Return the job failure for a failure of the job's agent."""
    if isinstance(error, McpServerFailed):
        return (McpServerUnavailable if error.retryable else InvalidJob)(str(error))
    if isinstance(error, ModelNotOpen):
        return model_wait_over(error.closed[0].sentence)
    return (ModelUnavailable if error.retryable else AgentFailed)(str(error))
