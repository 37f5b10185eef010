"""JSON Schemas of tools of others' servers, and of the answers that callers want."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from fanout.orchestrator.deep_agent.mcp import schemas
from fanout.orchestrator.output_schema import InvalidOutputSchema, SchemaCheck, ValueMismatch
from tests.fuzz.inputs import FUZZ, MARKS, SIMPLE, damaged, json_values, nested

pytestmark = MARKS

KEYWORDS = (
    *(
        "type",
        "properties",
        "items",
        "required",
        "$ref",
        "$defs",
        "definitions",
        "anyOf",
        "oneOf",
        "allOf",
    ),
    *(
        "enum",
        "const",
        "pattern",
        "$id",
        "$schema",
        "additionalProperties",
        "multipleOf",
        "description",
    ),
    *(
        "$dynamicRef",
        "$anchor",
        "if",
        "then",
        "not",
        "prefixItems",
        "minItems",
        "format",
        "dependencies",
        "a",
    ),
)
LEAVES = SIMPLE | st.sampled_from((
    *("object", "array", "string", "number", "#", "#/$defs/a", "#/properties/a", "#/anyOf/0", "other.json"),
    *("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"),
    *("(a+)+$", "["),
))  # fmt: skip
KEYS = st.sampled_from(KEYWORDS)


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {"description": data.decode("utf-8", "replace")}


SCHEMAS = (
    st.dictionaries(KEYS, json_values(KEYS, LEAVES), max_size=6)
    | st.dictionaries(
        st.sampled_from(("$ref", "$defs", "properties", "anyOf")),
        json_values(KEYS, LEAVES),
        min_size=1,
    )
    | damaged("schemas", (b"null", b"{}", b"[]", b'"#"', b"true")).map(parsed)
)
VALUES = json_values(st.sampled_from(("a", "items", "name", "next", "total")))


@FUZZ
@given(SCHEMAS)
@example(nested(2_000, "properties", is_list=False))
def test_a_tool_of_another_server_has_a_schema_for_models_or_is_left_out(raw: Any) -> None:
    try:
        schema = schemas.arguments_schema(raw)
        shown = schemas.shown_schema(schema)
    except ValueError:
        return
    validator_for(schema, default=Draft202012Validator).check_schema(schema)
    assert shown.schema["type"] == "object"
    assert set(shown.schema["required"]) <= set(shown.schema["properties"])
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in shown.schema["properties"])
    assert "$ref" not in json.dumps(keywords_of(shown.schema))
    fault = schemas.find_fault(schemas.make_validator(schema), {"a": 1})
    assert fault is None or isinstance(fault, str)


def keywords_of(schema: Any) -> list[str]:
    """Return the keywords of a schema and of those in it, not the names of properties."""
    if not isinstance(schema, dict):
        return []
    inner = [
        *schema.get("properties", {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    for combined in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner += schema[combined] if isinstance(schema.get(combined), list) else []
    return [*schema, *(keyword for part in inner for keyword in keywords_of(part))]


@FUZZ
@given(SCHEMAS, VALUES)
@example({"$ref": None}, None)
def test_an_answer_is_checked_or_the_schema_is_refused(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    why = "it is as the schema says"
    try:
        SchemaCheck(schema).check(value)
    except (InvalidOutputSchema, ValueMismatch) as refusal:
        why = str(refusal)
    assert why
