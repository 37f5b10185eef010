"""A tool made from an async generator method.

It tells how it gets on, at once, before it has its result.

ADK would do that for a generator, but keeps the result twice: in an event of the generator's own
and in the tool's response.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types

from orchestrator.deep_agent.failures import ToolMistake
from orchestrator.deep_agent.tool import (
    arguments_model,
    checked_arguments,
    declaration_of,
    mistake_result,
)

ToolGenerator = Callable[..., AsyncGenerator[Any]]


class ProgressTool(BaseTool):
    """An async generator method as a tool.

    Its Events are shown at once, its other value is the result.
    """

    def __init__(self, method: ToolGenerator) -> None:
        self._method = method
        function = getattr(method, "__func__", method)
        super().__init__(name=function.__name__, description=inspect.getdoc(function) or "")
        self._arguments = arguments_model(function)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return declaration_of(self, self._arguments)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """The generator's result; a mistake in the call has status error."""
        try:
            values = checked_arguments(self.name, self._arguments, args)
        except ToolMistake as mistake:
            return mistake_result(str(mistake))
        work = _Work(self._method(**values, tool_context=tool_context))
        call = tool_context.function_call_id or self.name
        branch = ".".join(filter(None, (tool_context.branch, f"{self.name}@{call}")))
        node = _Progress(name=self.name, events=work.events)
        await tool_context.run_node(node, run_id=f"progress-{call}", override_branch=branch)
        if work.failure is not None:
            raise work.failure
        return work.result


class _Work:
    """A generator, and what came of it."""

    def __init__(self, steps: AsyncGenerator[Any]) -> None:
        self._steps = steps
        self.result: Any = None
        self.failure: Exception | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """The progress. What is raised is kept: ADK would wrap it."""
        try:
            async with aclosing(self._steps) as steps:
                async for step in steps:
                    if isinstance(step, Event):
                        yield step
                    else:
                        self.result = step
        except Exception as error:  # noqa: BLE001 - the tool raises it
            self.failure = error


class _Progress(BaseNode):
    """ADK's way to emit events from within a tool.

    One that has no output leaves nothing in the session.
    """

    rerun_on_resume: bool = True
    events: Callable[[], AsyncGenerator[Event, None]]

    async def _run_impl(self, *, ctx: Any, node_input: Any) -> AsyncGenerator[Event, None]:
        del ctx, node_input
        async with aclosing(self.events()) as events:
            async for event in events:
                yield event
