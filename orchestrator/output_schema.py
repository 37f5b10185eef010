"""JSON Schemas from anybody, checked without a network, a file, or much time.

A schema is not trusted more than its job: its references stay inside, its size and depth are
bounded, and the check of an answer has a time limit.

Regular expressions are those of Rust, whose
time is linear in the text and whose size is bounded, without look-around and back-references.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any
from urllib.parse import urljoin

from pydantic_core import SchemaError, SchemaValidator, core_schema
from pydantic_core import ValidationError as PatternMismatch

MAX_SCHEMA_BYTES = 64 * 1024
"""The largest schema as JSON: it is part of a job's record, and of each request to its model."""

MAX_SCHEMA_DEPTH = 64
"""The deepest nesting of objects and lists in a schema: twice that of any written by hand."""

MAX_PATTERN_CHARACTERS = 1000
"""The longest regular expression: longer ones are tables, for which `enum` is better."""

MAX_MATCHED_CHARACTERS = 100_000
"""The longest text in which a pattern is searched: a search cannot be interrupted."""

CHECK_SECONDS = 2.0
"""CPU time of one check; an ordinary one takes milliseconds."""

SEVERAL_SECONDS = 4.0
"""CPU time for the schemas of jobs that are submitted at once: a thousand ordinary ones need 2."""

MAX_KEYWORDS_DEEP = 260
"""The most nested keywords in one check: four for each level of the deepest allowed schema. The
stack of Python holds 300."""

MAX_ERRORS = 100
"""The most errors of one answer, among which the most useful is chosen."""

_BASE = "https://schema.invalid/"
"""The address of a schema without one, against which relative ones are resolved."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
"""Checks one keyword of a schema, as `jsonschema` defines it."""


class InvalidOutputSchema(ValueError):
    """The schema cannot be used; the text says why."""


class ValueMismatch(Exception):
    """A value does not match a schema; the text says where."""


class _TookTooLong(Exception):
    """The time limit of a check was exceeded."""


class _Number(Decimal):
    """A number in its JSON form: 19.99 is a multiple of 0.01."""

    def __repr__(self) -> str:
        return str(self)


@dataclass
class _Run:
    """One check."""

    ends_at: float
    """The end of the check, on the clock of this thread's CPU time."""
    patterns: dict[str, SchemaValidator]
    """The compiled patterns of the schema."""
    depth: int = 0
    """The number of nested keywords that are being checked."""


_run: ContextVar[_Run] = ContextVar("run")


class SchemaCheck:
    """The check of values against one schema.

    Its draft is the one that `$schema` names: 4, 6, 7, 2019-09 or 2020-12. For a schema without one
    of these it is the newest one in which the schema is valid.

    Args:
        schema: The JSON Schema.

    Raises:
        InvalidOutputSchema: It is not a JSON Schema, too large or too deep, refers to another
            document, or has a pattern that cannot be used.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        _check_depth(schema)
        own = _as_written(schema)
        drafts = _drafts()
        named = drafts.get(_name_of_draft(own))
        self._patterns: dict[str, SchemaValidator] = {}
        refusals: list[InvalidOutputSchema] = []
        try:
            with _limited_time(self._patterns), _limited_stack():
                for draft in [named] if named else drafts.values():
                    try:
                        self._validator = draft.validator(own)
                    except InvalidOutputSchema as refusal:
                        refusals.append(refusal)
                    else:
                        return
        except (_TookTooLong, RecursionError):
            raise InvalidOutputSchema("output_schema takes too long to check.") from None
        raise refusals[0]

    def check(self, value: Any) -> None:
        """Check a JSON value.

        Raises:
            ValueMismatch: It does not match, or cannot be checked in time.
        """
        self.first_fitting([value])

    def first_fitting(self, values: Iterable[Any]) -> Any:
        """Return the first of some JSON values that matches; all are checked in one time limit.

        Raises:
            ValueMismatch: None matches, or they cannot be checked in time; the text is about the
                first one.
        """
        refusals: list[ValueMismatch] = []
        try:
            with _limited_time(self._patterns):
                for value in values:
                    problem = self._problem(value)
                    if problem is None:
                        return value
                    refusals.append(ValueMismatch(problem))
        except _TookTooLong:
            refusals.append(
                ValueMismatch(
                    f"The answer cannot be checked against the schema in {CHECK_SECONDS:g} seconds."
                )
            )
        raise refusals[0] if refusals else ValueMismatch("There is no value.")

    def _problem(self, value: Any) -> str | None:
        from jsonschema.exceptions import best_match  # noqa: PLC0415 - slow

        try:
            with _limited_stack():
                written = json.loads(json.dumps(value, allow_nan=False), parse_float=_Number)
                error = best_match(islice(self._validator.iter_errors(written), MAX_ERRORS))
        except RecursionError:
            return "The answer or the schema is nested too deeply."
        except _unresolvable():
            return "The schema refers to a part that it does not have."
        except InvalidOutputSchema as refusal:  # a pattern of a part that only the check reaches
            return str(refusal)
        except (TypeError, ValueError):
            return "The answer has a value that JSON cannot hold."
        if error is None:
            return None
        return f"The answer does not fit the schema at {error.json_path}: {error.message[:500]}."


def check_schemas(schemas: Iterable[Mapping[str, Any]]) -> None:
    """Check that schemas can be used, all of them in one time limit; equal ones once.

    Raises:
        InvalidOutputSchema: One cannot be used, or they take too long to check.
    """
    ends_at = time.thread_time() + SEVERAL_SECONDS
    checked: set[str] = set()
    for schema in schemas:
        text = json.dumps(schema)
        if text in checked:
            continue
        if time.thread_time() > ends_at:
            raise InvalidOutputSchema(
                "The output_schemas of these jobs take too long to check: submit fewer at once."
            )
        SchemaCheck(schema)
        checked.add(text)


@dataclass(frozen=True)
class _Draft:
    """One version of JSON Schema."""

    specification: Any
    """The draft for `referencing`: the places of schemas, identifiers and anchors."""
    of_schemas: Any
    """The check of schemas."""
    of_values: Any
    """The class for checks of values."""

    def validator(self, schema: Any) -> Any:
        """Return the check of values against a schema.

        Raises:
            InvalidOutputSchema: The schema is not one of this draft.
        """
        from jsonschema_specifications import (  # type: ignore[import-untyped] # noqa: PLC0415 - slow
            REGISTRY,
        )

        self._check(schema)
        resource = self.specification.create_resource(schema)
        try:  # a registry without `retrieve` fetches nothing
            base = urljoin(_BASE, resource.id() or "")
            registry = REGISTRY.with_resource(_BASE, resource).with_resource(base, resource).crawl()
        except (ValueError, TypeError, AttributeError):
            raise InvalidOutputSchema("output_schema has an $id that is not an address.") from None
        resolver = registry.resolver(base)
        _Parts(self).check_references(schema, resolver)
        return self.of_values(schema, registry=registry, _resolver=resolver)

    def _check(self, schema: Any) -> None:
        problem = next(self.of_schemas.iter_errors(schema), None)
        if problem is not None:
            raise InvalidOutputSchema(
                f"output_schema is not a JSON Schema: {problem.message[:500]}"
            )

    def check_target(self, reference: str, schema: Any) -> None:
        """Check that the target of a reference is a schema.

        Raises:
            InvalidOutputSchema: It is not.
        """
        try:
            self._check(schema)
        except InvalidOutputSchema:
            raise InvalidOutputSchema(
                f"output_schema refers to {reference[:200]!r}, which is not a JSON Schema."
            ) from None


@dataclass
class _Parts:
    """A walk over all schemas in a schema, including those that only a reference reaches."""

    draft: _Draft
    seen: set[int] = field(default_factory=set)
    references: list[tuple[str, Any]] = field(default_factory=list)
    """The references that were not followed yet, with their resolvers."""
    keywords: set[str] = field(default_factory=set)

    def check_references(self, schema: Any, resolver: Any) -> None:
        """Check the references and patterns.

        Raises:
            InvalidOutputSchema: One of them cannot be used.
        """
        self._look_into(schema, resolver)
        while self.references:
            reference, resolver = self.references.pop()
            found = _resolved(reference, resolver)
            if id(found.contents) not in self.seen:
                self.draft.check_target(reference, found.contents)
                self._look_into(found.contents, found.resolver)
        if self.keywords >= {"patternProperties", "unevaluatedProperties"}:
            # `jsonschema` would look for these patterns with Python's engine
            raise InvalidOutputSchema(
                "output_schema has patternProperties and unevaluatedProperties: use "
                "additionalProperties."
            )

    def _look_into(self, schema: Any, resolver: Any) -> None:
        pending = [(schema, resolver)]
        while pending:
            _check_time()
            part, resolver = pending.pop()
            if not isinstance(part, Mapping) or id(part) in self.seen:
                continue
            self.seen.add(id(part))
            self.keywords.update(part)
            if not isinstance(part.get("$ref", ""), str):  # which draft 4 does not say
                raise InvalidOutputSchema("output_schema has a $ref that is not text.")
            self.references += [
                (part[name], resolver) for name in _REFERENCES if isinstance(part.get(name), str)
            ]
            for pattern in [*part.get("patternProperties", ()), part.get("pattern")]:
                if isinstance(pattern, str):
                    _compiled(pattern)
            for below in self.draft.specification.subresources_of(part):
                resource = self.draft.specification.create_resource(below)
                pending.append((below, resolver.in_subresource(resource)))


def _resolved(reference: str, resolver: Any) -> Any:
    """Return the target of a reference, by RFC 3986 and JSON Pointer.

    Raises:
        InvalidOutputSchema: It is not in the schema.
    """
    try:
        return resolver.lookup(reference)
    except _unresolvable():
        pass
    except (ValueError, TypeError, AttributeError):
        pass  # for an invalid address, or an identifier without a schema
    if reference.startswith("#/"):
        raise InvalidOutputSchema(f"output_schema has no part {reference[:200]!r}.")
    raise InvalidOutputSchema(
        f"output_schema refers to {reference[:200]!r}, which is not in it, and nothing is fetched: "
        "put that part into the schema and refer to it as #/$defs/NAME."
    )


@cache
def _unresolvable() -> tuple[type[Exception], ...]:
    from referencing.exceptions import NoSuchResource, Unresolvable  # noqa: PLC0415 - slow

    return (Unresolvable, NoSuchResource)


def _check_depth(schema: Mapping[str, Any]) -> None:
    pending: list[tuple[Any, int]] = [(schema, 1)]
    while pending:
        part, depth = pending.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidOutputSchema(
                f"output_schema is more than {MAX_SCHEMA_DEPTH} objects and lists deep."
            )
        pending += [(below, depth + 1) for below in _parts(part)]


def _as_written(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema with numbers in their JSON form."""
    try:
        text = json.dumps(schema, allow_nan=False)
        written: dict[str, Any] = json.loads(text, parse_float=_Number)
    except (TypeError, ValueError) as error:
        raise InvalidOutputSchema("output_schema is not JSON.") from error
    size = len(text.encode())
    if size > MAX_SCHEMA_BYTES:
        raise InvalidOutputSchema(
            f"output_schema has {size:,} bytes, and {MAX_SCHEMA_BYTES:,} are allowed."
        )
    return written


def _parts(part: Any) -> list[Any]:
    values = part.values() if isinstance(part, Mapping) else part
    return [below for below in values if isinstance(below, (Mapping, list, tuple))]


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
def _drafts() -> dict[str, _Draft]:
    """Return the drafts by their names, the newest one first."""
    import jsonschema  # noqa: PLC0415 - slow
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415 - slow
    from referencing.jsonschema import specification_with  # noqa: PLC0415 - slow

    drafts: dict[str, _Draft] = {}
    for stock in (
        jsonschema.Draft202012Validator,
        jsonschema.Draft201909Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft6Validator,
        jsonschema.Draft4Validator,
    ):
        of_values = _own_validator(stock, drafts)
        drafts[_name_of_draft(stock.META_SCHEMA)] = _Draft(
            _own_specification(specification_with(str(stock.META_SCHEMA["$schema"]))),
            of_values(stock.META_SCHEMA, registry=REGISTRY),
            of_values,
        )
    return drafts


def _own_specification(stock: Any) -> Any:
    """Return `referencing`'s form of a draft, with all schemas in `dependencies`.

    The newer drafts have two other names for it, and if it has both schemas and lists of names,
    `referencing` treats the lists as schemas or omits the schemas.
    """
    import referencing  # noqa: PLC0415 - slow

    specification: Any = referencing.Specification  # mypy does not know its arguments

    def subresources_of(schema: Any) -> list[Any]:
        below = [
            part for part in stock.subresources_of(schema) if isinstance(part, (Mapping, bool))
        ]
        dependencies = schema.get("dependencies") if isinstance(schema, Mapping) else None
        more = dependencies.values() if isinstance(dependencies, Mapping) else ()
        return [*below, *(part for part in more if isinstance(part, Mapping))]

    return specification(
        name=stock.name,
        id_of=stock.id_of,
        subresources_of=subresources_of,
        anchors_in=lambda _, schema: stock.anchors_in(schema),
        maybe_in_subresource=stock.maybe_in_subresource,
    )


def _own_validator(stock: Any, drafts: Mapping[str, _Draft]) -> Any:
    """Return a class of `jsonschema` with fanout's keywords, numbers and time limit.

    Args:
        stock: The class for a draft.
        drafts: All drafts: a part may name another one.
    """
    from jsonschema import Draft7Validator, Draft201909Validator, validators  # noqa: PLC0415 - slow

    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _check_multiple,
        # Keywords of older drafts, which are found in schemas without `$schema`.
        "dependencies": Draft7Validator.VALIDATORS["dependencies"],
        "$recursiveRef": Draft201909Validator.VALIDATORS["$recursiveRef"],
    }
    timed = {name: _timed(keyword) for name, keyword in {**stock.VALIDATORS, **own}.items()}
    of_values: Any = validators.extend(  # type: ignore[no-untyped-call]
        stock,
        timed,
        type_checker=stock.TYPE_CHECKER.redefine("integer", _is_integer),
    )

    def evolve(self: Any, **changes: Any) -> Any:
        # The stock method would choose a stock class for a part with `$schema`.
        part = changes.get("schema", self.schema)
        named = drafts.get(_name_of_draft(part)) if isinstance(part, Mapping) else None
        return (named.of_values if named else type(self))(
            part,
            registry=self._registry,
            _resolver=changes.get("_resolver", self._resolver),
        )

    of_values.evolve = evolve
    return of_values


def _name_of_draft(schema: Mapping[str, Any]) -> str:
    name = schema.get("$schema")
    return name.partition("://")[2].rstrip("#") if isinstance(name, str) else ""


@contextmanager
def _limited_time(patterns: dict[str, SchemaValidator]) -> Iterator[None]:
    token = _run.set(_Run(time.thread_time() + CHECK_SECONDS, patterns))
    try:
        yield
    finally:
        _run.reset(token)


@contextmanager
def _limited_stack() -> Iterator[None]:
    """Raise a RecursionError also where `rpds` panics at the end of Python's stack."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ == "pyo3_runtime":  # which has no Exception for it
            raise RecursionError from None
        raise


def _check_time() -> None:
    if time.thread_time() > _run.get().ends_at:
        raise _TookTooLong


def _timed(keyword: Keyword) -> Keyword:
    """Return the check of a keyword that stops at the time limit, or when nested too deeply."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _check_time()
        run = _run.get()
        run.depth += 1
        try:
            if run.depth > MAX_KEYWORDS_DEEP:
                raise RecursionError
            for error in keyword(validator, value, instance, schema) or ():
                _check_time()
                yield error
        finally:
            run.depth -= 1

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


def _check_multiple(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if validator.is_type(instance, "number") and Fraction(instance) % Fraction(step):
        yield _error(f"{instance!r} is not a multiple of {step!r}")


def _is_integer(checker: Any, value: Any) -> bool:
    del checker
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, Decimal) and value == value.to_integral_value())


def _plain(value: Any) -> Any:
    """Return a JSON value in which equal numbers are written in the same way: 1 and 1.0."""
    if isinstance(value, Decimal):
        return int(value) if _is_integer(None, value) else str(value.normalize())
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _error(message: str) -> Any:
    from jsonschema import ValidationError  # noqa: PLC0415 - slow

    return ValidationError(message)
