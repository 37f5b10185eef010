"""Messages of A2A clients: what makes a job, and what decides about a call."""

from __future__ import annotations

import json
from typing import Any

from a2a.types import Message
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseDict, ParseError
from hypothesis import example, given
from hypothesis import strategies as st

from fanout.orchestrator.approvals import DECISIONS
from fanout.orchestrator.extras.a2a import received
from fanout.orchestrator.extras.a2a.protocol import CONTEXT_LABEL, MESSAGE_LABEL
from fanout.orchestrator.server.access.callers import Caller
from fanout.orchestrator.server.http.models import JobRequest
from tests.fuzz.inputs import FUZZ, MARKS, SIMPLE, json_values, seeds

pytestmark = MARKS

FIELDS = st.sampled_from((
    *("agent", "model", "labels", "limits", "verify", "priority", "output_schema", "interrupt_on", "webhook"),
    *("continues", "at", "description", "context", "idempotency_key", "id", "parent_id", "root_id", "owner"),
    *("tenant", "depth", "snapshot", "max_attempts", "__class__", ""),
)).map("fanout.{}".format)  # fmt: skip
VALUES = json_values(
    st.sampled_from(("timeout_seconds", "network", "team", "type", "a"))
) | st.sampled_from(
    (
        "tester",
        "01aaaaaaaaaaaaaaaaaaaaaaaa",
        "1-1",
        "make test",
        {"a": "b"},
        {"timeout_seconds": 5},
        ["x"],
    )
)
METADATA = st.dictionaries(FIELDS, VALUES, max_size=3)


def confirmation(key: Any, response: Any) -> dict[str, Any]:
    """Return a part with a decision as clients of ADK send it."""
    return {
        "data": {"id": key, "name": "adk_request_confirmation", "response": response},
        "metadata": {"adk_type": "function_response"},
    }


CONFIRMATIONS = st.builds(
    confirmation,
    st.sampled_from(("ap_1", "ap_2", "ap_3", 1, None)),
    st.fixed_dictionaries({}, optional={
        "confirmed": st.booleans() | SIMPLE,
        "payload": st.fixed_dictionaries({}, optional={
            "decision": st.sampled_from(DECISIONS) | SIMPLE, "arguments": VALUES, "response": VALUES,
            "message": SIMPLE,
        }) | VALUES,
        "response": SIMPLE | st.sampled_from(('{"confirmed": true}', "[", "[" * 2000, "null")),
    }) | VALUES,
)  # fmt: skip
PARTS = (
    st.builds(lambda text: {"text": text}, st.text(max_size=20))
    | st.builds(lambda data: {"data": data}, VALUES)
    | st.builds(lambda url: {"url": url, "mediaType": "text/plain"}, st.text(max_size=9))
    | st.builds(
        lambda kind: {"raw": "aGk=", "mediaType": kind},
        st.sampled_from(("text/plain", "x", "*/*", "image/png; a")),
    )
    | CONFIRMATIONS
)
MESSAGES = st.fixed_dictionaries(
    {"parts": st.lists(PARTS, max_size=3)},
    optional={
        "messageId": st.text(max_size=8) | st.just("m" * 300),
        "contextId": st.text(max_size=8),
        "metadata": METADATA,
    },
)
DECISIONS_ONLY = st.fixed_dictionaries({"parts": st.lists(CONFIRMATIONS, min_size=1, max_size=2)})
PLACES = st.builds(
    received.TaskPlace,
    context_id=st.text(max_size=5),
    continues=st.none() | st.just("01bbbbbbbbbbbbbbbbbbbbbbbb"),
    agent=st.none() | st.just("tester"),
)
CALLER = Caller("ann", "ann", "default", frozenset())


def make_message(raw: dict[str, Any]) -> Message | None:
    """Return a message as the protocol's library makes it of JSON; None if it refuses."""
    try:
        message: Message = ParseDict(raw, Message(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, UnicodeError, RecursionError, OverflowError):
        return None
    return message


@FUZZ
@given(MESSAGES, METADATA, PLACES)
def test_a_message_is_the_job_that_its_caller_may_submit_or_refused(
    raw: dict[str, Any], metadata: dict[str, Any], place: received.TaskPlace
) -> None:
    message = make_message(raw)
    if message is None:
        return
    try:
        received.check_parts(message)
        job_id = received.make_task_id(CALLER, message)
        spec = received.specification(job_id, message, metadata, place)
    except A2AError:
        return
    assert spec.id == job_id
    assert spec.description == received.join_texts(message)
    assert (spec.continues, spec.at) == (place.continues, None)
    assert (spec.parent_id, spec.depth) == (None, 0)
    assert place.agent in (None, spec.agent)
    assert spec.labels[CONTEXT_LABEL] == place.context_id
    assert spec.labels[MESSAGE_LABEL] == message.message_id
    plain = JobRequest(description="x").spec(id=job_id)
    for name in type(spec).model_fields.keys() - JobRequest.model_fields.keys() - {"root_id"}:
        assert getattr(spec, name) == getattr(plain, name), name


@FUZZ
@given(MESSAGES | DECISIONS_ONLY, st.sets(st.sampled_from(("ap_1", "ap_2")), max_size=2))
@example({"parts": [confirmation("ap_1", {"response": "[" * 5_000})]}, {"ap_1"})
def test_a_decision_is_about_a_call_that_waits(raw: dict[str, Any], awaited: set[str]) -> None:
    message = make_message(raw)
    if message is None:
        return
    received.text_for_agent(message)
    try:
        answers = received.read_decisions(message, awaited)
    except A2AError:
        return
    assert {one.approval_id for one in answers} <= awaited
    assert len({one.approval_id for one in answers}) == len(answers)
    assert all(one.decision in DECISIONS for one in answers)


def test_the_kept_messages_are_understood() -> None:
    for seed in seeds("a2a"):
        assert make_message(json.loads(seed)) is not None
