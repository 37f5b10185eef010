"""Who is told of a task, and the files that a message brings."""

from __future__ import annotations

import base64
import hashlib
import queue
from collections.abc import Iterator

import pytest
from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    Part,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, TaskNotFoundError
from standardwebhooks import Webhook

from tests.integration.a2a.conftest import Server, events, last_state, message
from tests.loopback import LoopbackHandler, loopback_server

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

METADATA = "http://169.254.169.254/latest"


@pytest.fixture
def received() -> Iterator[tuple[str, queue.Queue[tuple[dict[str, str], bytes]]]]:
    """The URL of a receiver, and what it gets."""
    got: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    class Receiver(LoopbackHandler):
        def post(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.put((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

    with loopback_server(Receiver, str) as url:
        yield f"{url}/told", got


async def test_a_task_tells_its_receivers_and_only_those_that_may_be_told(
    server: Server, received: tuple[str, queue.Queue[tuple[dict[str, str], bytes]]]
) -> None:
    url, got = received
    async with server.client() as client, server.client("bob") as bob:
        request = message("write a note")
        config = TaskPushNotificationConfig(id="mine", url=METADATA, token="my-token")
        config.authentication.scheme, config.authentication.credentials = "Bearer", "their-key"
        request.configuration.task_push_notification_config.CopyFrom(config)
        with pytest.raises(InvalidParamsError):
            await events(client.send_message(request))
        request.configuration.task_push_notification_config.url = url
        task_id = (await events(client.send_message(request)))[0].task.id
        states = set()
        while "TASK_STATE_COMPLETED" not in states:
            headers, body = got.get(timeout=60)
            assert headers["X-A2A-Notification-Token"] == "my-token"
            assert headers["Authorization"] == "Bearer their-key"
            key = base64.b64encode(hashlib.sha256(b"my-token").digest()).decode()
            update = Webhook(key).verify(body, headers)["statusUpdate"]
            assert update["taskId"] == task_id
            states.add(update["status"]["state"])
        one = GetTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
        stored = await client.get_task_push_notification_config(one)
        assert (stored.url, stored.token, stored.authentication.credentials) == (url, "", "")
        with pytest.raises(InvalidParamsError):
            await client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task_id, url=METADATA)
            )
        listing = ListTaskPushNotificationConfigsRequest(task_id=task_id)
        for refused in (
            bob.get_task_push_notification_config(one),
            bob.list_task_push_notification_configs(listing),
            bob.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task_id, url=url)
            ),
        ):
            with pytest.raises(TaskNotFoundError):
                await refused
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
        )
        assert not (await client.list_task_push_notification_configs(listing)).configs


async def test_the_files_of_a_message_are_those_of_the_job(server: Server) -> None:
    notes = Part(raw=b"zero\n", filename="docs/zero.txt", media_type="text/plain")
    async with server.client() as client:
        seen = await events(client.send_message(message("see the files", notes)))
        assert last_state(seen) == TaskState.TASK_STATE_COMPLETED
        assert "docs/zero.txt\\n" in str(seen)
        for name in ("../out.txt", "/etc/out.txt", "a/../../b"):
            request = message("see the files", Part(raw=b"x", filename=name))
            with pytest.raises(InvalidParamsError):
                await events(client.send_message(request))
        request = message("see it", Part(url="http://127.0.0.1/secret", filename="x"))
        with pytest.raises(ContentTypeNotSupportedError):
            await events(client.send_message(request))
