"""Lists of records as the model reads them: TOON names the fields once instead of once a record.

A session keeps a tool's result as it is. Each request, and only the request, has the lists in the
results of `tabular` tools as TOON texts: about half of the tokens of JSON, and the same values.
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

from orchestrator.deep_agent.part import Part
from orchestrator.deep_agent.prompts import TABLES
from orchestrator.deep_agent.tool import is_tabular

MIN_ROWS = 2
"""One record is shorter as JSON."""


class Tables(Part):
    """Shows the model the lists in its tool results as TOON."""

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """How to read it."""
        del context, tools
        return TABLES

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Put TOON in the place of lists of records. The session stays as it is."""
        del callback_context
        names = {name for name, tool in llm_request.tools_dict.items() if is_tabular(tool)}
        contents = [_shown(content, names) for content in llm_request.contents]
        if any(new is not old for new, old in zip(contents, llm_request.contents, strict=True)):
            llm_request.contents = contents
        return None


def as_toon(records: Sequence[Mapping[str, Any]]) -> str:
    """The records as one TOON text, a line each when they are flat and alike."""
    return encode(list(records))


def _shown(content: types.Content, names: set[str]) -> types.Content:
    parts = [_part_shown(part, names) for part in content.parts or []]
    if all(new is old for new, old in zip(parts, content.parts or [], strict=True)):
        return content
    return content.model_copy(update={"parts": parts})


def _part_shown(part: types.Part, names: set[str]) -> types.Part:
    answer = part.function_response
    if answer is None or answer.name not in names:
        return part
    given = answer.response or {}
    response = {key: as_toon(value) if _is_table(value) else value for key, value in given.items()}
    if response == given:
        return part
    return part.model_copy(
        update={"function_response": answer.model_copy(update={"response": response})}
    )


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) >= MIN_ROWS
        and all(isinstance(row, dict) for row in value)
    )
