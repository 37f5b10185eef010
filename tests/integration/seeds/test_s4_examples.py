"""S4: tasks over A2A, event conversion, approvals as `input_required`, MCP tools and models.

The seed describes a server of kagent in a table of components and has no programs, so each test
begins with what it says.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
from a2a.types import GetTaskRequest, Message, Part, TaskState
from google.adk.events import Event
from google.genai import types
from google.protobuf.json_format import MessageToDict

from fanout import McpServer, McpTools
from fanout.orchestrator.approvals import DECISIONS
from fanout.orchestrator.deep_agent import ResilientModel, resolve_model
from fanout.orchestrator.extras.a2a.agent_events import fill
from fanout.orchestrator.extras.a2a.approval_requests import HITL_URI, AwaitedCall, asking
from fanout.orchestrator.extras.a2a.protocol import STATES
from fanout.orchestrator.extras.a2a.received import CallDecision, read_decisions
from fanout.orchestrator.extras.a2a.tasks import next_state
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.state import JobRecord, JobState
from tests.integration.a2a.conftest import (  # noqa: F401
    Server,
    events,
    last_state,
    message,
    other_server,
    place,
    server,
)
from tests.integration.a2a.test_approvals import HITL
from tests.integration.a2a.test_approvals import asking as asking_task
from tests.integration.a2a.test_tasks import states
from tests.integration.scripts import call, says
from tests.mcp_servers import http_server, url_of
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import recorder


def converted(*parts: types.Part, **fields: Any) -> Message:
    """An event of ADK as a message of the protocol."""
    made = Message(task_id="t", context_id="c")
    event = Event(author="agent", content=types.Content(parts=list(parts)), **fields)
    assert fill(made, event.model_dump_json())
    return made


def record(job_id: str, **fields: Any) -> JobRecord:
    return JobRecord(
        id=job_id,
        agent=fields.pop("agent", "lead"),
        description="work",
        state=JobState.RUNNING,
        attempt=1,
        submitted_at=1.0,
        **fields,
    )


def waits(job: JobRecord, tool: str, **arguments: Any) -> AwaitedCall:
    """A call of a job's agent that waits for a decision."""
    approval = Approval(
        id=f"ap_{tool}",
        job_id=job.id,
        agent=job.agent,
        tool=tool,
        call_id=f"call_{tool}",
        arguments=arguments,
        decisions=DECISIONS,
        sha256="0" * 64,
    )
    return AwaitedCall(approval, job)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        # "Manages task lifecycle (submitted → working → completed/failed)"
        (JobState.QUEUED, "SUBMITTED"),
        (JobState.RUNNING, "WORKING"),
        (JobState.SUCCEEDED, "COMPLETED"),
        (JobState.FAILED, "FAILED"),
        (JobState.CANCELLED, "CANCELED"),
    ],
)
def test_a_task_has_the_lifecycle_of_its_job(state: JobState, shown: str) -> None:
    assert TaskState.Name(STATES[state]) == f"TASK_STATE_{shown}"


@pytest.mark.parametrize(
    ("part", "kind", "shown"),
    [
        # "Text content"
        (types.Part(text="Hello."), "", {"text": "Hello."}),
        # "Function calls and responses"
        (
            types.Part(function_call=types.FunctionCall(id="1", name="ls", args={"path": "/"})),
            "function_call",
            {"data": {"id": "1", "name": "ls", "args": {"path": "/"}}},
        ),
        (
            types.Part(
                function_response=types.FunctionResponse(id="1", name="ls", response={"n": "2"})
            ),
            "function_response",
            {"data": {"id": "1", "name": "ls", "response": {"n": "2"}}},
        ),
        # "Executable code and code execution results"
        (
            types.Part(
                executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)
            ),
            "executable_code",
            {"data": {"code": "1+1", "language": "PYTHON"}},
        ),
        (
            types.Part(
                code_execution_result=types.CodeExecutionResult(
                    outcome=types.Outcome.OUTCOME_OK, output="2"
                )
            ),
            "code_execution_result",
            {"data": {"outcome": "OUTCOME_OK", "output": "2"}},
        ),
        # "File data (URI and inline/base64)"
        (
            types.Part(file_data=types.FileData(file_uri="https://a.example/b", mime_type="a/b")),
            "",
            {"url": "https://a.example/b", "mediaType": "a/b"},
        ),
        (
            types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png")),
            "",
            {"raw": "eA==", "mediaType": "image/png"},
        ),
    ],
)
def test_each_kind_of_content_becomes_a_part(
    part: types.Part, kind: str, shown: dict[str, Any]
) -> None:
    (made,) = converted(part).parts
    assert made.metadata.fields["adk_type"].string_value == kind
    found = MessageToDict(made)
    assert {name: found[name] for name in shown} == shown


def test_error_states_are_a_code_without_what_the_models_service_said() -> None:
    made = converted(types.Part(text="x"), error_code="MAX_TOKENS", error_message="sk-SECRET")
    assert made.metadata["adk_error_code"] == "MAX_TOKENS"
    assert "SECRET" not in str(made)


@pytest.mark.parametrize(
    ("tool", "long_running", "state"),
    [
        ("ls", False, "WORKING"),
        ("slow", True, "WORKING"),
        # "auth_required (request_euc)", which ADK calls adk_request_credential
        ("adk_request_credential", True, "AUTH_REQUIRED"),
    ],
)
def test_the_state_of_a_task_follows_from_its_agents_step(
    tool: str, long_running: bool, state: str
) -> None:
    made = converted(
        types.Part(function_call=types.FunctionCall(id="1", name=tool)),
        long_running_tool_ids={"1"} if long_running else set(),
    )
    assert TaskState.Name(next_state(made)) == f"TASK_STATE_{state}"
    # "with long-running tool metadata for HITL"
    assert ("adk_is_long_running" in made.parts[0].metadata) is long_running


def test_input_required_asks_in_adks_form_and_by_the_extension_if_that_is_active() -> None:
    job = record("job1")
    calls = [waits(job, "execute", command="ls"), waits(job, "write_file", file_path="/a")]
    plain, typed = (asking(job, calls, hitl=hitl) for hitl in (False, True))

    asked = [MessageToDict(part.data) for part in plain.parts if part.HasField("data")]
    assert [one["name"] for one in asked] == ["adk_request_confirmation"] * 2
    assert [one["args"]["originalFunctionCall"] for one in asked] == [
        {"id": "call_execute", "name": "execute", "args": {"command": "ls"}},
        {"id": "call_write_file", "name": "write_file", "args": {"file_path": "/a"}},
    ]
    assert list(plain.extensions) == []
    assert list(typed.extensions) == [HITL_URI]
    request = MessageToDict(typed.metadata)[HITL_URI]
    assert request["type"] == "tool_approval_request"
    assert [tool["id"] for tool in request["tools"]] == ["ap_execute", "ap_write_file"]


def test_the_call_of_a_sub_agent_is_nested_in_its_parents_request() -> None:
    job = record("job1")
    child = record("job2", agent="guarded", parent_id="job1", root_id="job1")
    made = asking(job, [waits(child, "execute", command="ls")], hitl=True)
    request = MessageToDict(made.metadata)[HITL_URI]
    assert (request["nested"]["subagent_name"], request["nested"]["task_id"]) == (
        "guarded",
        "job2",
    )
    assert [tool["name"] for tool in request["nested"]["tools"]] == ["execute"]


def test_a_decision_is_the_extensions_response_and_never_a_text() -> None:
    answer = Message(parts=[Part(text="No.")], extensions=[HITL_URI])
    decision = {"id": "ap_execute", "approved": False, "rejection_reason": "not now"}
    answer.metadata.update({HITL_URI: {"type": "tool_approval_response", "approvals": [decision]}})
    awaited = {"ap_execute"}
    assert read_decisions(answer, awaited) == [
        CallDecision("ap_execute", "reject", message="not now")
    ]
    assert read_decisions(Message(parts=[Part(text="yes")]), awaited) == []


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_tools_of_mcp_servers_are_in_the_models_request_and_run(
    transport: Literal["http", "sse"],
) -> None:
    model = recorder("m", [{"calls": [call("calc__add", a=2, b=3)]}, says("5")])
    with http_server(transport) as running:
        at = McpServer(name="calc", url=url_of(running, transport), transport=transport)
        run = await Run(model, tools=[McpTools([at])]).to_end()

    declared = [
        function.name
        for tool in model.requests[0].config.tools or []
        if isinstance(tool, types.Tool)
        for function in tool.function_declarations or []
    ]
    assert {"calc__add", "ls"} <= set(declared)
    assert run.results == [{"status": "success", "result": {"result": 5}}]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # "OpenAI (including OpenAI-compatible endpoints like LiteLLM, Ollama)"
        ("gpt-5", "ChatCompletions"),
        ("openai/gpt-5", "QuietLiteLlm"),
        ("ollama_chat/llama3:8b", "QuietLiteLlm"),
        # "Azure OpenAI"
        ("azure/my-deployment", "QuietLiteLlm"),
        # "Google Gemini (native API and Vertex AI)"
        ("gemini-2.5-flash", "Gemini"),
        ("projects/p/locations/l/publishers/google/models/gemini-2.5-flash", "Gemini"),
        # "Anthropic (native API via ANTHROPIC_API_KEY)"
        ("claude-sonnet-4-5", "Claude"),
    ],
)
def test_the_models_of_every_provider_have_a_name(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("GOOGLE_API_KEY", "OPENAI_API_KEY", "AZURE_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(key, "no-secret")
    model = resolve_model(name, agent_name="a")
    assert isinstance(model, ResilientModel)
    assert [type(candidate).__name__ for candidate in model.candidates] == [kind]


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_task_is_submitted_asks_works_and_is_kept_for_another_server(
    server: Server,  # noqa: F811
    other_server: Server,  # noqa: F811
) -> None:
    async with server.client() as client, other_server.client() as another:
        task = await asking_task(client, "guarded task", "guarded")
        shown = await client.get_task(GetTaskRequest(id=task.id), context=HITL)
        (asked,) = MessageToDict(shown.status.message.metadata)[HITL_URI]["tools"]
        answer = message("", task_id=task.id)
        answer.message.extensions.append(HITL_URI)
        decisions = [{"id": asked["id"], "approved": True}]
        answer.message.metadata.update(
            {HITL_URI: {"type": "tool_approval_response", "approvals": decisions}}
        )
        # "Persists tasks": any server answers for it, also for the decision.
        seen = await events(another.send_message(answer, context=HITL))
        ended = await client.get_task(GetTaskRequest(id=task.id))

    assert last_state(seen) == TaskState.TASK_STATE_COMPLETED
    assert set(states(seen)) <= {"INPUT_REQUIRED", "SUBMITTED", "WORKING", "COMPLETED"}
    assert ended.status.state == TaskState.TASK_STATE_COMPLETED
    assert [one.artifact_id for one in ended.artifacts] == ["answer", "patch", "files"]
