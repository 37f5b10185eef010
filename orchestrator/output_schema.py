"""JSON Schemas from anybody, checked without a network, a file, or much time.

A schema is as trusted as the job that brings it: its references stay in it, its size and depth are
bounded, and the check of an answer has a time limit. Regular expressions are those of Rust, whose
time is linear in the text and whose size is bounded: they have no look-around and no
back-references.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema
from pydantic_core import ValidationError as PatternMismatch

MAX_SCHEMA_BYTES = 64 * 1024
"""As JSON: part of a job's record, and of each request to its model."""

MAX_SCHEMA_DEPTH = 64
"""Of objects and lists in a schema: twice as deep as any written by hand."""

MAX_PATTERN_CHARACTERS = 1000
"""Of one regular expression: longer ones are tables, which `enum` holds better."""

MAX_MATCHED_CHARACTERS = 100_000
"""Of a text that a pattern is looked for in: a search cannot be interrupted."""

CHECK_SECONDS = 2.0
"""CPU time of one check; an ordinary one takes milliseconds."""

MAX_ERRORS = 100
"""Of one answer, among which the most telling is chosen."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
"""Checks one keyword of a schema, as `jsonschema` defines it."""


class InvalidOutputSchema(ValueError):
    """The schema cannot be used; the text says why."""


class ValueMismatch(Exception):
    """A value does not match a schema; the text says where."""


class _TookTooLong(Exception):
    """The time limit of a check."""


@dataclass
class _Run:
    """One check."""

    ends_at: float
    """On the clock of this thread's CPU time."""
    patterns: dict[str, SchemaValidator]
    """The compiled patterns of the schema."""


_run: ContextVar[_Run] = ContextVar("run")


class SchemaCheck:
    """The check of values against one schema (draft 2020-12).

    Args:
        schema: The JSON Schema.

    Raises:
        InvalidOutputSchema: It is not a JSON Schema, too large or too deep, refers to another
            document, or has a pattern that cannot be used.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from referencing import Registry  # noqa: PLC0415 - slow, and few jobs have a schema

        _check_bounds(schema)
        of_schemas, of_values = _validators()
        self._patterns: dict[str, SchemaValidator] = {}
        try:
            with _limited_time(self._patterns):
                problem = next(of_schemas.iter_errors(schema), None)
                if problem is not None:
                    text = problem.message[:500]
                    raise InvalidOutputSchema(f"output_schema is not a JSON Schema: {text}")
                _check_parts(schema, schema)
        except (_TookTooLong, RecursionError):
            raise InvalidOutputSchema("output_schema takes too long to check.") from None
        own = {name: value for name, value in schema.items() if name != "$schema"}
        self._validator = of_values(own, registry=Registry())  # which fetches nothing

    def check(self, value: Any) -> None:
        """Check a JSON value.

        Raises:
            ValueMismatch: It does not match, or cannot be checked in time.
        """
        from jsonschema.exceptions import best_match  # noqa: PLC0415 - slow
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - slow

        try:
            with _limited_time(self._patterns):
                error = best_match(islice(self._validator.iter_errors(value), MAX_ERRORS))
        except _TookTooLong:
            raise ValueMismatch(
                f"The answer cannot be checked against the schema in {CHECK_SECONDS:g} seconds."
            ) from None
        except RecursionError:
            raise ValueMismatch("The answer or the schema is nested too deeply.") from None
        except Unresolvable:
            raise ValueMismatch("The schema refers to a part that it does not have.") from None
        if error is not None:
            raise ValueMismatch(
                f"The answer does not fit the schema at {error.json_path}: {error.message[:500]}."
            )


def _check_bounds(schema: Mapping[str, Any]) -> None:
    pending: list[tuple[Any, int]] = [(schema, 1)]
    while pending:
        part, depth = pending.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidOutputSchema(
                f"output_schema is more than {MAX_SCHEMA_DEPTH} objects and lists deep."
            )
        pending += [(below, depth + 1) for below in _parts(part)]
    try:
        size = len(json.dumps(schema).encode())
    except (TypeError, ValueError) as error:
        raise InvalidOutputSchema("output_schema is not JSON.") from error
    if size > MAX_SCHEMA_BYTES:
        raise InvalidOutputSchema(
            f"output_schema has {size:,} bytes, and {MAX_SCHEMA_BYTES:,} are allowed."
        )


def _parts(part: Any) -> list[Any]:
    values = part.values() if isinstance(part, Mapping) else part
    return [below for below in values if isinstance(below, (Mapping, list, tuple))]


def _check_parts(part: Any, schema: Mapping[str, Any]) -> None:
    """Check the references and patterns in a part of a schema."""
    if isinstance(part, Mapping):
        for name in _REFERENCES:
            if isinstance(part.get(name), str):
                _check_reference(part[name], schema)
        patterns = part.get("patternProperties")
        names = list(patterns) if isinstance(patterns, Mapping) else []
        if names and "unevaluatedProperties" in part:
            raise InvalidOutputSchema(
                "output_schema has patternProperties beside unevaluatedProperties: use "
                "additionalProperties."
            )
        for pattern in [*names, part.get("pattern")]:
            if isinstance(pattern, str):
                _compiled(pattern)
    for below in _parts(part):
        _check_parts(below, schema)


def _check_reference(reference: str, schema: Mapping[str, Any]) -> None:
    """Check that a reference is a path in the schema.

    Raises:
        InvalidOutputSchema: It is not.
    """
    part: Any = schema
    if reference != "#":
        if not reference.startswith("#/"):
            raise InvalidOutputSchema(
                f"output_schema refers to {reference[:200]!r}: put that part into the schema and "
                "refer to it as #/$defs/NAME."
            )
        for step in reference[2:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~").replace("%25", "%")
            is_index = isinstance(part, (list, tuple)) and key.isdecimal() and int(key) < len(part)
            if isinstance(part, Mapping) and key in part:
                part = part[key]
            elif is_index:
                part = part[int(key)]
            else:
                raise InvalidOutputSchema(f"output_schema has no part {reference[:200]!r}.")


def _compiled(pattern: str) -> SchemaValidator:
    _check_time()
    known = _run.get().patterns
    if pattern in known:
        return known[pattern]
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise InvalidOutputSchema(
            f"output_schema has a pattern of {len(pattern):,} characters, and "
            f"{MAX_PATTERN_CHARACTERS:,} are allowed."
        )
    try:
        known[pattern] = SchemaValidator(
            core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        )
    except SchemaError as error:
        why = str(error).strip().rpartition("\n")[2].strip().removeprefix("SchemaError: ")
        raise InvalidOutputSchema(
            f"output_schema has the pattern {pattern[:200]!r}, which cannot be used: {why}"
        ) from None
    return known[pattern]


@cache
def _validators() -> tuple[Any, Any]:
    """Return the check of schemas, and the class of the checks of values."""
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - slow
    from jsonschema_specifications import (  # type: ignore[import-untyped] # noqa: PLC0415 - slow
        REGISTRY,
    )

    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords = {**Draft202012Validator.VALIDATORS, **own}
    timed = {name: _timed(keyword) for name, keyword in keywords.items()}
    of_values = validators.extend(Draft202012Validator, timed)  # type: ignore[no-untyped-call]
    return of_values(Draft202012Validator.META_SCHEMA, registry=REGISTRY), of_values


@contextmanager
def _limited_time(patterns: dict[str, SchemaValidator]) -> Iterator[None]:
    token = _run.set(_Run(time.thread_time() + CHECK_SECONDS, patterns))
    try:
        yield
    finally:
        _run.reset(token)


def _check_time() -> None:
    if time.thread_time() > _run.get().ends_at:
        raise _TookTooLong


def _timed(keyword: Keyword) -> Keyword:
    """Return the check of a keyword that ends when the time is over."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _check_time()
        for error in keyword(validator, value, instance, schema) or ():
            _check_time()
            yield error

    return check


def _found(pattern: str, text: str) -> bool:
    if len(text) > MAX_MATCHED_CHARACTERS:
        raise _TookTooLong
    try:
        _compiled(pattern).validate_python(text)
    except PatternMismatch:
        return False
    return True


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield _error(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    del schema
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [
        name
        for name in instance
        if name not in named and not any(_found(pattern, name) for pattern in patterns)
    ]
    if part is False and extra:
        yield _error(f"Additional properties are not allowed ({', '.join(map(repr, extra))})")
    elif part is not False:
        for name in extra:
            yield from validator.descend(instance[name], part, path=name)


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if wanted and validator.is_type(instance, "array"):
        seen = {json.dumps(_plain(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield _error(f"{instance!r} has non-unique elements")


def _plain(value: Any) -> Any:
    """Return a JSON value in which equal numbers are written in the same way: 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _error(message: str) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415 - slow

    return ValidationError(message)
