"""The factory of deep agents: ADK agents with file tools, a shell, a plan and instructions."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec

from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.apps import App
from google.adk.events import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_toolset import BaseToolset

from .adk_internals import DeepLlmAgent
from .assembly import Assembly
from .budget import Budget, BudgetFactory, BudgetPlugin
from .delegation.child import resumable_app
from .mcp.tools import McpTools

Arguments = ParamSpec("Arguments")


def _created(assembly: Callable[Arguments, Assembly]) -> Callable[Arguments, LlmAgent]:
    signature = inspect.signature(assembly)

    @wraps(assembly, assigned=("__doc__",), updated=())
    def create_deep_agent(*args: Arguments.args, **kwargs: Arguments.kwargs) -> LlmAgent:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"create_deep_agent() {error}") from None
        return assembly(*args, **kwargs).agent()

    shown = signature.replace(return_annotation="LlmAgent")
    create_deep_agent.__signature__ = shown  # type: ignore[attr-defined] # for help()
    return create_deep_agent


create_deep_agent = _created(Assembly)
"""Returns an agent; its arguments are those of `Assembly`."""

Cleanup = Callable[[], Awaitable[None]]
"""Closes what an agent has opened."""


def _connected(
    create: Callable[Arguments, LlmAgent],
) -> Callable[Arguments, Awaitable[tuple[LlmAgent, Cleanup | None]]]:
    async def create_connected(
        *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> tuple[LlmAgent, Cleanup | None]:
        agent = await asyncio.to_thread(create, *args, **kwargs)
        toolsets = [tool for tool in agent.tools if isinstance(tool, BaseToolset)]

        async def cleanup() -> None:
            await asyncio.gather(*(toolset.close() for toolset in toolsets))

        try:
            for toolset in toolsets:
                if isinstance(toolset, McpTools):
                    await toolset.get_tools()
        except BaseException:
            await cleanup()
            raise
        return agent, cleanup if toolsets else None

    return create_connected


create_deep_agent_async = _connected(create_deep_agent)
"""Returns an agent like `create_deep_agent`, after its MCP servers are connected.

The second value closes them; it is None for an agent with nothing to close. A server that does not
start is a McpServerFailed.
"""


def create_deep_app(
    agent: LlmAgent,
    *,
    name: str = "fanout",
    plugins: Sequence[BasePlugin] = (),
    budget: Budget | BudgetFactory | None = None,
) -> App:
    """Return the agent as a resumable ADK app.

    Args:
        agent: The agent.
        name: The app's name.
        plugins: They come before the app's own, so a journal among them sees everything.
        budget: One budget for all runs of the app, or a factory of one for each run.
    """
    budgets = [BudgetPlugin(budget)] if budget is not None else []
    return resumable_app(name, agent, plugins=[*plugins, *budgets], context_cache_config=_caching())


async def settle_results(event: Event, app: App, state: Mapping[str, Any]) -> None:
    """Bound results that are appended to a session between two runs, as those of a run are.

    Args:
        event: The event with the results, which is changed.
        app: The app whose agent gets them.
        state: The session's state before the event.
    """
    if isinstance(app.root_agent, DeepLlmAgent):
        await app.root_agent.settle_results(event, state)


@cache
def _caching() -> ContextCacheConfig:
    """Return what enables caching, and only that: ResilientModel knows the limits of each model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")
        return ContextCacheConfig()
