"""Tools made from methods, whose arguments are checked before they run.

ADK's FunctionTool builds a model class per closure (2.6 ms each, on the event loop) and keeps a
thousand of them, with everything that they hold, in a cache. Here the declaration belongs to the
method in its class: built once, holding no sandbox.

A tool made from an async generator method reports progress before it returns a result. ADK can do
that for a generator, but it stores the result twice: in an event of the generator's own and in the
tool's response.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import cache, lru_cache
from typing import Any, TypeVar, get_type_hints

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from .failures import ToolMistake

Method = TypeVar("Method", bound=Callable[..., Any])

INJECTED = ("self", "tool_context")
"""Parameters that are not declared to the model."""

MAX_DECLARATIONS = 256
"""Declarations that are kept: those of twenty definitions, whose descriptions differ."""


class CheckedTool(BaseTool):
    """A tool with the name, the description and the arguments of a method.

    Args:
        method: A method with a `tool_context` parameter.
        name: The tool's name; that of the method if left out.
        description: The tool's description; the method's docstring if left out.
        arguments: The model of its arguments, if the method's signature does not have them.
    """

    delegates_to_one = False
    """Whether it represents one sub-agent."""
    levels = 0
    """Levels of sub-agents in this process below the agent that has it."""

    def __init__(
        self,
        method: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        arguments: type[BaseModel] | None = None,
    ) -> None:
        self._method = method
        function = getattr(method, "__func__", method)
        super().__init__(
            name=name or function.__name__, description=description or _description(function)
        )
        self._arguments = arguments or _arguments_model(function)

    def check_model(self, model: BaseLlm) -> None:
        """Check that an agent's model can do what the tool asks of it.

        Raises:
            ModelNotConfigured: It cannot.
        """

    def is_shown(self, context: ReadonlyContext) -> bool:
        """Return whether the model is shown the tool in its next request.

        Args:
            context: ADK's context of the request.
        """
        del context
        return True

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        """Declare the tool to the model if it is shown."""
        if self.is_shown(tool_context):
            await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)

    def _get_declaration(self) -> types.FunctionDeclaration:
        # A copy, because ADK renames the declarations of some toolsets in place.
        return _declaration(self.name, self.description, self._arguments).model_copy()

    def _checked(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the model gave, as the method takes them.

        Raises:
            ToolMistake: An argument is missing, unknown or of the wrong type.
        """
        fields = self._arguments.model_fields
        try:
            checked = self._arguments.model_validate(_meant(args, self._arguments))
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
                for fault in error.errors(
                    include_url=False, include_input=False, include_context=False
                )
            ]
            raise ToolMistake(
                f"{self.name} was called with wrong arguments: {'; '.join(faults)}. "
                f"It takes: {', '.join(fields)}."
            ) from None
        return {
            field: getattr(checked, field) for field in fields if field in checked.model_fields_set
        }


class MethodTool(CheckedTool):
    """A tool made from an async method; its result is the method's."""

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Call the method; a `ToolMistake` becomes an error result."""
        try:
            values = self._checked(args)
            result: dict[str, Any] = await self._method(**values, tool_context=tool_context)
        except ToolMistake as mistake:
            return error_result(str(mistake))
        return result


def polling(method: Method) -> Method:
    """Mark a tool's method as one that is meant to be called repeatedly with the same arguments."""
    method.is_polling = True  # type: ignore[attr-defined] # a mark on the function
    return method


def is_polling(tool: BaseTool) -> bool:
    """Return whether a tool's method is marked with `polling`."""
    return hasattr(getattr(tool, "_method", None), "is_polling")


def tabular(method: Method) -> Method:
    """Mark a tool's method whose result has lists of records, which the model gets as TOON."""
    method.is_tabular = True  # type: ignore[attr-defined] # a mark on the function
    return method


def is_tabular(tool: BaseTool) -> bool:
    """Return whether a tool's method is marked with `tabular`."""
    return hasattr(getattr(tool, "_method", None), "is_tabular")


def about_tasks(method: Method) -> Method:
    """Mark a tool's method whose results are about tasks: those of one reply are bounded together.

    See `delegation/bounded_results.py`.
    """
    method.is_about_tasks = True  # type: ignore[attr-defined] # a mark on the function
    return method


def is_about_tasks(tool: BaseTool | None) -> bool:
    """Return whether a tool's method, or that of which it is a part, is marked so."""
    method = getattr(tool, "_method", None)
    return hasattr(getattr(method, "func", method), "is_about_tasks")


def error_result(error: str) -> dict[str, Any]:
    """Return the result by which a tool reports an error to the model."""
    return {"status": "error", "error": error}


@cache
def _description(function: Callable[..., Any]) -> str:
    return inspect.getdoc(function) or ""


@cache
def _arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return a pydantic model of the arguments that a tool's method takes from the model."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in INJECTED
    }
    return create_model(
        f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields
    )


def _meant(args: Mapping[str, Any], arguments: type[BaseModel]) -> dict[str, Any]:
    """Return a model's arguments; some models write a list or an object as a text of JSON."""
    properties = _schema(arguments)["properties"]
    return {name: _value(value, properties.get(name, {})) for name, value in args.items()}


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
    kinds = [one.get("type") for one in (schema, *schema.get("anyOf", ()))]
    is_structure = "string" not in kinds and ("array" in kinds or "object" in kinds)
    if not (is_structure and isinstance(value, str)):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return read if isinstance(read, list | dict) else value


@lru_cache(MAX_DECLARATIONS)
def _declaration(
    name: str, description: str, arguments: type[BaseModel]
) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(
        name=name, description=description, parameters_json_schema=_schema(arguments)
    )


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    # Providers differ in what else they accept. All take additionalProperties, and it is true: the
    # arguments are checked in the same way.
    properties = {
        name: {key: value for key, value in detail.items() if key != "title"}
        for name, detail in schema.get("properties", {}).items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


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
