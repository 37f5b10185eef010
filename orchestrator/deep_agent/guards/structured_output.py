"""Final answers as JSON that matches a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from fanout.orchestrator.output_schema import SchemaCheck, ValueMismatch
from fanout.orchestrator.valid_text import clean

_FENCE = "```"


class OutputMismatch(Exception):
    """An answer does not match its schema; the message says where."""


class OutputSchema:
    """The schema of a final answer.

    Args:
        schema: A JSON Schema, or a pydantic model.

    Raises:
        ValueError: The mapping is not a JSON Schema, or one that a check may not use.
    """

    def __init__(self, schema: Mapping[str, Any] | type[BaseModel]) -> None:
        self.json_schema: Mapping[str, Any] = (
            schema if isinstance(schema, Mapping) else schema.model_json_schema()
        )
        self._check = SchemaCheck(self.json_schema)

    def parse(self, answer: str) -> Any:
        """Return the JSON value in an answer; it may take seconds, so call it in a thread.

        Raises:
            OutputMismatch: The answer is not JSON, or does not match the schema.
        """
        value = _json_in(answer)
        try:
            self._check.check(value)
        except ValueMismatch as mismatch:
            raise OutputMismatch(str(mismatch)) from None
        return value


def _json_in(answer: str) -> Any:
    """Parse the answer; text around a fenced block is ignored, because models often add it."""
    for candidate in (answer.strip(), *reversed(list(_fenced(answer)))):
        try:
            return clean(json.loads(candidate))
        except (ValueError, RecursionError):
            continue
    raise OutputMismatch("The answer is not JSON.")


def _fenced(answer: str) -> Iterator[str]:
    """Yield the texts between pairs of fences."""
    for block in answer.split(_FENCE)[1:-1]:
        language, line_end, text = block.partition("\n")
        if line_end and language.strip() in {"", "json"}:
            yield text.strip()
