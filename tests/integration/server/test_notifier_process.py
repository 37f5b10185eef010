"""Notifications where no server runs: their process may be killed at any moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.client.notification_reader import NotificationReader
from fanout.orchestrator.client.state_folder import EmbeddedRecord, StateFolder
from fanout.orchestrator.configuration.notification_settings import NotificationSettings
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.embedded.notifier import notifier_process, start_notifier
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.server.notifications.notifier import make_notifications
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand, hand
from tests.integration.jobs.test_notifications import lapse
from tests.integration.server.test_notifier import webhook
from tests.receiver import answer, receiver
from tests.services import RedisProcess
from tests.waits import eventually

__all__ = ["hand"]

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.blocks_loop("the tests start and end processes"),
]


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    told = tmp_path / "told"
    notifications = NotificationSettings(
        allowed_hosts=("127.0.0.1",),
        on_finish=f'echo "$FANOUT_JOB_EVENT $FANOUT_JOB_ID $DISPLAY" >> {told}',
    )
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    folder.write_record(
        EmbeddedRecord(
            redis_url=redis_url, blobs_url="file:///x", redis_pid=1, worker_pid=1, kept=True
        )
    )
    return load_settings(redis_url=redis_url, state_dir=folder.path, notifications=notifications)


async def test_a_killed_process_leaves_its_deliveries_to_the_next_and_runs_no_hook_twice(
    hand: Hand, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":7")
    folder = StateFolder(settings.state_dir)
    process = notifier_process(folder)
    spec = make_spec()
    async with receiver(b"") as host, asyncio.timeout(50):
        await start_notifier(settings)
        async with NotificationReader(str(settings.redis_url)) as reader:
            await reader.notifications.register(spec.id, webhook(host))
        await hand.ledger.submit([spec])
        await hand.ledger.cancel(spec.id)  # before the process runs
        await host.wait_for(1)
        await eventually(lambda: _read(tmp_path / "told"))
        await process.kill()

        await lapse(hand.redis, "127.0.0.1")
        await start_notifier(settings)
        await host.wait_for(2)
        folder.remove_record()
        await eventually(lambda: not process.is_alive)
    assert len({request.headers["webhook-id"] for request in host.requests}) == 1
    assert _read(tmp_path / "told") == f"finished {spec.id} :7\n"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_a_killed_redis_keeps_what_is_to_be_told(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisProcess(folder)
    server.start()
    notifications = NotificationSettings(allowed_hosts=("127.0.0.1",))
    spec = make_spec()
    try:
        async with (
            receiver(answer(500)) as host,
            asyncio.timeout(50),
            NotificationReader(server.url) as reader,
            connect(server.url) as redis,
        ):
            service = make_notifications(reader, reader.notifications, notifications)
            await reader.notifications.register(spec.id, webhook(host))
            ledger = Ledger(redis, Keys())
            await ledger.submit([spec])
            await ledger.cancel(spec.id)
            server.kill()
            task = asyncio.create_task(service.run())  # while there is none
            server.start()
            await host.wait_for(1)
            await eventually(lambda: redis.exists("fanout:notify:receivers"))
            server.kill()
            server.start()
            await lapse(redis, "127.0.0.1")
            await host.wait_for(2)
            await eventually(reader.notifications.is_idle)
            await cancel_and_wait(task)
    finally:
        server.stop()
    assert len({request.headers["webhook-id"] for request in host.requests}) == 1
