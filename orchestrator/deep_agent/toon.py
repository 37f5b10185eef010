"""Lists of records as TOON for the model: it names the fields once instead of once per record.

The session stores a tool's result unchanged. Only in requests are the lists in the results of
`tabular` tools replaced by TOON texts: the same values in about half of the tokens of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from toon_format import encode

from fanout.orchestrator.deep_agent.messages import with_response
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import TABLES
from fanout.orchestrator.deep_agent.tool import is_tabular

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
        contents = [_with_tables(content, names) for content in llm_request.contents]
        if any(new is not old for new, old in zip(contents, llm_request.contents, strict=True)):
            llm_request.contents = contents
        return None


def as_toon(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the records as one TOON text, with one line per record if they are flat and alike."""
    return encode(list(records))


def _with_tables(content: types.Content, names: set[str]) -> types.Content:
    parts = [_part_with_tables(part, names) for part in content.parts or []]
    if all(new is old for new, old in zip(parts, content.parts or [], strict=True)):
        return content
    return content.model_copy(update={"parts": parts})


def _part_with_tables(part: types.Part, names: set[str]) -> types.Part:
    answer = part.function_response
    if answer is None or answer.name not in names:
        return part
    original = answer.response or {}
    response = {
        key: as_toon(value) if _is_table(value) else value for key, value in original.items()
    }
    return part if response == original else with_response(part, response)


def _is_table(value: Any) -> bool:
    is_long = isinstance(value, list) and len(value) >= MIN_ROWS
    return is_long and all(isinstance(row, dict) for row in value)
