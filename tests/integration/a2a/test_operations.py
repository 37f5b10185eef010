"""The other operations, whoever asks and whatever happens to the server."""

from __future__ import annotations

import json

import httpx
import pytest
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from tests.integration.a2a.conftest import Server, events, headers, last_state, message
from tests.integration.a2a.test_approvals import asked_for, asking, confirmation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

AT_ONCE = SendMessageConfiguration(return_immediately=True)


async def submitted(server: Server, text: str, name: str = "ann") -> Task:
    request = message(text)
    request.configuration.CopyFrom(AT_ONCE)
    async with httpx.AsyncClient(headers=headers(name)) as http:
        body = {"message": {"messageId": request.message.message_id, "role": "ROLE_USER"}}
        body["message"]["parts"] = [{"text": text}]
        body["configuration"] = {"returnImmediately": True}
        given = {"A2A-Version": "1.0"}
        answer = await http.post(f"{server.url}/a2a/message:send", json=body, headers=given)
    return Task(id=answer.json()["task"]["id"], context_id=answer.json()["task"]["contextId"])


async def test_a_message_that_is_sent_again_is_the_same_task_and_a_context_goes_on(
    server: Server,
) -> None:
    async with server.client() as client:
        request = message("write a note", message_id="once")
        first = await events(client.send_message(request))
        again = await events(client.send_message(request))
        assert [one.task.id for one in again] == [first[0].task.id]
        with pytest.raises(InvalidParamsError, match="another message"):
            await events(client.send_message(message("write more", message_id="once")))
        context = first[0].task.context_id
        goes_on = await events(client.send_message(message("and then?", context_id=context)))
        task = await client.get_task(GetTaskRequest(id=goes_on[0].task.id))
        assert task.context_id == context
        files = next(one for one in task.artifacts if one.artifact_id == "files")
        assert [part.raw for part in files.parts if part.filename == "seen.txt"] == [b"one\n"]
        listed = await client.list_tasks(ListTasksRequest(context_id=context))
        assert [one.id for one in listed.tasks] == [task.id, first[0].task.id]
        assert listed.total_size == 2
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await events(client.send_message(message("more", task_id=task.id)))
        failed = await events(client.send_message(message("fail now")))
        assert last_state(failed) == TaskState.TASK_STATE_FAILED
        failed_task = await client.get_task(GetTaskRequest(id=failed[0].task.id))
        text = failed_task.status.message.parts[0].text
        assert text.endswith("."), text
        assert "AgentFailed" not in text


async def test_a_running_task_is_told_subscribed_to_and_cancelled(server: Server) -> None:
    task = await submitted(server, "wait a minute")
    async with server.client() as client:
        stream = client.subscribe(SubscribeToTaskRequest(id=task.id))
        assert (await anext(stream)).task.id == task.id
        request = message("And be quick.", task_id=task.id)
        request.configuration.CopyFrom(AT_ONCE)
        async with server.client("ann", "HTTP+JSON") as other:
            await other.cancel_task(CancelTaskRequest(id=task.id))
        rest = await events(stream)
        assert last_state(rest) == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=task.id))
        with pytest.raises(UnsupportedOperationError):
            await events(client.subscribe(SubscribeToTaskRequest(id=task.id)))


async def test_a_task_of_another_owner_does_not_exist_in_any_operation(server: Server) -> None:
    task = await submitted(server, "wait for ann")
    async with server.client("bob") as bob:
        for wanted in (task.id, "no-such-task"):
            for attempt in (
                lambda wanted: bob.get_task(GetTaskRequest(id=wanted)),
                lambda wanted: bob.cancel_task(CancelTaskRequest(id=wanted)),
                lambda wanted: events(bob.subscribe(SubscribeToTaskRequest(id=wanted))),
                lambda wanted: events(bob.send_message(message("hi", task_id=wanted))),
                lambda wanted: events(bob.send_message(message("hi", reference_task_ids=[wanted]))),
            ):
                with pytest.raises(TaskNotFoundError) as refusal:
                    await attempt(wanted)
                assert str(refusal.value) == "Task not found"
        listed = await bob.list_tasks(ListTasksRequest(context_id=task.context_id))
        assert (len(listed.tasks), listed.total_size) == (0, 0)
    async with server.client() as ann:
        await ann.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_client_of_a_killed_server_gets_the_end_from_another_one(
    server: Server, other_server: Server
) -> None:
    async with other_server.client() as client:
        task = await asking(client, "guarded task", "guarded")
        stream = client.subscribe(SubscribeToTaskRequest(id=task.id))
        await anext(stream)
        other_server.kill()
        with pytest.raises(A2AClientError):
            await events(stream)
    async with server.client() as client, server.client() as other:
        again = client.subscribe(SubscribeToTaskRequest(id=task.id))
        assert (await anext(again)).task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        answer = message("", confirmation(asked_for(task)[0]["id"], confirmed=True))
        answer.message.task_id = task.id
        await events(other.send_message(answer))
        seen = await events(again)
        assert last_state(seen) == TaskState.TASK_STATE_COMPLETED


@pytest.mark.parametrize(
    "part",
    [
        {"text": "x", "mediaType": "application/x-unheard-of"},
        {"raw": "eA==", "filename": "a.bin", "mediaType": "application/x-unheard-of"},
        {"data": {}, "mediaType": "model/gltf+json; charset=utf-8"},
        {"url": "https://a.example/b", "mediaType": "text/plain"},
    ],
)
async def test_a_media_type_that_is_not_in_the_card_is_refused_for_new_and_old_tasks(
    server: Server, part: dict[str, object]
) -> None:
    task = await submitted(server, "wait for parts")
    given = {**headers("ann"), "A2A-Version": "1.0"}
    async with httpx.AsyncClient(headers=given) as http:
        for place in ({}, {"taskId": task.id}):
            sent = {"messageId": "m-parts", "role": "ROLE_USER", "parts": [{"text": "do"}, part]}
            body = {"method": "SendMessage", "params": {"message": {**sent, **place}}}
            answer = await http.post(f"{server.url}/a2a", json={"jsonrpc": "2.0", "id": 1, **body})
            assert answer.json()["error"]["code"] == -32005, answer.text
    async with server.client() as client:
        await client.cancel_task(CancelTaskRequest(id=task.id))


@pytest.mark.parametrize(
    ("mode", "is_offered"),
    [
        ("text/plain; charset=utf-8", True),
        ("application/*", True),
        ("*/*;q=0.1", True),
        ("TEXT/Plain", True),
        ("", True),
        ("image/*", False),
        ("text/markdown", False),
    ],
)
async def test_the_media_types_that_a_client_accepts_are_compared_with_those_of_the_card(
    server: Server, mode: str, is_offered: bool
) -> None:
    sent = {"messageId": f"m-{mode}", "role": "ROLE_USER", "parts": [{"text": "write"}]}
    wanted = {"acceptedOutputModes": [mode], "returnImmediately": True}
    body = {"method": "SendMessage", "params": {"message": sent, "configuration": wanted}}
    async with httpx.AsyncClient(headers={**headers("ann"), "A2A-Version": "1.0"}) as http:
        answer = await http.post(f"{server.url}/a2a", json={"jsonrpc": "2.0", "id": 1, **body})
    assert answer.json().get("error", {}).get("code") == (None if is_offered else -32005)


async def test_every_door_answers_at_its_path_with_a_slash_as_without(server: Server) -> None:
    given = {**headers("ann"), "A2A-Version": "1.0"}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "no-such-task"}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    }}  # fmt: skip
    asked = [
        ("POST", "/a2a", rpc),
        ("POST", "/a2a/agents/lead", rpc),
        ("GET", "/a2a/tasks/no-such-task", None),
        ("POST", "/mcp", first),
        ("GET", "/v1/jobs", None),
        ("GET", "/.well-known/agent-card.json", None),
        ("GET", "/healthz", None),
    ]
    accepted = {"Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(headers={**given, **accepted}, base_url=server.url) as http:
        for method, path, body in asked:
            plain = await http.request(method, path, json=body)
            slash = await http.request(method, f"{path}/", json=body)
            assert (slash.status_code, slash.text) == (plain.status_code, plain.text), path
            assert plain.status_code in {200, 404}
        assert (
            await http.post("/a2a/", json=rpc, headers={"Authorization": ""})
        ).status_code == 401


async def test_cards_name_one_origin_and_tell_more_to_callers(server: Server) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{server.url}/.well-known/agent-card.json")
        card = answer.json()
        assert {one["url"] for one in card["supportedInterfaces"]} == {f"{server.url}/a2a"}
        assert {one["id"] for one in card["skills"]} >= {"general-purpose", "lead"}
        assert card["protocolVersion"] == "0.3"
        unchanged = {"If-None-Match": answer.headers["etag"]}
        again = await http.get(f"{server.url}/.well-known/agent-card.json", headers=unchanged)
        assert again.status_code == 304
        for path in ("/a2a", "/a2a/agents/lead/.well-known/agent-card.json"):
            assert (await http.post(f"{server.url}{path}", json={})).status_code == 401
        assert "Do it." not in json.dumps(card)
    async with server.client() as client:
        more = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert [one.tags for one in more.skills if one.id == "lead"] == [
        ["agent", "delegates-to:guarded"]
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"method": "SendMessage", "params": {"message": {"parts": [{"text": "x"}]}}}, -32602),
        ({"method": "GetTask", "params": {"id": "x", "historyLength": -1}}, -32602),
        ({"method": "ListTasks", "params": {"pageToken": "%"}}, -32602),
        ({"method": "NoSuch", "params": {}}, -32601),
        ({"method": "GetTask", "params": {"id": "\u0000"}}, -32001),
        ({"method": "GetTask", "params": {"id": "x" * 9999}}, -32001),
    ],
)
async def test_wrong_requests_get_the_errors_of_the_protocol(
    server: Server, body: dict[str, object], code: int
) -> None:
    async with httpx.AsyncClient(headers={**headers("ann"), "A2A-Version": "1.0"}) as http:
        request = {"jsonrpc": "2.0", "id": 1, **body}
        error = (await http.post(f"{server.url}/a2a", json=request)).json()["error"]
    assert error["code"] == code
    assert "Traceback" not in json.dumps(error)


async def test_a_client_of_version_0_3_is_served(server: Server) -> None:
    async with httpx.AsyncClient(headers=headers("ann"), timeout=60) as http:
        told = {"kind": "message", "messageId": "old", "role": "user"}
        told["parts"] = [{"kind": "text", "text": "write a note"}]
        request = {"jsonrpc": "2.0", "id": 1, "method": "message/send"}
        sent = {**request, "params": {"message": told}}
        task = (await http.post(f"{server.url}/a2a", json=sent)).json()["result"]
        assert task["status"]["state"] == "completed"
        got = {**request, "method": "tasks/get", "params": {"id": task["id"]}}
        assert (await http.post(f"{server.url}/a2a", json=got)).json()["result"]["id"] == task["id"]
        rest = await http.get(f"{server.url}/a2a/v1/tasks/{task['id']}")
        assert rest.json()["status"]["state"] == "TASK_STATE_COMPLETED"
