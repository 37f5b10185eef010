"""The schema of a server's tool, as the model gets it and as calls are checked."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest

from fanout.orchestrator.deep_agent.mcp.schemas import (
    MAX_SCHEMA_CHARACTERS,
    arguments_schema,
    shown_schema,
)
from fanout.orchestrator.deep_agent.mcp.tools import McpTool

TEXT = {"type": "string"}


def shown(**schema: Any) -> dict[str, Any]:
    return shown_schema(arguments_schema({"type": "object", **schema})).schema


@pytest.mark.parametrize(
    ("schema", "properties"),
    [
        ({}, {}),
        ({"properties": {"a": True, "b": False}}, {"a": {}, "b": {}}),
        ({"properties": {"a": {"type": "array"}}}, {"a": {"type": "array", "items": {}}}),
        (
            {"properties": {"a": {"$ref": "#/$defs/A", "description": "x"}}, "$defs": {"A": TEXT}},
            {"a": {**TEXT, "description": "x"}},
        ),
        (
            {"properties": {"a": TEXT, "b": {"$ref": "#/properties/a"}}},
            {"a": TEXT, "b": TEXT},
        ),
        ({"properties": {"a": {"$ref": "#/definitions/x%20y"}}, "definitions": {"x y": TEXT}}, {"a": TEXT}),
        ({"properties": {"a": {"$ref": "https://example.org/a"}}}, {"a": {}}),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, {"a": {}}),
        (
            {"properties": {"a": {**TEXT, "not": {"const": "x"}, "$comment": "c"}}},
            {"a": TEXT},
        ),
        ({"properties": {"a": {"type": "strnig"}}}, {"a": {}}),
        ({"properties": {"a": {**TEXT, "required": True}}}, {"a": TEXT}),
        ({"properties": {"$filter": TEXT, "a b": TEXT}}, {"_filter": TEXT, "a_b": TEXT}),
        (
            {"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"properties": {"a": TEXT}}}},
            {"a": TEXT},
        ),
        (
            {"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
            {"a": TEXT, "b": TEXT},
        ),
    ],
)  # fmt: skip
def test_a_model_gets_arguments_that_every_provider_accepts(
    schema: dict[str, Any], properties: dict[str, Any]
) -> None:
    assert shown(**schema) == {"type": "object", "properties": properties, "required": []}


def test_an_argument_is_required_if_all_alternatives_require_it() -> None:
    a, b = {"properties": {"a": TEXT, "c": TEXT}, "required": ["a", "c"]}, {"required": ["c", "d"]}

    assert shown(anyOf=[a, b], properties={"d": TEXT})["required"] == ["c"]
    assert set(shown(allOf=[a, b], properties={"d": TEXT})["required"]) == {"a", "c", "d"}
    assert shown(properties={"a": TEXT}, required=["a", "b"])["required"] == ["a"]


def test_a_schema_that_refers_to_itself_ends() -> None:
    children = {"type": "array", "items": {"$ref": "#/$defs/N"}}
    node = {"type": "object", "properties": {"children": children}}

    found = shown(properties={"root": {"$ref": "#/$defs/N"}}, **{"$defs": {"N": node}})

    inner = found["properties"]["root"]["properties"]["children"]
    assert inner == {"type": "array", "items": {}}
    assert shown(**{"$ref": "#"})["properties"] == {}


def test_references_that_multiply_stay_small() -> None:
    defs: dict[str, Any] = {"L0": TEXT}
    for level in range(1, 12):
        of = {"$ref": f"#/$defs/L{level - 1}"}
        defs[f"L{level}"] = {"type": "object", "properties": {str(n): of for n in range(10)}}

    found = shown(properties={"a": {"$ref": "#/$defs/L11"}}, **{"$defs": defs})

    assert len(json.dumps(found)) < 2 * MAX_SCHEMA_CHARACTERS


async def test_what_a_model_does_not_see_is_checked_when_it_calls() -> None:
    schema = arguments_schema(
        {"anyOf": [{"required": ["$a"]}, {"required": ["b"]}], "properties": {"$a": TEXT, "b": {}}}
    )
    calls = _Calls()
    tool = McpTool("x__y", mcp_types.Tool(name="y", input_schema=schema), calls)

    refused = await tool.run_async(args={"c": 1}, tool_context=None)
    taken = await tool.run_async(args={"_a": "x"}, tool_context=None)

    assert "wrong arguments" in refused["error"]
    assert taken == {"status": "success"}
    assert calls.made == [{"$a": "x"}]


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"$ref": "#"}},
        {"a": {"$ref": "#/properties/a"}},
        {"a": {"$ref": "https://example.org/a"}},
        {"a": {"$dynamicRef": "#x"}},
    ],
)
async def test_a_schema_that_cannot_be_applied_leaves_the_check_to_the_server(
    properties: dict[str, Any],
) -> None:
    schema = arguments_schema({"type": "object", "properties": properties})
    tool = McpTool("x__y", mcp_types.Tool(name="y", input_schema=schema), _Calls())

    assert await tool.run_async(args={"a": {}}, tool_context=None) == {"status": "success"}


class _Calls:
    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    async def call(self, _tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.made.append(arguments)
        return {"status": "success"}
