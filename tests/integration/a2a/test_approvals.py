"""Calls that a person approves: what a client is asked, and what counts as an answer."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.client import Client, ClientCallContext
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.types import GetTaskRequest, Part, Role, Task, TaskState
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from fanout.orchestrator.extras.a2a.approval_requests import HITL_URI
from fanout.orchestrator.extras.a2a.protocol import data_part
from tests.integration.a2a.conftest import Server, events, last_state, message

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

HITL = ClientCallContext(
    service_parameters=ServiceParametersFactory.create([with_a2a_extensions([HITL_URI])])
)


def confirmation(approval_id: str, **response: Any) -> Part:
    """An answer as clients of ADK give it."""
    data = {"id": approval_id, "name": "adk_request_confirmation", "response": response}
    return data_part(data, adk_type="function_response")


def asked_for(task: Task) -> list[dict[str, Any]]:
    """The calls of the status message, which ADK's clients show."""
    parts = [part for part in task.status.message.parts if part.HasField("data")]
    assert all(part.metadata["adk_is_long_running"] for part in parts)
    return [MessageToDict(part.data) for part in parts]


async def asking(client: Client, text: str, agent: str) -> Task:
    """A task that has come to its question."""
    request = message(text, metadata={"fanout.agent": agent})
    seen = await events(client.send_message(request))
    task = await client.get_task(GetTaskRequest(id=seen[0].task.id))
    assert last_state(seen) == TaskState.TASK_STATE_INPUT_REQUIRED
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    return task


async def test_a_text_is_no_approval_and_a_confirmation_is_one(server: Server) -> None:
    async with server.client() as client:
        task = await asking(client, "guarded task", "guarded")
        call = asked_for(task)[0]
        assert call["args"]["originalFunctionCall"]["name"] == "execute"
        told = await events(client.send_message(message("yes", task_id=task.id)))
        assert last_state(told) == TaskState.TASK_STATE_INPUT_REQUIRED
        assert "A text is not an approval" in told[-1].task.status.message.parts[0].text
        for wrong in (confirmation("ap_unknown", confirmed=True), confirmation(call["id"])):
            with pytest.raises(InvalidParamsError):
                await events(client.send_message(message("", wrong, task_id=task.id)))
        given = confirmation(call["id"], confirmed=True)
        seen = await events(client.send_message(message("", given, task_id=task.id)))
        assert last_state(seen) == TaskState.TASK_STATE_COMPLETED
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await events(client.send_message(message("", given, task_id=task.id)))


async def test_a_text_to_a_task_that_waits_and_one_with_a_decision_reach_agent_and_history(
    server: Server,
) -> None:
    async with server.client() as client:
        task = await asking(client, "guarded task", "guarded")
        question = task.status.message.parts[0].text
        assert 'guarded asks to run execute with {"command": "echo ok > ok.txt"}' in question
        await events(client.send_message(message("Be careful.", task_id=task.id)))
        waiting = await client.get_task(GetTaskRequest(id=task.id))
        assert waiting.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert "Be careful." in said(waiting, Role.ROLE_USER)
        given = confirmation(asked_for(task)[0]["id"], confirmed=True)
        extra = data_part({"deadline": "noon"})
        both = message("And be quick.", given, extra, task_id=task.id)
        seen = await events(client.send_message(both))
        assert last_state(seen) == TaskState.TASK_STATE_COMPLETED
        ended = await client.get_task(GetTaskRequest(id=task.id))
        delivered = [one for one in said(ended, Role.ROLE_USER) if one.startswith("A message")]
        assert any("Be careful." in one for one in delivered)
        assert any("And be quick." in one and "noon" in one for one in delivered)
        another = await asking(client, "guarded task", "guarded")
        with pytest.raises(InvalidParamsError, match="a text, data or a decision"):
            await events(client.send_message(message(" ", task_id=another.id)))


def said(task: Task, role: Role) -> list[str]:
    """The texts of a task's history that one side has said."""
    return [part.text for one in task.history if one.role == role for part in one.parts]


async def test_the_approval_of_a_sub_agent_is_asked_for_and_given_in_its_parents_task(
    server: Server,
) -> None:
    async with server.client() as client:
        task = await asking(client, "lead them", "lead")
        shown = await client.get_task(GetTaskRequest(id=task.id), context=HITL)
        asked = MessageToDict(shown.status.message.metadata)[HITL_URI]
        assert asked["nested"]["subagent_name"] == "guarded"
        assert asked["nested"]["task_id"] != task.id
        tool = asked["nested"]["tools"][0]
        assert tool["name"] == "execute"
        answer = message("", Part(text="No."), task_id=task.id)
        answer.message.extensions.append(HITL_URI)
        decisions = [{"id": tool["id"], "approved": False, "rejection_reason": "not now"}]
        payload = {"type": "tool_approval_response", "approvals": decisions}
        for wrong in (
            {**payload, "approvals": [*decisions, {"id": "ap_other", "approved": True}]},
            {**payload, "approvals": []},
            {"type": "something_else"},
        ):
            answer.message.metadata.update({HITL_URI: wrong})
            with pytest.raises(InvalidParamsError):
                await events(client.send_message(answer, context=HITL))
        answer.message.metadata.update({HITL_URI: payload})
        seen = await events(client.send_message(answer, context=HITL))
        assert last_state(seen) == TaskState.TASK_STATE_COMPLETED
