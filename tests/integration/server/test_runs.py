"""Runs over HTTP: an archive in, a patch and an archive out."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import place_fixture
from tests.integration.scripts import call, calls, conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation
from tests.waits import eventually_in_thread

pytestmark = [pytest.mark.redis, pytest.mark.slow]

EDIT = call("edit_file", file_path="/workspace/a.txt", old_string="one", new_string="two")
SCRIPT = conversation("", calls(EDIT), says("done"))


place = place_fixture(SCRIPT, workers=1)


def until_empty(folder: Path) -> None:
    eventually_in_thread(lambda: not os.listdir(folder))  # noqa: PTH208 - it may be removed meanwhile


def zipped(**files: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return sink.getvalue()


async def test_a_run_goes_from_an_uploaded_archive_to_a_patch_and_an_archive(
    place: Installation, server: ServerProcess, tmp_path: Path
) -> None:
    async with server.client(await make_key(place, "ann")) as ann:
        archive = zipped(a_txt="one\n", b_txt="b\n", _env="TOKEN=hunter2hunter2\n")
        goal = {"goal": "edit a.txt", "labels": {"team": "x"}}
        body = {"run": (None, json.dumps(goal)), "archive": ("w.zip", archive)}
        key = {"Idempotency-Key": "once"}
        begun = await ann.post("/v1/runs", files=body, headers=key)
        assert begun.status_code == 201, begun.text
        again = await ann.post("/v1/runs", files=body, headers=key)
        assert again.json() == begun.json()
        run_id = begun.json()["id"]
        assert begun.headers["location"] == f"/v1/runs/{run_id}"
        other = {**body, "run": (None, json.dumps({"goal": "something else"}))}
        assert (await ann.post("/v1/runs", files=other, headers=key)).status_code == 409

        run = (await ann.get(f"/v1/runs/{run_id}?wait=50")).json()
        assert (run["state"], run["jobs"]) == ("succeeded", {"succeeded": 1}), run
        assert (run["agent"], run["labels"]) == ("coordinator", {"team": "x"})
        patch = await ann.get(f"/v1/runs/{run_id}/patch")
        assert "-one" in patch.text
        assert patch.headers["content-type"].startswith("text/x-diff")
        whole = await ann.get(f"/v1/runs/{run_id}/archive")
        with tarfile.open(fileobj=io.BytesIO(whole.content)) as result:
            assert sorted(result.getnames()) == ["a.txt", "b.txt"]  # .env stayed at home
        changed = await ann.get(f"/v1/jobs/{run_id}/archive?changed=true")
        with tarfile.open(fileobj=io.BytesIO(changed.content)) as result:
            member = result.extractfile("a.txt")
            assert result.getnames() == ["a.txt"]
            assert member is not None
            assert member.read() == b"two\n"
        (tmp_path / "a.txt").write_text("one\n")
        applied = ["git", "apply", "--verbose", "-"]
        await asyncio.to_thread(
            subprocess.run, applied, cwd=tmp_path, input=patch.content, check=True
        )
        assert (tmp_path / "a.txt").read_text() == "two\n"
        (line,) = (await ann.get("/v1/runs")).json()["items"]
        assert (line["id"], line["jobs"]) == (run_id, {"succeeded": 1})
    assert not list((place.folder / "state" / "received").iterdir())


async def test_a_snapshot_is_its_owners_and_hostile_bodies_are_refused(
    place: Installation, server: ServerProcess
) -> None:
    async with (
        server.client(await make_key(place, "ann")) as ann,
        server.client(await make_key(place, "bob")) as bob,
    ):
        stored = await ann.post("/v1/snapshots", content=zipped(a_txt="one\n", _env="KEY=x\n"))
        assert stored.status_code == 201, stored.text
        found = stored.json()
        assert (found["files"], found["bytes"]) == (1, 4)
        assert [one["path"] for one in found["left_out"]] == [".env"]
        run = {"goal": "look", "workspace": {"snapshot": found["snapshot"]}}
        job = {"description": "look", "snapshot": found["snapshot"]}
        never = {**job, "snapshot": "0" * 64}
        assert (await ann.post("/v1/runs", json=run)).status_code == 201
        refused = [
            (await bob.post("/v1/runs", json=run)),
            (await bob.post("/v1/jobs", json=job)),
            (await bob.post("/v1/jobs", json=never)),
        ]
        assert [one.status_code for one in refused] == [410, 410, 410]
        said = {one.json()["detail"].replace(found["snapshot"], "0" * 64) for one in refused}
        assert len(said) == 1

        async def status(**request: Any) -> int:
            return (await ann.request("POST", "/v1/runs", **request)).status_code

        git = {"goal": "x", "workspace": {"git": {"url": "https://127.0.0.1/x"}}}
        assert await status(json=git) == 422
        git["workspace"] = {"git": {"url": "file:///etc"}}
        assert await status(json=git) == 422
        assert await status(json={**run, "workspace": {}}) == 422
        assert await status(content=b"x", headers={"Content-Type": "text/plain"}) == 415
        assert await status(files={"run": (None, "{}")}) == 422
        assert (await ann.post("/v1/snapshots", content=b"none")).status_code == 422
    reader = server.client(await make_key(place, "eve", "read"))
    async with reader:
        assert (await reader.post("/v1/snapshots", content=zipped(a="x"))).status_code == 403


async def test_who_sees_all_jobs_of_a_tenant_uses_the_snapshots_of_that_tenant_only(
    place: Installation, server: ServerProcess
) -> None:
    async with (
        server.client(await make_key(place, "ann")) as ann,
        server.client(await make_key(place, "ops", owner="*")) as here,
        server.client(await make_key(place, "eve", owner="*", tenant="other")) as elsewhere,
    ):
        stored = await ann.post("/v1/snapshots", content=zipped(a="x"))
        job = {"description": "look", "snapshot": stored.json()["snapshot"]}
        answers = [await one.post("/v1/jobs", json=job) for one in (here, elsewhere)]

    assert [one.status_code for one in answers] == [201, 410]


async def test_a_client_that_disconnects_while_its_repository_is_cloned_leaves_nothing(
    place: Installation, server: ServerProcess
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        await asyncio.to_thread(server.stop)
        port = silent.getsockname()[1]
        server.settings = {"FANOUT_API__GIT_HOSTS": f'["127.0.0.1:{port}"]'}
        await asyncio.to_thread(server.start)
        received = place.folder / "state" / "received"
        async with server.client(await make_key(place, "ann")) as ann:
            git = {"url": f"https://127.0.0.1:{port}/x.git"}
            asked = asyncio.create_task(
                ann.post("/v1/runs", json={"goal": "look", "workspace": {"git": git}})
            )
            connection, _ = await asyncio.to_thread(silent.accept)  # Git is there
            assert len(await asyncio.to_thread(os.listdir, received)) == 1
            asked.cancel()
            await asyncio.to_thread(until_empty, received)
            assert (await ann.get("/v1/runs")).json()["items"] == []
            connection.close()
