"""The arguments of tool calls as services send them: JSON of an object, or what is meant as it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.adk.models.llm_response import LlmResponse

UNREADABLE = "unreadable_arguments"
"""The only key of arguments that are no object; no tool has such an argument."""

MAX_QUOTED_CHARACTERS = 200
"""How much of unreadable arguments a model is shown: enough to recognise its own call."""


def read_arguments(given: Any) -> dict[str, Any] | None:
    """Return the object that a call's arguments are; None if they are none.

    A text is JSON. Nothing, `null` and an empty list are no arguments. A text within the text is
    read as well: some models encode their arguments twice.
    """
    value = given
    for _ in range(2):
        if isinstance(value, str):
            value = _decoded(value)
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None or value == [] else None


def marked_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments as `read_arguments` does; those that are no object under UNREADABLE."""
    found = read_arguments(given)
    return {UNREADABLE: str(given)[:MAX_QUOTED_CHARACTERS]} if found is None else found


def unreadable_arguments(response: LlmResponse) -> dict[str, str]:
    """Return what the marked arguments of a reply begin with, by the names of the calls."""
    return {
        str(call.name): str(call.args[UNREADABLE])
        for call in response.get_function_calls()
        if call.args and call.args.keys() == {UNREADABLE}
    }


def _decoded(text: str) -> Any:
    """Return the JSON value of a text; the text itself if it has none."""
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
