"""Final answers as JSON that matches a schema."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from google.genai import types
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from ..output_schema import InvalidOutputSchema, SchemaCheck, ValueMismatch
from ..valid_text import clean
from .markdown import markdown_blocks

OutputType = Mapping[str, Any] | types.SchemaUnion
"""What ADK takes as an `output_schema`: a JSON Schema, a schema of Gemini, or a type that pydantic
knows, such as a model, a dataclass, `list[Model]` or `dict[str, int]`."""

MAX_CANDIDATES = 20
"""Fenced blocks of one message that are looked at, from its end: an answer has one or two."""

MAX_SEARCHED_CHARACTERS = 500_000
"""The longest end of a message that is searched for fenced blocks: as much as models write at once,
and two seconds at most."""

_LARGEST = 2**1024
"""Above the numbers that readers of JSON agree on, which are those of a double (RFC 8259, 6)."""

_BYTE_ORDER_MARK = "\ufeff"


class OutputMismatch(Exception):
    """An answer does not match its schema; the message says where."""


class OutputSchema:
    """The schema of a final answer.

    Args:
        schema: A JSON Schema, or a type.

    Raises:
        ValueError: It is not a JSON Schema, one that a check may not use, or a type that has none.
    """

    def __init__(self, schema: OutputType) -> None:
        self._type: TypeAdapter[Any] | None = None
        self.json_schema: Mapping[str, Any]
        if isinstance(schema, Mapping):
            self.json_schema, self._check = _of_mapping(schema)
            return
        if isinstance(schema, types.Schema):
            self.json_schema = _of_gemini(schema)
        else:
            self._type, self.json_schema = _of_type(schema)
        self._check = SchemaCheck(self.json_schema)

    def parse(self, answer: str) -> Any:
        """Return the JSON value in an answer; it may take seconds, so call it in a thread.

        It is the whole answer, or else the last fenced code block that matches, because models
        often write text around it.

        Raises:
            OutputMismatch: The answer is not JSON, or does not match the schema.
        """
        values, problem = _find_values(answer)
        if not values:
            raise OutputMismatch(problem)
        try:
            value = self._check.first_fitting(values)
            if self._type is not None:
                # Of a type, more is known than a JSON Schema says, such as the form of a date.
                self._type.validate_json(json.dumps(value))
        except ValueMismatch as mismatch:
            raise OutputMismatch(str(mismatch)) from None
        except ValidationError as error:
            raise OutputMismatch(_first_problem(error)) from None
        return value


def _of_mapping(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], SchemaCheck]:
    try:
        return schema, SchemaCheck(schema)
    except InvalidOutputSchema:
        try:  # Gemini's own form as a mapping, in which a type is OBJECT and not object
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a type that Gemini does not know
                made = _of_gemini(types.Schema.model_validate(schema))
        except ValueError:  # pydantic's is one, and the conversion has its own
            made = None
        if made is None:
            raise
        return made, SchemaCheck(made)


def _of_gemini(schema: types.Schema) -> Mapping[str, Any]:
    made: Mapping[str, Any] = schema.json_schema.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return made


def _of_type(schema: Any) -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    try:
        adapter = TypeAdapter(schema)
        return adapter, adapter.json_schema(schema_generator=_WithUsablePatterns)
    except Exception as error:  # pydantic has several for what it does not know
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"output_schema is {schema!r}; it has to be a JSON Schema, a pydantic model or another "
            f"type with a JSON Schema: {reason}"
        ) from error


class _WithUsablePatterns(GenerateJsonSchema):
    """The JSON Schema of a type, without the patterns of pydantic that look ahead."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of a decimal number; pydantic checks its form itself."""
        made = super().decimal_schema(schema)
        for form in made.get("anyOf", ()):
            form.pop("pattern", None)
        return made


def _first_problem(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in found["loc"])
    return f"The answer does not fit the schema at ${path}: {str(found['msg'])[:500]}."


def _find_values(answer: str) -> tuple[list[Any], str]:
    """Return the JSON values in an answer, the likeliest one first; and why there are none."""
    values: list[Any] = []
    problem = ""
    for candidate in _candidates(answer):
        try:
            values.append(_json_value(candidate))
        except _NotJson as error:
            problem = str(error)
    return values, problem


def _json_value(text: str) -> Any:
    try:
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_unambiguous,
        )
        return clean(value)
    except json.JSONDecodeError as error:
        raise _NotJson(
            f"The answer is not JSON (line {error.lineno}, column {error.colno}): send the JSON "
            "value only."
        ) from None
    except RecursionError:
        raise _NotJson("The answer is nested too deeply.") from None


def _candidates(answer: str) -> Iterator[str]:
    """Yield the whole answer, and its fenced blocks from the last one to the first."""
    text = answer.strip().removeprefix(_BYTE_ORDER_MARK).strip()
    yield text
    if "```" in text or "~~~" in text:
        blocks = [
            token
            for token in markdown_blocks(text[-MAX_SEARCHED_CHARACTERS:])
            if token.type == "fence"
        ][-MAX_CANDIDATES:]
        blocks.reverse()
        # Blocks of another language are examples, unless there is nothing else.
        for block in sorted(blocks, key=lambda block: not _may_be_json(block.info)):
            yield block.content.strip().removeprefix(_BYTE_ORDER_MARK)


def _may_be_json(info: str) -> bool:
    return not info.strip() or "json" in info.lower()


class _NotJson(ValueError):
    """A text is not JSON that all readers understand alike; the message says why."""


def _no_constant(name: str) -> Any:
    raise _NotJson(
        f"The answer is not JSON: {name} is not a number in JSON; use null if the schema allows it."
    )


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _NotJson(f"The answer is not JSON: the number {text[:40]} is too large.")
    return number


def _bounded(text: str) -> int:
    # The length first: Python refuses to convert thousands of digits
    if len(text) > len(str(_LARGEST)) or abs(number := int(text)) >= _LARGEST:
        raise _NotJson(f"The answer is not JSON: the number {text[:40]}… is too large.")
    return number


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made and made[name] != value:
            raise _NotJson(
                f"The answer is not clear: {name[:100]!r} has two different values in one object."
            )
        made[name] = value
    return made
