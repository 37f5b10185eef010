"""A job whose agent is another job: an agent definition names the service of an installation."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.builders import make_spec
from tests.integration.a2a.conftest import KEYS, SCOPES
from tests.integration.scripts import DONE, conversation, says, shell
from tests.integration.worker.approvals import GUARDED, file_of, parked
from tests.served import ServerProcess
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (
    conversation(
        "^write",
        shell("echo one > notes.txt"),
        says("## Summary\nWritten."),
        shell("cat notes.txt > seen.txt"),
        DONE,
    ),
    conversation("^guarded", shell("echo ok > ok.txt"), DONE, DONE),
)
FAR = """
name: far-{agent}
description: Works at the other installation.
a2a:
  url: {url}/a2a/agents/{agent}
  credentials: [{{secret: FAR_KEY}}]
"""


@pytest.fixture
def far(install: Installer) -> Iterator[ServerProcess]:
    folder = install.folder / "far-agents"
    folder.mkdir()
    (folder / "guarded.yaml").write_text(GUARDED)
    place = install.below("far")(*SCRIPT, FANOUT_AGENTS_DIR=str(folder))
    place.start_worker()
    keys = {"near": {"key": KEYS["ann"], "scopes": SCOPES}}
    server = ServerProcess(place, settings={"FANOUT_API__KEYS": json.dumps(keys)})
    server.start()
    yield server
    server.stop()


@pytest.fixture
def near(install: Installer, far: ServerProcess) -> Installation:
    folder = install.folder / "near-agents"
    folder.mkdir()
    for agent in ("general-purpose", "guarded"):
        (folder / f"{agent}.yaml").write_text(FAR.format(agent=agent, url=far.url))
    made = install.below("near")(FANOUT_AGENTS_DIR=str(folder), FANOUT_SECRETS__FAR_KEY=KEYS["ann"])
    made.start_worker()
    return made


async def test_files_continuations_and_approvals_cross_two_installations(
    near: Installation, far: ServerProcess
) -> None:
    async with near.client() as client, far.installation.client() as elsewhere:
        written = await client.run(make_spec("write a note", agent="far-general-purpose"))
        assert written.summary == "Written.", written
        assert await file_of(client, written.job_id, "notes.txt") == "one\n"
        followed = await client.run(
            make_spec("and then look", agent="far-general-purpose", continues=written.job_id)
        )
        assert followed.success, followed
        assert await file_of(client, followed.job_id, "seen.txt") == "one\n"

        job_id = await client.submit(make_spec("guarded task", agent="far-guarded"))
        (approval,) = await parked(client, job_id)
        (asked,) = await elsewhere.approvals()
        assert asked.id in str(approval.arguments["question"])
        await client.answer(approval.id, "approve")
        answered = await client.wait(job_id)
        assert await file_of(client, answered.job_id, "ok.txt") == "ok\n"
