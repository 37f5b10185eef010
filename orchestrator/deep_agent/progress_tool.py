"""Tools made from async generator methods, which report progress before they return a result.

ADK can do that for a generator, but it stores the result twice: in an event of the generator's own
and in the tool's response.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from google.adk.events import Event
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tool import CheckedTool, error_result


class ProgressTool(CheckedTool):
    """A tool made from an async generator method.

    The Events that the method yields are emitted at once; the last other value is the result.
    """

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Run the method and return its result, or an error result for wrong arguments.

        Raises:
            Exception: Whatever the method raises.
        """
        try:
            values = self._checked(args)
        except ToolMistake as mistake:
            return error_result(str(mistake))
        work = _Work(self._method(**values, tool_context=tool_context))
        await emit_events(work.events, tool_context, self.name)
        if work.failure is not None:
            raise work.failure
        return work.result


class _Work:
    """A generator, its result, and the exception that it raised."""

    def __init__(self, steps: AsyncGenerator[Any]) -> None:
        self._steps = steps
        self.result: Any = None
        self.failure: Exception | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the progress events. An exception is stored, because ADK would wrap it."""
        try:
            async with aclosing(self._steps) as steps:
                async for step in steps:
                    if isinstance(step, Event):
                        yield step
                    else:
                        self.result = step
        except Exception as error:  # noqa: BLE001 - the tool raises it
            self.failure = error


async def emit_events(
    events: Callable[[], AsyncGenerator[Event, None]], tool_context: ToolContext, tool: str
) -> None:
    """Emit events from within a tool's call, on a branch of its own.

    Args:
        events: Returns the events; called once.
        tool_context: The context of the call.
        tool: The tool's name.
    """
    call = tool_context.function_call_id or tool
    branch = ".".join(filter(None, (tool_context.branch, f"{tool}@{call}")))
    node = _Progress(name=tool, events=events)
    await tool_context.run_node(node, run_id=f"progress-{call}", override_branch=branch)


class _Progress(BaseNode):
    """Emits events from within a tool, as ADK allows a node to do.

    A node without output stores nothing in the session.
    """

    rerun_on_resume: bool = True
    events: Callable[[], AsyncGenerator[Event, None]]

    async def _run_impl(self, *, ctx: Any, node_input: Any) -> AsyncGenerator[Event, None]:
        del node_input
        async with aclosing(self.events()) as events:
            async for event in events:
                ctx.event_author = event.author  # or ADK names the agent that made the call
                yield event
