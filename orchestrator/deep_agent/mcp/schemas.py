"""JSON schemas of a server's tools: made valid, and made ones that all model providers accept."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_SCHEMA_CHARACTERS = 32_000
"""The length of a tool's schema as JSON, about 8,000 tokens of every request."""

MAX_DESCRIPTION_CHARACTERS = 2_000
"""The length of a tool's description, and of each one in its schema: text from outside that is in
every request."""

MAX_FAULTS = 20
"""Keywords that are removed from one schema because their values are invalid; one with more is
something else."""

MAX_NODES = 1_000
"""Schemas within a schema after its references are replaced: a few lines can refer to millions."""

MAX_FAULT_CHARACTERS = 500
"""The length of a sentence about a value that a schema does not allow; it quotes the value."""

_COMBINED = ("allOf", "anyOf", "oneOf")

_FOR_VALIDATORS = frozenset(
    (
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$dynamicRef",
        "$id",
        "$ref",
        "$schema",
        "$vocabulary",
        "contains",
        "definitions",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "patternProperties",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
"""Keywords that no model needs and that some provider rejects; calls are checked with them."""

_KEY = re.compile(r"[^a-zA-Z0-9_.-]")
_MAX_KEY_CHARACTERS = 64
"""Anthropic accepts no other names of arguments, and no longer ones."""


def type_name(value: Any) -> str:
    """Return what kind of JSON value something is, for a sentence."""
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def arguments_schema(raw: Any) -> dict[str, Any]:
    """Return a valid schema of a tool's arguments from what a server says of them.

    A tool without a schema takes any arguments. Keywords with invalid values are removed: the
    server checks its arguments itself.

    Args:
        raw: The value of `inputSchema`.

    Raises:
        ValueError: It cannot be used; the message says why.
    """
    if raw is None or isinstance(raw, bool):
        return {"type": "object", "properties": {}}
    if not isinstance(raw, dict):
        raise ValueError(f"its schema is {type_name(raw)}, not an object")  # noqa: TRY004 - bad data
    kinds = raw.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if isinstance(kinds, list) and "object" not in kinds:
        raise ValueError("its schema describes something else than an object, which arguments are")
    try:
        if len(json.dumps(raw)) > MAX_SCHEMA_CHARACTERS:
            raise ValueError(f"its schema has more than {MAX_SCHEMA_CHARACTERS} characters")
        schema = copy.deepcopy(raw)
        if not isinstance(schema.get("$schema"), str):
            schema.pop("$schema", None)
        return without_faults({**schema, "type": "object"})
    except RecursionError:
        raise ValueError("its schema is nested too deeply") from None


def without_faults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, in which the keywords with invalid values are removed.

    Raises:
        ValueError: There are too many.
    """
    kind: Any = validator_for(schema, default=Draft202012Validator)
    of_schemas = kind(kind.META_SCHEMA)
    for _ in range(MAX_FAULTS):
        fault = next(of_schemas.iter_errors(schema), None)
        if fault is None:
            return schema
        *place, key = fault.absolute_path
        inner: Any = schema
        for step in place:
            inner = inner[step]
        del inner[key]
    raise ValueError("its schema is invalid")


def make_validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator for a schema from outside.

    Patterns are not checked: one from outside could keep this process busy for ever. References to
    other documents are not followed.
    """
    kind = validator_for(schema, default=Draft202012Validator)
    harmless: Any = extend(kind, {"pattern": None, "patternProperties": None})  # type: ignore[no-untyped-call]
    return harmless(schema, registry=Registry())


def find_fault(validator: Any, value: Any) -> str | None:
    """Return what is wrong with a value, and where; None also if the schema cannot be applied."""
    try:
        fault = best_match(validator.iter_errors(value))
    except (Unresolvable, RecursionError):
        return None
    if fault is None:
        return None
    return f"{fault.json_path.removeprefix('$.')}: {cut(fault.message, MAX_FAULT_CHARACTERS)}"


@dataclass(frozen=True)
class ShownSchema:
    """A schema of arguments as a model gets it."""

    schema: dict[str, Any]
    keys: Mapping[str, str]
    """The server's names of the arguments whose names had to be changed, by the shown ones."""

    def given(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's arguments with the server's names."""
        return {self.keys.get(name, name): value for name, value in args.items()}


def shown_schema(schema: Mapping[str, Any]) -> ShownSchema:
    """Return a valid schema of arguments in the form that every model provider accepts.

    References are replaced by what they refer to, once in a circle; keywords that only matter to
    a validator are left out; alternatives at the top level, which providers reject, become one list
    of arguments. What is lost is still checked when the tool is called.
    """
    top = _Shown(schema).of(schema, frozenset())
    if len(json.dumps(top)) > MAX_SCHEMA_CHARACTERS:  # by its references
        top = {key: _bounded(value) for key, value in schema.items() if key != "$schema"}
    properties = dict(top.get("properties") or {})
    required = set(top.get("required") or ())
    for keyword in _COMBINED:
        branches = [branch for branch in top.get(keyword) or () if isinstance(branch, dict)]
        for branch in branches:
            properties = {**(branch.get("properties") or {}), **properties}
        needed = [set(branch.get("required") or ()) for branch in branches]
        if needed:
            required |= set.union(*needed) if keyword == "allOf" else set.intersection(*needed)
    rest = {key: value for key, value in top.items() if key not in {*_COMBINED, "enum", "const"}}
    names = {_shown_key(name): name for name in reversed(properties)}
    shown = {key: properties[name] for key, name in reversed(names.items())}
    return ShownSchema(
        {
            **rest,
            "type": "object",
            "properties": shown,
            "required": [key for key in shown if names[key] in required],
        },
        {key: name for key, name in names.items() if key != name},
    )


def _shown_key(name: str) -> str:
    return _KEY.sub("_", name)[:_MAX_KEY_CHARACTERS] or "_"


class _Shown:
    """One schema, whose references are replaced."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_NODES

    def of(self, schema: Any, within: frozenset[str]) -> dict[str, Any]:
        """Return a schema in the form for models; a boolean one and one too many are empty.

        Args:
            schema: A schema in the whole.
            within: The references that have led to it.
        """
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return {}
        while isinstance(reference := schema.get("$ref"), str):
            others = {key: value for key, value in schema.items() if key != "$ref"}
            target = {} if reference in within else self._target(reference)
            schema, within = {**target, **others}, within | {reference}
        shown = {
            key: self._keyword(key, value, within)
            for key, value in schema.items()
            if key not in _FOR_VALIDATORS
        }
        if shown.get("type") == "array" and not {"items", "prefixItems"} & set(shown):
            shown["items"] = {}
        if "required" in shown and "properties" in shown:
            shown["required"] = [key for key in shown["required"] if key in shown["properties"]]
        return shown

    def _keyword(self, key: str, value: Any, within: frozenset[str]) -> Any:
        if key == "properties" and isinstance(value, Mapping):
            return {name: self.of(inner, within) for name, inner in value.items()}
        if key in {*_COMBINED, "prefixItems"} and isinstance(value, list):
            return [self.of(inner, within) for inner in value]
        if key == "items" or (key == "additionalProperties" and isinstance(value, Mapping)):
            return self.of(value, within)
        return _bounded(value)

    def _target(self, reference: str) -> Mapping[str, Any]:
        """Return what a reference within the document refers to; empty if there is nothing."""
        found: Any = self._root
        if not reference.startswith("#"):
            return {}
        for step in filter(None, unquote(reference[1:]).split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                found = found.get(key) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def _bounded(value: Any) -> Any:
    """Return a value with its texts cut."""
    if isinstance(value, Mapping):
        return {key: _bounded(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_bounded(inner) for inner in value]
    return cut(value) if isinstance(value, str) else value


def cut(text: str, most: int = MAX_DESCRIPTION_CHARACTERS) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
