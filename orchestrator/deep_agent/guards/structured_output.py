"""Final answers as JSON that matches a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)


class OutputMismatch(Exception):
    """An answer does not match its schema; the message says where."""


class OutputSchema:
    """The schema of a final answer.

    Args:
        schema: A JSON Schema, or a pydantic model.

    Raises:
        ValueError: The mapping is not a JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any] | type[BaseModel]) -> None:
        self.json_schema: Mapping[str, Any] = (
            schema if isinstance(schema, Mapping) else schema.model_json_schema()
        )
        try:
            Draft202012Validator.check_schema(self.json_schema)
        except SchemaError as error:
            raise ValueError(f"output_schema is not a JSON Schema: {error.message}") from None
        self._validator = Draft202012Validator(self.json_schema)

    def parse(self, answer: str) -> Any:
        """Return the JSON value in an answer.

        Raises:
            OutputMismatch: The answer is not JSON, or does not match the schema.
        """
        value = _json_in(answer)
        error = best_match(self._validator.iter_errors(value))
        if error is not None:
            raise OutputMismatch(
                f"The answer does not fit the schema at {error.json_path}: {error.message[:500]}."
            )
        return value


def _json_in(answer: str) -> Any:
    """Parse the answer; text around a fenced block is ignored, because models often add it."""
    candidates = [answer.strip(), *(found.strip() for found in reversed(_FENCE.findall(answer)))]
    for candidate in candidates:
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    raise OutputMismatch("The answer is not JSON.")
