"""A job's schema reaches no network and no file, and no schema or answer takes long to check."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fanout.orchestrator import output_schema
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition, AgentDefinitions
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.deep_agent import OutputMismatch, OutputSchema
from fanout.orchestrator.delegation.agents import create_agent
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.output_schema import InvalidOutputSchema, SchemaCheck, ValueMismatch
from tests.builders import make_spec

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


class Listener:
    """Counts the connections to a port."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                accepted, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            accepted.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    time.sleep(0.05)  # a connection would be accepted by then
    found.close()
    assert found.connections == 0


def remote(reference: str) -> list[dict[str, Any]]:
    return [
        {"$ref": reference},
        {"properties": {"a": {"$ref": reference}}},
        {"$dynamicRef": reference},
        {"allOf": [{"not": {"$ref": reference}}]},
        {"$defs": {"a": {"items": {"$recursiveRef": reference}}}, "$ref": "#/$defs/a"},
        {"$id": reference, "$ref": "other.json"},
    ]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize(
    "form", ["http://127.0.0.1:{}/s.json", "//127.0.0.1:{}/s", "HTTP://[::1]:{}/x#/a"]
)
def test_a_reference_to_another_host_is_refused_and_nothing_connects(listener, form, number):
    schema = remote(form.format(listener.port))[number]

    with pytest.raises(InvalidOutputSchema, match=r"refers to|no part|not a JSON Schema"):
        SchemaCheck(schema)


def test_an_identifier_on_another_host_is_never_fetched(listener):
    url = f"http://127.0.0.1:{listener.port}/schema.json"
    schema = {
        "$id": url,
        "$schema": url,
        "$defs": {"a": {"$id": f"{url}/a", "type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/a"}},
    }

    SchemaCheck(schema).check({"a": 1})

    with pytest.raises(ValueMismatch):
        SchemaCheck(schema).check({"a": "no number"})


@pytest.mark.parametrize(
    "reference", ["file:///etc/passwd", "/etc/passwd", "passwd", "#anchor", "urn:x", "data:,{}"]
)
def test_a_reference_to_a_file_is_refused_and_not_quoted(reference):
    with pytest.raises(InvalidOutputSchema) as refusal:
        SchemaCheck({"$ref": reference})

    assert "root:" not in str(refusal.value)


def test_references_within_the_schema_work():
    check = OutputSchema(
        {
            "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "$ref": "#/$defs/tree",
        }
    )

    assert check.parse("[[], [[]]]") == [[], [[]]]
    with pytest.raises(OutputMismatch, match=r"\$\[0\]\[0\]"):
        check.parse("[[1]]")
    with pytest.raises(InvalidOutputSchema, match="no part"):
        SchemaCheck({"$ref": "#/$defs/gone"})


@pytest.fixture(autouse=True)
def a_short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_schema, "CHECK_SECONDS", 0.3)


def is_quick(began: float) -> bool:
    """Whether it took little of the processor: what has no bound takes minutes."""
    return time.thread_time() - began < 15


EXPONENTIAL = ["^(a|a)*$", "(x+x+)+y", "(a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$"]


@pytest.mark.parametrize("pattern", EXPONENTIAL)
@pytest.mark.parametrize(
    "of",
    [
        lambda pattern: {"pattern": pattern},
        lambda pattern: {"patternProperties": {pattern: False}},
        lambda pattern: {"patternProperties": {pattern: {}}, "additionalProperties": False},
        lambda pattern: {"propertyNames": {"pattern": pattern}},
        # A part that names a draft of its own would be checked by its stock keywords.
        lambda pattern: {"allOf": [{"$schema": DRAFT_7, "pattern": pattern}]},
    ],
)
def test_a_pattern_takes_linear_time(pattern, of):
    check = OutputSchema(of(pattern))
    began = time.thread_time()

    for text in ("a" * 50_000 + "!", "x" * 50_000):
        for answer in (text, {text: 1}):
            with suppress(OutputMismatch):
                check.parse(json.dumps(answer))
    assert is_quick(began)


@pytest.mark.parametrize(
    "pattern", ["((((a{1000}){1000}){1000}){1000})", "(?=a)b", r"(a)\1", "(", "a" * 2000]
)
def test_a_pattern_that_cannot_be_bounded_is_refused(pattern):
    began = time.thread_time()
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(InvalidOutputSchema, match="pattern"):
            SchemaCheck(schema)
    assert is_quick(began)


def test_many_slow_patterns_are_refused_together():
    began = time.thread_time()
    patterns = {f"p{number}": {"pattern": f"{number}\\w{{100}}"} for number in range(1500)}

    with pytest.raises(InvalidOutputSchema, match="too long"):
        SchemaCheck({"properties": patterns})
    assert is_quick(began)


def test_patterns_mean_what_they_meant():
    check = SchemaCheck({"pattern": r"^\d{3}-[a-z]+$"})

    check.check("123-abc")
    check.check(7)
    for wrong in ("x123-abc", "123-ABC", "123-abc!"):
        with pytest.raises(Exception, match="does not match"):
            check.check(wrong)


def doubling(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice."""
    defs: dict[str, Any] = {
        f"l{level}": {"allOf": [{"$ref": f"#/$defs/l{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$defs": {**defs, f"l{levels}": {}}, "$ref": "#/$defs/l0"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        doubling(30),
        {"anyOf": [{"not": {"$ref": "#"}}, {"$ref": "#"}]},
        {"unevaluatedProperties": False, "$ref": "#"},
        {"allOf": [{"$dynamicRef": "#"}]},
    ],
)
def test_a_schema_that_multiplies_itself_ends(schema):
    began = time.thread_time()

    with pytest.raises(OutputMismatch):
        OutputSchema(schema).parse("{}")
    assert is_quick(began)


def test_a_large_answer_with_unique_items_ends():
    began = time.thread_time()
    answer = json.dumps([{"n": number} for number in range(50_000)])

    with suppress(OutputMismatch):
        OutputSchema({"uniqueItems": True, "items": {"type": "object"}}).parse(answer)
    assert is_quick(began)


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False),
        ([True, 1], True),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], False),
        (["1", 1], True),
    ],
)
def test_unique_items_compare_as_json_does(items, unique):
    check = SchemaCheck({"uniqueItems": True})
    if unique:
        check.check(items)
    else:
        with pytest.raises(Exception, match="non-unique"):
            check.check(items)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (nested(2000), "deep"),
        ({"enum": ["x" * 100_000]}, "bytes"),
        ({"required": [*range(9000), "x"]}, "not a JSON Schema"),
        ({"type": "no-type"}, "not a JSON Schema"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "unevaluatedProperties"),
        (
            {"allOf": [{"patternProperties": {"a": {}}}], "unevaluatedProperties": False},
            "unevaluatedProperties",
        ),
    ],
)
def test_a_schema_that_is_too_large_or_wrong_is_refused(schema, why):
    began = time.thread_time()

    with pytest.raises(InvalidOutputSchema, match=why):
        SchemaCheck(schema)
    assert is_quick(began)


def test_an_answer_that_is_nested_deeply_ends_with_a_sentence():
    check = OutputSchema(
        {
            "$defs": {
                "tree": {"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
            },
            "$ref": "#/$defs/tree",
        }
    )

    for depth in (20, 110, 300):  # the middle one is where the stack ends within a library
        answer = '{"a": [' * depth + "]}" * depth
        if depth == 20:
            check.parse(answer)
        else:
            with pytest.raises(OutputMismatch, match="nested too deeply"):
                check.parse(answer)


@pytest.mark.parametrize("answer", ["[" * 200_000, "```json\n" * 100_000, "```" * 100_000])
def test_an_answer_that_is_no_json_ends(answer):
    began = time.thread_time()

    with pytest.raises(OutputMismatch):
        OutputSchema({}).parse(answer)
    assert is_quick(began)


def test_the_last_fenced_block_is_the_answer():
    text = 'First\n```json\n{"a": 1}\n```\nor rather\n```json\n{"a": 2}\n```\ndone'

    assert OutputSchema({"type": "object"}).parse(text) == {"a": 2}


@pytest.fixture
def settings() -> Settings:
    return Settings(redis_url="redis://127.0.0.1:1/0")


async def test_a_client_refuses_a_schema_before_anything_is_stored(settings, listener):
    definition = AgentDefinition(name="a", description="x", instruction="x")
    schema = {"$ref": f"http://127.0.0.1:{listener.port}/"}
    async with JobClient(
        "redis://127.0.0.1:1/0", settings, AgentDefinitions({"a": definition})
    ) as client:
        with pytest.raises(InvalidJob, match="refers to"):
            await client.submit(make_spec(agent="a", output_schema=schema))


def test_a_definition_with_such_a_schema_is_refused(listener):
    schema = {"$ref": f"http://127.0.0.1:{listener.port}/"}

    with pytest.raises(ValueError, match="refers to"):
        AgentDefinition(name="a", description="x", instruction="x", output_schema=schema)


def test_the_worker_refuses_what_somebody_wrote_into_the_ledger(listener):
    definition = AgentDefinition(name="a", description="x", instruction="x")
    schema = {"$ref": f"http://127.0.0.1:{listener.port}/"}

    with pytest.raises(InvalidJob, match="refers to"):
        create_agent(
            definition,
            "scripted:x",
            [],
            added_instruction="",
            files_folder="/",
            output_schema=schema,
        )
