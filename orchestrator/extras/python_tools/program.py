"""A program that describes or calls one installed tool: `describe NAME` or `call NAME`.

The arguments of a call are the JSON on its standard input; its answer is one JSON object on its
standard output: `error`, or `result`, or `description` and `schema`. What the tool prints goes to
the error output.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import from_json, to_json

from ...installed_tools import GROUP
from ...json_values import NotJson, json_value
from ...shortening import error_text
from ...valid_text import clean_text

LOOK_SECONDS = 1.0
"""How often it looks whether its worker is still there."""

MAX_MESSAGE_CHARACTERS = 2_000
"""The longest text of an exception that the agent reads."""

MAX_FAULTS = 8
"""The most wrong arguments that are named."""

_SPEAKING = (ValueError, RuntimeError, OSError)
"""Python's exceptions whose text alone says what is wrong; of others, such as a KeyError, it does
not."""


class Unusable(Exception):
    """The tool cannot be described or called; the text says why."""


def main(action: str, name: str) -> None:
    """Answer on standard output."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        function = load(name)
        found = _described(function) if action == "describe" else _called(name, function)
    except Unusable as error:
        found = to_json({"error": clean_text(str(error))[:MAX_MESSAGE_CHARACTERS]})
    with os.fdopen(answer, "wb") as file:
        file.write(found)


def _end_with(parent: int) -> None:
    """End this process, and those of its group, when its worker is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.killpg(0, signal.SIGKILL)


def load(name: str) -> Callable[..., Any]:
    """Return the function of an entry point.

    Raises:
        Unusable: There is none, or more than one, or it is not a function.
    """
    points = list(entry_points(group=GROUP, name=name))
    if len({point.value for point in points}) != 1:
        count = "no" if not points else "more than one"
        raise Unusable(f"{count} installed package has an entry point {name} of {GROUP}")
    value = points[0].value
    try:
        function = points[0].load()
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, also SystemExit
        raise Unusable(f"{value} cannot be imported: {_said(error)}") from None
    if not inspect.isroutine(function):
        raise Unusable(f"{value} is not a function")
    return function


def arguments_of(function: Callable[..., Any]) -> type[BaseModel]:
    """Return a model of a function's arguments.

    Raises:
        Unusable: A model cannot give its arguments.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())
    except Exception as error:  # noqa: BLE001 - annotations are code
        raise Unusable(f"its parameters cannot be described: {_said(error)}") from None
    for one in parameters:
        if one.kind not in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}:
            raise Unusable(f"its parameter {one.name} cannot be given by its name")
    fields: dict[str, Any] = {
        one.name: (hints.get(one.name, Any), ... if one.default is one.empty else one.default)
        for one in parameters
    }
    try:
        model = create_model("arguments", __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema()
    except Exception as error:  # noqa: BLE001 - so are the hooks of types
        raise Unusable(f"its parameters cannot be described: {_said(error)}") from None
    return model


def _described(function: Callable[..., Any]) -> bytes:
    schema = arguments_of(function).model_json_schema()
    return to_json({"description": inspect.getdoc(function) or "", "schema": schema})


def _called(name: str, function: Callable[..., Any]) -> bytes:
    model = arguments_of(function)
    try:
        checked = model.model_validate(from_json(sys.stdin.buffer.read()))
    except ValidationError as error:
        raise Unusable(_wrong_arguments(name, model, error)) from None
    given = {field: getattr(checked, field) for field in checked.model_fields_set}
    try:
        result = function(**given)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, also SystemExit
        raise Unusable(f"{name} failed: {_said(error)}") from None
    try:
        return to_json({"result": json_value(result)})
    except NotJson as reason:
        raise Unusable(f"{name} returned what cannot be passed on: {reason}") from None


async def _awaited(result: Any) -> Any:
    return await result


def _wrong_arguments(name: str, model: type[BaseModel], error: ValidationError) -> str:
    faults = [
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    takes = ", ".join(model.model_fields) or "no arguments"
    return f"{name} was called with wrong arguments: {'; '.join(faults[:MAX_FAULTS])}. It takes: {takes}."


def _said(error: BaseException) -> str:
    """Return what an exception says, with its kind where the text alone does not explain it."""
    kind, text = type(error), clean_text(error_text(error, MAX_MESSAGE_CHARACTERS)).strip()
    speaks = kind in _SPEAKING or kind.__module__ != "builtins"
    return text if text and speaks else f"{kind.__name__}: {text}".removesuffix(": ")


if __name__ == "__main__":
    main(*sys.argv[1:3])
