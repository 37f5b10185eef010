"""Lists of records as TOON for the model: it names the fields once instead of once per record.

The session stores a tool's result unchanged. Only in requests are the lists in the results of
`tabular` tools replaced by TOON texts, each where that is shorter than compact JSON: flat records
take about half. Of records with objects and lists in them, such as the results of `tasks`, the
fields of objects become columns, and lists stay JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from toon_format import encode

from .messages import with_response
from .middleware import Middleware
from .prompts import TABLES
from .tool import is_tabular

MIN_ROWS = 2
"""A single record is shorter as JSON."""


class Tables(Middleware):
    """Shows the model the lists in its tool results as TOON."""

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain the format."""
        del context, tools
        return TABLES

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Replace lists of records by TOON in the request; the session is unchanged."""
        del callback_context
        names = {name for name, tool in llm_request.tools_dict.items() if is_tabular(tool)}
        contents = [with_tables(content, names) for content in llm_request.contents]
        if any(new is not old for new, old in zip(contents, llm_request.contents, strict=True)):
            llm_request.contents = contents
        return None


def as_toon(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the records as one TOON text, with one line per record if they are flat and alike."""
    return encode(list(records))


def with_tables(content: types.Content, names: set[str]) -> types.Content:
    """Return a content in which the results of the named tools are in their shortest form."""
    parts = [_part_with_tables(part, names) for part in content.parts or []]
    if all(new is old for new, old in zip(parts, content.parts or [], strict=True)):
        return content
    return content.model_copy(update={"parts": parts})


def _part_with_tables(part: types.Part, names: set[str]) -> types.Part:
    answer = part.function_response
    if answer is None or answer.name not in names:
        return part
    original = answer.response or {}
    response = {key: _shortest(value) for key, value in original.items()}
    return part if response == original else with_response(part, response)


def _shortest(value: Any) -> Any:
    """Return a value in its shortest form: as it is, as TOON, or with TOON for lists inside it."""
    if isinstance(value, dict):
        return {key: _shortest(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    forms: list[Any] = [value, [_shortest(inner) for inner in value]]
    if len(value) >= MIN_ROWS and all(isinstance(row, dict) for row in value):
        forms += [as_toon(value), as_toon(_with_columns(value))]
    return min(forms, key=_length)


def _with_columns(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return records with the same flat fields: `a.b` for the field b of a, and lists as JSON."""
    rows = [_columns(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _columns(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict) and value:
            columns |= _columns(value, f"{prefix}{key}.")
        elif isinstance(value, dict | list):
            columns[f"{prefix}{key}"] = _json(value)
        else:
            columns[f"{prefix}{key}"] = value
    return columns


def _length(value: Any) -> int:
    """Return the length of a value in a request, where a text has its line ends escaped."""
    return len(_json(value))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
