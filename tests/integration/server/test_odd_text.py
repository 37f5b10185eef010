r"""Every door takes text that UTF-8 cannot hold, and shows files whose names are no UTF-8."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.scripts import DONE, conversation, shell
from tests.served import ServerProcess, make_key
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (conversation("latin", shell("echo one > \"$(printf 'caf\\351.txt')\""), DONE),)
LATIN, SHOWN = b"caf\xe9.txt", r"caf\xe9.txt"
HALF = r"half \ud83d, whole \ud83d\ude00"
CLEAN = "half �, whole 😀"


@dataclass
class Served:
    """A service with a worker."""

    process: ServerProcess
    key: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.process.client(self.key) as client:
            yield client


@pytest.fixture(scope="module")
def served(install_for_module: Installer) -> Iterator[Served]:
    place = install_for_module(*SCRIPT)
    place.start_worker(concurrency=2)
    process = ServerProcess(place)
    process.start()
    yield Served(process, asyncio.run(make_key(place, "ann")))
    process.stop()


async def post(client: httpx.AsyncClient, path: str, body: str, **headers: str) -> Any:
    """Send a body as it is written here."""
    kind = {"content-type": "application/json", **headers}
    answered = await client.post(path, content=body.encode(), headers=kind)
    assert answered.status_code < httpx.codes.BAD_REQUEST, answered.text
    return answered


async def description_of(client: httpx.AsyncClient, job_id: str) -> str:
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    return str(shown["description"])


async def test_a_body_of_http_with_half_a_character_is_a_job(served: Served) -> None:
    body = f'{{"description": "{HALF}", "context": "{HALF}", "labels": {{"a\\udfff": "\\ud800"}}}}'
    async with served.client() as client:
        job_id = (await post(client, "/v1/jobs", body)).json()["id"]
        shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert shown["description"] == CLEAN
    assert shown["labels"]["a�"] == "�"


async def test_a_message_of_a2a_with_half_a_character_is_a_task(served: Served) -> None:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "TEXT"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"}
    configured = {"message": message, "configuration": {"returnImmediately": True}}
    rpc = json.dumps({**call, "params": configured}).replace("TEXT", HALF)
    message["messageId"] = "m2"
    rest = json.dumps(configured).replace("TEXT", HALF)
    async with served.client() as client:
        answer = (await post(client, "/a2a", rpc, **{"A2A-Version": "1.0"})).json()
        assert "error" not in answer, answer
        other = await post(
            client,
            "/a2a/message:send",
            rest,
            **{"A2A-Version": "1.0", "content-type": "application/a2a+json"},
        )
        assert await description_of(client, answer["result"]["task"]["id"]) == CLEAN
        assert await description_of(client, other.json()["task"]["id"]) == CLEAN


async def test_a_call_of_mcp_with_half_a_character_is_a_job(served: Served) -> None:
    arguments = {"description": "TEXT"}
    params = {"name": "submit_job", "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    accept = {"accept": "application/json, text/event-stream"}
    async with served.client() as client:
        answer = await post(client, "/mcp", body.replace("TEXT", HALF), **accept)
        data = next(line for line in answer.text.splitlines() if line.startswith("data:"))
        result = json.loads(data.removeprefix("data:"))["result"]
        assert not result.get("isError"), result
        assert await description_of(client, result["structuredContent"]["job_id"]) == CLEAN


async def test_a_file_whose_name_is_no_utf_8_is_shown_and_sent_by_every_door(
    served: Served,
) -> None:
    async with served.client() as client:
        job_id = (await post(client, "/v1/jobs", '{"description": "latin"}')).json()["id"]
        while (shown := (await client.get(f"/v1/jobs/{job_id}?wait=30")).json())["result"] is None:
            pass
        (file,) = shown["result"]["files_modified"]
        assert file["path"] == SHOWN
        assert base64.b64decode(file["path_bytes"]) == LATIN
        (listed,) = (await client.get(f"/v1/jobs/{job_id}/files")).json()["items"]
        assert (listed["path"], listed["path_bytes"]) == (SHOWN, file["path_bytes"])
        patch = await client.get(f"/v1/jobs/{job_id}/patch")
        assert rb'b/caf\351.txt"' in patch.content
        archive = await client.get(f"/v1/jobs/{job_id}/archive")
        one = await client.get(f"/v1/jobs/{job_id}/files/patch", params={"path": SHOWN})
        task = (await client.get(f"/a2a/tasks/{job_id}", headers={"A2A-Version": "1.0"})).json()
    assert "+one" in one.json()["patch"]
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as opened:
        assert LATIN in [os.fsencode(name) for name in opened.getnames()]
    files = next(each for each in task["artifacts"] if each["artifactId"] == "files")
    assert files["parts"][0]["data"]["files"] == [file_of_task(file)]
    assert files["parts"][1]["filename"] == SHOWN


def file_of_task(file: dict[str, Any]) -> dict[str, Any]:
    """The changed file as a task lists it, without what has its usual value."""
    return {
        name: file[name] for name in ("path", "path_bytes", "change", "lines_added", "size_bytes")
    }
