"""The interface changes only where somebody sees it: in the frozen description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.unit.server.openapi import FROZEN, described


def schemas_in(node: Any) -> Iterator[dict[str, Any]]:
    """All that has a default or examples, at any depth."""
    if isinstance(node, dict):
        if {"default", "examples"} & node.keys() and not isinstance(node.get("default"), dict):
            yield node
        node = list(node.values())
    for one in node if isinstance(node, list) else ():
        yield from schemas_in(one)


def test_every_default_and_example_fits_its_own_schema() -> None:
    document = json.loads(described().replace('"#/', '"urn:document#/'))
    resource = DRAFT202012.create_resource(document)
    registry: Registry[Any] = Registry().with_resource("urn:document", resource)
    checked = 0
    for schema in schemas_in(document):
        for value in (
            *([schema["default"]] if "default" in schema else ()),
            *schema.get("examples", ()),
        ):
            Draft202012Validator(schema, registry=registry).validate(value)
            checked += 1
    assert checked > 50


def test_the_frozen_description_is_that_of_the_code() -> None:
    now = described()
    assert now == FROZEN.read_text(encoding="utf-8"), "run `make openapi`, and review the diff"
    document = json.loads(now)
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    known = {tag["name"] for tag in document["tags"]}
    assert {tag for one in operations for tag in one["tags"]} == known
    assert all(one["tags"] and one.get("description") for one in operations)
    assert all(
        "application/problem+json" in str(one) or "Problem4" in str(one) for one in operations
    )
