"""Middleware: one ability of a deep agent, with tools, instructions and hooks.

A middleware overrides the hooks that it needs. `assembly.py` lists an agent's middleware in order.
One hook of all of them is called in that order until one returns a value other than None, so a
middleware that only observes returns None. `after_tool` is always called of all of them: each gets
the result that the one before it returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import TypeAdapter

from .backends.protocol import Backend

T = TypeVar("T")

BackendSource = Callable[[Any], Backend]
"""Returns the agent's files for an ADK context (any object with a `state`)."""


class StateSlot(Generic[T]):
    """A middleware's own value in the session's state, under a name of its own.

    The value is kept with the session and survives a restart. Sub-agents have sessions of their
    own: they begin with the default, and what they set is not seen by their parent.

    Args:
        name: The name, unique among the middleware of an agent.
        kind: The value's type, which pydantic can turn into JSON and back.
        default: Returns the value of a session that has none.
    """

    def __init__(self, name: str, kind: type[T], default: Callable[[], T]) -> None:
        self._key = f"middleware:{name}"
        self._values = TypeAdapter(kind)
        self._default = default

    def get(self, context: ReadonlyContext) -> T:
        """Return the value, of any context of ADK.

        Raises:
            pydantic.ValidationError: The stored value is of another type.
        """
        stored = context.state.get(self._key)
        return self._default() if stored is None else self._values.validate_python(stored)

    def set(self, context: CallbackContext, value: T) -> None:
        """Store a value with the event that the context belongs to."""
        context.state[self._key] = self._values.dump_python(value, mode="json")


class Middleware:
    """One ability of a deep agent; every hook is optional.

    Pass your own to `create_deep_agent(middleware=…)`.
    """

    def tools(self) -> Sequence[BaseTool]:
        """Return the middleware's tools."""
        return ()

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the middleware's text in the system instruction; empty for none.

        It is called before every model call. A text that changes during a run invalidates the
        provider's prompt cache, so a middleware with such a text comes last.

        Args:
            context: ADK's context of the call.
            tools: The names of the agent's built-in tools.
        """
        del context, tools
        return ""

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """Prepare the session before a request's contents are made from it.

        Return the events to append to the session. The model is not called if the invocation was
        ended.
        """
        del context, request
        return ()

    async def before_agent(self, callback_context: CallbackContext) -> None:
        """Prepare for a run; an exception ends it."""

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Change the request in place, or return a reply in the model's place."""

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Observe or replace a reply; a partial one is only displayed."""

    async def on_model_error(
        self, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Return a reply for a model that failed, or None to let the failure end the run."""

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Observe a call, change its arguments in place, or return a result in the tool's place."""

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> dict[str, Any] | None:
        """Observe a result, change it in place, or return another one."""

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """Return a result for a tool that raised, or None to let the exception end the run."""

    async def after_tools(
        self, results: Event, tools: Mapping[str, BaseTool], state: Mapping[str, Any]
    ) -> None:
        """Observe the results of all calls of one reply together, or change them in place.

        It is called once, before the results are stored. A result that comes later, such as that
        of a call which a person had to approve, comes with those that arrive with it.

        Args:
            results: The event with the results. Its `actions.state_delta` takes changes of the
                state.
            tools: The agent's tools by their names.
            state: The session's state before these changes.
        """


Hook = Callable[..., Awaitable[Any]]

_ANY_ARGUMENTS = inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)])
"""The arguments of callbacks: ADK asks for them at each call, and determining them takes longer
than the call."""

_HOOKS = (
    *("before_agent", "before_model", "after_model", "on_model_error"),
    *("before_tool", "on_tool_error"),
)


def callbacks(stack: Sequence[Middleware]) -> dict[str, Any]:
    """Return an agent's callbacks, which call the methods that override a hook."""
    found = {f"{hook}_callback": _joined(_overriding(stack, hook)) for hook in _HOOKS}
    found["after_tool_callback"] = _passed_on(_overriding(stack, "after_tool"))
    more = {f"{hook}_callback": _overriding(stack, hook) for hook in ("before_step", "after_tools")}
    return {**found, **more}


def _overriding(stack: Sequence[Middleware], hook: str) -> list[Hook]:
    default = getattr(Middleware, hook)
    return [getattr(each, hook) for each in stack if getattr(type(each), hook) is not default]


def _joined(hooks: Sequence[Hook]) -> list[Hook]:
    """Return one callback for all; ADK would find out at each call of each what it takes."""

    async def run(**arguments: Any) -> Any:
        for hook in hooks:
            if (result := await hook(**arguments)) is not None:
                return result
        return None

    return _one_callback(run, hooks)


def _passed_on(hooks: Sequence[Hook]) -> list[Hook]:
    """Return one callback for all, each of which gets the result that the one before it made."""

    async def run(*, tool_response: Any, **arguments: Any) -> Any:
        result = tool_response
        for hook in hooks:
            if (changed := await hook(tool_response=result, **arguments)) is not None:
                result = changed
        return None if result is tool_response else result

    return _one_callback(run, hooks)


def _one_callback(run: Hook, hooks: Sequence[Hook]) -> list[Hook]:
    run.__signature__ = _ANY_ARGUMENTS  # type: ignore[attr-defined] # what `inspect` looks for
    return [run] if hooks else []
