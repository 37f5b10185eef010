"""A tool made from a method, whose arguments are checked before it runs.

ADK's FunctionTool builds a model class per closure (2.6 ms each, on the event loop) and keeps a
thousand of them, with everything that they hold, in a cache. Here the declaration belongs to the
method in its class: built once, holding no sandbox.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar, get_type_hints

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from orchestrator.deep_agent.failures import ToolMistake

ToolMethod = Callable[..., Awaitable[dict[str, Any]]]
Method = TypeVar("Method", bound=Callable[..., Any])

INJECTED = ("self", "tool_context")
"""Parameters that the model does not see."""


class MethodTool(BaseTool):
    """An async method with a `tool_context` parameter, as a tool under the method's name."""

    def __init__(self, method: ToolMethod) -> None:
        self._method = method
        function = getattr(method, "__func__", method)
        super().__init__(name=function.__name__, description=inspect.getdoc(function) or "")
        self._arguments = arguments_model(function)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return declaration_of(self, self._arguments)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """The method's result; a mistake in the call or in what it asks for has status error."""
        try:
            values = checked_arguments(self.name, self._arguments, args)
            return await self._method(**values, tool_context=tool_context)
        except ToolMistake as mistake:
            return mistake_result(str(mistake))


def polling(method: Method) -> Method:
    """Mark a tool's method.

    To call it again and again with the same arguments is how it is used.
    """
    method.is_polling = True  # type: ignore[attr-defined] # a mark on the function
    return method


def is_polling(tool: BaseTool) -> bool:
    """Whether a tool's method is marked with `polling`."""
    method = getattr(tool, "_method", None)
    return bool(getattr(method, "is_polling", False))


def tabular(method: Method) -> Method:
    """Mark a tool's method: lists of records in its result are shown to the model as TOON."""
    method.is_tabular = True  # type: ignore[attr-defined] # a mark on the function
    return method


def is_tabular(tool: BaseTool) -> bool:
    """Whether a tool's method is marked with `tabular`."""
    method = getattr(tool, "_method", None)
    return bool(getattr(method, "is_tabular", False))


def mistake_result(message: str) -> dict[str, Any]:
    """How a tool tells the model about a mistake."""
    return {"status": "error", "message": message}


def declaration_of(tool: BaseTool, arguments: type[BaseModel]) -> types.FunctionDeclaration:
    """What the model is told of a tool."""
    return types.FunctionDeclaration(
        name=tool.name, description=tool.description, parameters_json_schema=_schema(arguments)
    )


def checked_arguments(
    name: str, arguments: type[BaseModel], args: dict[str, Any]
) -> dict[str, Any]:
    """The arguments as the method takes them; ToolMistake says what is wrong with them."""
    try:
        checked = arguments.model_validate(args)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        raise ToolMistake(
            f"{name} was called with wrong arguments: {'; '.join(faults)}. "
            f"It takes: {', '.join(arguments.model_fields)}."
        ) from None
    return {field: getattr(checked, field) for field in arguments.model_fields}


@cache
def arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model of the arguments that a tool's method takes from the model."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in INJECTED
    }
    return create_model(
        f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields
    )


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    # Providers differ in what else they accept; ADK's own declarations have these three and no
    # more.
    properties = {
        name: {key: value for key, value in detail.items() if key != "title"}
        for name, detail in schema.get("properties", {}).items()
    }
    return {"type": "object", "properties": properties, "required": schema.get("required", [])}
