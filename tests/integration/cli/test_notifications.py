"""Nobody has to watch a run: commands, webhooks and the setting tell of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from fanout.orchestrator.client.state_folder import StateFolder
from fanout.orchestrator.embedded.notifier import notifier_process
from fanout.orchestrator.server.notifications.messages import new_secret
from tests.integration.cli.conftest import Fanout, clean_environment
from tests.integration.cli.test_services import LOCAL
from tests.integration.scripts import conversation, says, write_script
from tests.receiver import receiver
from tests.waits import eventually

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.blocks_loop("the test starts processes and reads files"),
]

SECRET = new_secret()


@pytest.fixture
def fanout(tmp_path: Path) -> Iterator[Fanout]:
    script = write_script(tmp_path, conversation("^quick", says("## Summary\nQuickly done.")))
    notified = {
        "FANOUT_MODEL": f"scripted:{script}",
        "FANOUT_NOTIFICATIONS__ON_FINISH": f'echo "$FANOUT_JOB_ID" >> {tmp_path}/all',
        "FANOUT_NOTIFICATIONS__ALLOWED_HOSTS": '["127.0.0.1"]',
        "FANOUT_NOTIFICATIONS__SECRET": SECRET,
    }
    (tmp_path / "a").mkdir()
    made = Fanout(tmp_path, clean_environment(tmp_path) | LOCAL | notified)
    yield made
    made("down", timeout=60)


async def test_a_run_of_this_machine_tells_its_command_the_setting_and_a_webhook(
    fanout: Fanout, tmp_path: Path
) -> None:
    process = notifier_process(StateFolder(tmp_path / "state"))
    told = tmp_path / "told"
    command = f'echo "$FANOUT_JOB_EVENT $FANOUT_JOB_STATE $FANOUT_JOB_AGENT" > {told}'
    run = ("run", "quick", "--workspace", "a", "--yes")

    done = await asyncio.to_thread(fanout, *run, "--on-finish", command, timeout=90)

    assert done.code == 0, done.err
    assert told.read_text() == "finished succeeded coordinator\n"
    async with receiver() as host, asyncio.timeout(60):
        submit = ("submit", "quick again", "--webhook", host.url())
        job = await asyncio.to_thread(fanout, *submit, timeout=60)
        (request,) = await host.wait_for(1)
        await eventually(lambda: len(_lines(tmp_path / "all")) >= 2)
    content = Webhook(SECRET).verify(request.body, request.headers)
    assert (content["job"]["id"], content["job"]["state"]) == (job.out.strip(), "succeeded")
    assert job.out.strip() in _lines(tmp_path / "all")
    assert process.is_alive

    refused = [
        await asyncio.to_thread(fanout, *arguments, env=changed)
        for arguments, changed in (
            ((*run, "--detach", "--on-finish", "true"), {}),
            (("submit", "quick", "--webhook", "https://10.0.0.1/"), {}),
            (("submit", "quick", "--webhook", host.url()), {"FANOUT_NOTIFICATIONS__SECRET": ""}),
            (("ps",), {"FANOUT_NOTIFICATIONS__SECRET": "short"}),
        )
    ]
    assert [one.code for one in refused] == [2, 2, 2, 2]
    words = ("--detach does not wait", "not found on the public", "are signed", "whsec_ and 24")
    for one, word in zip(refused, words, strict=True):
        assert word in one.err
    assert "short" not in refused[-1].err
    assert (await asyncio.to_thread(fanout, "down", timeout=60)).code == 0
    assert not process.is_alive


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
