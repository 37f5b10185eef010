"""What an agent does, and what clients answer, in the types of A2A."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import Message, Part
from a2a.utils.errors import InvalidParamsError
from google.adk.events import Event
from google.genai import types

from fanout.orchestrator.configuration.api_settings import Scope
from fanout.orchestrator.extras.a2a.agent_events import fill
from fanout.orchestrator.extras.a2a.approval_requests import HITL_URI
from fanout.orchestrator.extras.a2a.protocol import data_part
from fanout.orchestrator.extras.a2a.received import (
    CallDecision,
    TaskPlace,
    make_task_id,
    read_decisions,
    read_files,
    specification,
)
from fanout.orchestrator.server.access.callers import Caller


def converted(*parts: types.Part, **fields: Any) -> Message:
    message = Message(task_id="t", context_id="c")
    event = Event(author="agent", content=types.Content(parts=list(parts)), **fields)
    assert fill(message, event.model_dump_json())
    return message


def test_each_kind_of_part_has_the_metadata_of_adk_and_a_models_error_text_is_left_out():
    message = converted(
        types.Part(text="Hm.", thought=True),
        types.Part(function_call=types.FunctionCall(id="1", name="slow", args={"n": 2})),
        types.Part(function_call=types.FunctionCall(id="2", name="adk_request_confirmation")),
        types.Part(function_response=types.FunctionResponse(id="1", name="slow", response={})),
        types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)),
        types.Part(
            code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK)
        ),
        types.Part(
            file_data=types.FileData(file_uri="https://a.example/b", mime_type="text/plain")
        ),
        types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png")),
        long_running_tool_ids={"1"},
        error_code="503",
        error_message="the key is sk-SECRET123",
    )
    kinds = [part.metadata.fields["adk_type"].string_value for part in message.parts]
    assert kinds == [
        *("", "function_call", "function_response", "executable_code"),
        *("code_execution_result", "", ""),
    ]
    assert message.parts[0].metadata["adk_thought"] is True
    assert message.parts[1].metadata["adk_is_long_running"] is True
    assert message.parts[5].url == "https://a.example/b"
    assert message.parts[6].raw == b"x"
    assert message.metadata["adk_error_code"] == "503"
    assert "SECRET" not in str(message)
    assert "adk_actions" not in message.metadata


def confirmed(approval_id: str, **response: Any) -> Part:
    data = {"id": approval_id, "name": "adk_request_confirmation", "response": response}
    return data_part(data, adk_type="function_response")


def test_a_decision_names_awaited_calls_once_each():
    def parts(*given: Part) -> list[CallDecision]:
        return read_decisions(Message(parts=given), {"a", "b"})

    assert parts(Part(text="yes")) == []
    assert parts(data_part({"confirmed": True})) == []
    assert parts(confirmed("a", confirmed=True)) == [CallDecision("a", "approve")]
    edit = {"decision": "edit", "arguments": {"command": "ls"}}
    assert parts(confirmed("a", confirmed=True, payload=edit))[0].arguments == {"command": "ls"}
    assert parts(confirmed("a", confirmed=False, payload=edit)) == [CallDecision("a", "reject")]
    inner = confirmed("b", response='{"confirmed": false}')
    assert parts(inner) == [CallDecision("b", "reject")]
    for wrong in (
        [confirmed("c", confirmed=True)],
        [confirmed("a", confirmed=True), confirmed("a", confirmed=False)],
        [confirmed("a", confirmed="yes")],
        [confirmed("a", confirmed=True, payload={"decision": "run"})],
    ):
        with pytest.raises(InvalidParamsError):
            parts(*wrong)


def test_the_typed_extension_decides_about_every_call_or_about_none():
    def typed(*approvals: dict[str, Any]) -> list[CallDecision]:
        message = Message(extensions=[HITL_URI])
        payload = {"type": "tool_approval_response", "approvals": list(approvals)}
        message.metadata.update({HITL_URI: payload})
        return read_decisions(message, {"a", "b"})

    yes, no = {"id": "a", "approved": True}, {"id": "b", "approved": False}
    assert typed(yes, no) == [CallDecision("a", "approve"), CallDecision("b", "reject")]
    for wrong in (
        [yes],
        [],
        [yes, no, {"id": "c", "approved": True}],
        [yes, yes, no],
        [{"id": "a"}],
    ):
        with pytest.raises(InvalidParamsError):
            typed(*wrong)


def test_a_message_is_a_job_of_its_owner_and_sets_only_fields_of_jobs():
    def caller(owner: str) -> Caller:
        return Caller(owner, owner, "default", frozenset(Scope))

    def spec(metadata: dict[str, Any], agent: str | None = None, *parts: Part) -> Any:
        message = Message(message_id="m", parts=parts or [Part(text="write"), data_part({"n": 2})])
        return specification("j", message, metadata, TaskPlace("c", None, agent))

    once = Message(message_id="m")
    assert make_task_id(caller("ann"), once) == make_task_id(caller("ann"), once)
    assert make_task_id(caller("ann"), once) != make_task_id(caller("bob"), once)
    made = spec({"fanout.model": "scripted:x", "fanout.limits": {"max_tool_calls": 3.0}})
    assert (made.agent, made.model, made.context) == (
        "general-purpose",
        "scripted:x",
        '{\n  "n": 2\n}',
    )
    assert made.limits.max_tool_calls == 3
    assert spec({}, "tester").agent == "tester"
    for metadata, agent in (
        ({"fanout.owner": "ann"}, None),
        ({"fanout.continues": "x"}, None),
        ({"fanout.agent": "Not A Name"}, None),
        ({"fanout.labels": 3}, None),
        ({"fanout.agent": "reviewer"}, "tester"),
    ):
        with pytest.raises(InvalidParamsError):
            spec(metadata, agent)
    with pytest.raises(InvalidParamsError):
        spec({}, None, Part(text="  "))
    for wrong in (Message(), Message(message_id="x" * 201), Message(message_id="a\nb")):
        with pytest.raises(InvalidParamsError):
            make_task_id(caller("ann"), wrong)
    assert list(read_files(Message(parts=[Part(raw=b"1", media_type="text/csv")]))) == [
        "file-1.csv"
    ]
    with pytest.raises(InvalidParamsError):
        read_files(Message(parts=[Part(raw=b"1", filename="a"), Part(raw=b"2", filename="a")]))
