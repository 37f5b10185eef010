"""Which answers fit a schema: numbers, fences, references, and schemas of every form."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel

from fanout.orchestrator.deep_agent import OutputMismatch, OutputSchema
from fanout.orchestrator.output_schema import InvalidOutputSchema, SchemaCheck
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, scripted

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
OBJECT = {"type": "object"}


def fits(schema: Any, value: Any) -> bool:
    try:
        OutputSchema(schema).parse(json.dumps(value))
    except OutputMismatch:
        return False
    return True


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        ({"multipleOf": 0.01}, 19.99, 19.999),
        ({"multipleOf": 0.1}, 0.3, 0.35),
        ({"multipleOf": 1e-300}, 1e308, 1.5e-301),
        ({"multipleOf": 3}, 3 * 10**40, 10**40),
        ({"maximum": 1e23}, 10**23, 10**23 + 1),
        ({"exclusiveMinimum": 0.3}, 0.30000000000000004, 0.3),
        ({"$schema": DRAFT_4, "minimum": 0.1, "exclusiveMinimum": True}, 0.11, 0.1),
        ({"enum": [1e23, 0.1]}, 10**23, 0.2),
        ({"const": 1.0}, 1, True),
        ({"type": "integer"}, 2.0, 2.5),
        ({"uniqueItems": True}, [1.5, 1], [1, 1.0]),
    ],
)
def test_numbers_are_compared_as_they_are_written(schema, fitting, other) -> None:
    assert fits(schema, fitting)
    assert not fits(schema, other)


def test_a_number_is_returned_as_it_was_sent() -> None:
    answer = OutputSchema(OBJECT).parse('{"a": 12345678901234567890, "b": 19.99, "c": 1.0}')

    assert json.dumps(answer) == '{"a": 12345678901234567890, "b": 19.99, "c": 1.0}'


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('{"a": 1e999}', "too large"),
        (f'{{"a": 1{"0" * 400}}}', "too large"),
        (f'{{"a": -1{"0" * 100_000}}}', "too large"),
        ('```json\n{"a": NaN}\n```', "NaN is not a number"),
        ('{"a": 1, "a": 2}', "'a' has two different values"),
        ('```json\n{"a": 1,}\n```', "line 1, column 9"),
        ('The answer is {"a": 1}.', "not JSON"),
    ],
)
def test_what_readers_of_json_understand_differently_is_refused(answer, why) -> None:
    with pytest.raises(OutputMismatch, match=why):
        OutputSchema(OBJECT).parse(answer)


@pytest.mark.parametrize(
    "answer",
    [
        '```json\n{"a": "Use ```js\\ncode\\n``` here"}\n```',
        '```JSON\n{"a": 1}\n```',
        '```Json title="answer.json"\n{"a": 1}\n```',
        '~~~json\n{"a": 1}\n~~~',
        '````json\n{"a": "```"}\n````',
        '```\n{"a": 1}\n```',
        '   ```json\n   {"a": 1}\n   ```',
        'Here:\n\n1. Answer\n\n   ```json\n   {"a":\n     1}\n   ```\n\nDone.',
        '> ```json\n> {"a": 1}\n> ```',
        '```json\r\n{"a": 1}\r\n```\r\n',
        '```json\n{"a": 1}',
        '\ufeff{"a": 1}',
        '\ufeff```json\n{"a": 1}\n```',
        '```json\n\ufeff{"a": 1}\n```',
        'For example\n```python\n{"b": 1}\n```\nand\n```json\n{"a": 1}\n```',
        '```json\n{"a": 1}\n```\nTo send it:\n```js\n{"b": 2}\n```',
        '```json\n{"a": 1}\n```\nThe list was\n```json\n[1]\n```',
    ],
)
def test_the_answer_is_found_in_its_fence(answer) -> None:
    assert "a" in OutputSchema(OBJECT).parse(answer)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/foo%22bar", "$defs": {'foo"bar': {"type": "integer"}}},
        {"$ref": "#/$defs/a~1b~0c%25", "$defs": {"a/b~c%": {"type": "integer"}}},
        {"$ref": "#/$defs/%E2%82%AC", "$defs": {"€": {"type": "integer"}}},
        {"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"type": "integer"}}}},
        {"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "integer"}}},
        {
            "$id": "https://example.com/schemas/root.json",
            "$ref": "item.json",
            "$defs": {"i": {"$id": "item.json", "$ref": "#/$defs/n", "$defs": {"n": False}}},
        },
        {
            "$id": "schemas/a.json",
            "$ref": "b.json",
            "$defs": {"b": {"$id": "b.json", "type": "null"}},
        },
        {"$id": "urn:example:r", "$ref": "urn:example:r#/$defs/n", "$defs": {"n": False}},
        {
            "$schema": DRAFT_7,
            "$ref": "#/definitions/Page%3CItem%3E",
            "definitions": {"Page<Item>": {"type": "integer"}},
        },
        {"$ref": "#a", "definitions": {"x": {"$id": "#a", "type": "integer"}}},
        {
            "id": "http://example.com/root.json",
            "allOf": [{"$ref": "item.json"}],
            "definitions": {"i": {"id": "item.json", "type": "integer"}},
        },
        {"$ref": DRAFT_7},
        {"properties": {"b": {"$schema": DRAFT_7, "$ref": "#/definitions/b", "type": "null"}}}
        | {"definitions": {"b": {"type": "integer"}}},
    ],
)
def test_a_reference_leads_to_its_part(schema) -> None:
    assert not fits(schema, {"b": "x", "type": "no-type"})


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 2}, {"a": 1}),
        (
            {"$schema": DRAFT_7, "dependencies": {"a": {"required": ["b"]}, "c": ["d"]}},
            {"a": 1, "b": 2},
            {"a": 1},
        ),
        (
            {"dependencies": {"c": ["d"], "a": {"$ref": "#b"}}}
            | {"$defs": {"x": {"$anchor": "b", "required": ["b"]}}},
            {"a": 1, "b": 2},
            {"a": 1},
        ),
        ({"items": [{"type": "integer"}], "additionalItems": False}, [1], [1, 2]),
        (
            {
                "$schema": DRAFT_2019,
                "$recursiveAnchor": True,
                "properties": {"next": {"$recursiveRef": "#"}, "value": {"type": "integer"}},
            },
            {"next": {"value": 1}},
            {"next": {"next": {"value": "x"}}},
        ),
        (
            {
                "$id": "https://example.com/strict",
                "$dynamicAnchor": "node",
                "$ref": "tree",
                "unevaluatedProperties": False,
                "$defs": {
                    "tree": {
                        "$id": "tree",
                        "$dynamicAnchor": "node",
                        "properties": {"child": {"$dynamicRef": "#node"}},
                    }
                },
            },
            {"child": {"child": {}}},
            {"child": {"children": {}}},
        ),
        (
            {
                "$schema": DRAFT_7,
                "properties": {"a": {"$ref": "#/definitions/n", "maximum": 1}},
                "definitions": {"n": {"type": "integer"}},
            },
            {"a": 5},
            {"a": "x"},
        ),
        ({"enum": [{"$ref": "https://example.com/"}]}, {"$ref": "https://example.com/"}, {}),
    ],
)
def test_keywords_mean_what_their_draft_says(schema, fitting, other) -> None:
    assert fits(schema, fitting)
    assert not fits(schema, other)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "#/required", "required": ["a"]}, "'#/required', which is not a JSON Schema"),
        ({"$ref": "#/$defs/a", "$defs": {}}, "no part '#/\\$defs/a'"),
        ({"$ref": "other.json#/a"}, "nothing is fetched"),
        ({"$ref": "http://[::1"}, "nothing is fetched"),
        ({"minimum": float("inf")}, "not JSON"),
        ({"$id": "a/b.json", "$ref": "c.json"}, "'c.json', which is not in it"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_at_once(schema, why) -> None:
    with pytest.raises(InvalidOutputSchema, match=why):
        SchemaCheck(schema)


@dataclass
class Point:
    x: int
    y: Decimal = Decimal(0)


class Day(BaseModel):
    when: date
    points: list[Point] = []


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        (Point, {"x": 1, "y": 19.99}, {"x": "one"}),
        (Day, {"when": "2026-11-27", "points": [{"x": 1}]}, {"when": "Friday"}),
        (list[Day], [{"when": "2026-11-27"}], {"when": "2026-11-27"}),
        (dict, {"a": 1}, [1]),
        (dict[str, int], {"a": 1}, {"a": "x"}),
        (int | Day, {"when": "2026-11-27"}, "x"),
        ({"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}, {"a": 1}, {"a": "x"}),
        (
            types.Schema(type=types.Type.ARRAY, items=types.Schema(type=types.Type.INTEGER)),
            [1],
            ["x"],
        ),
    ],
    ids=str,
)
async def test_an_agent_takes_each_form_of_a_schema_that_adk_takes(schema, fitting, other) -> None:
    replies = [{"text": json.dumps(other)}, {"text": json.dumps(fitting)}]

    run = await Run(scripted(replies), output_schema=schema).to_end()

    assert json.loads(run.text) == fitting
    assert "does not fit" in run.results[0]["error"]


async def test_a_sub_agent_answers_with_a_list_of_models() -> None:
    asks = {"calls": [call("task", description="x", subagent_type="days")]}
    model = scripted([asks, {"text": "done"}])
    child = scripted([{"text": '```JSON\n[{"when": "2026-11-27"}]\n```'}], name="days")
    spec = {"name": "days", "description": "x", "output_schema": list[Day], "model": child}

    run = await Run(model, subagents=[spec]).to_end()

    assert run.results[0]["output"] == [{"when": "2026-11-27"}]


def test_an_unknown_type_in_a_schema_is_refused_in_the_words_of_json_schema() -> None:
    with pytest.raises(InvalidOutputSchema, match="'any' is not valid"):
        OutputSchema({"type": "any"})


@pytest.mark.parametrize("schema", [3, "no such type"])
def test_what_is_no_schema_is_refused_in_words(schema) -> None:
    with pytest.raises(ValueError, match="output_schema"):
        OutputSchema(schema)
