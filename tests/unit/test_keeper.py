"""The keeper ends what is idle, and what belongs to a folder that was deleted."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client.state_folder import EmbeddedRecord, StateFolder
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.embedded import keeper

pytestmark = pytest.mark.blocks_loop("a keeper's loop has nothing else to do")


def record(folder: Path, *, idle_seconds: float | None = 0.2, pid: int | None = None) -> None:
    state = StateFolder(folder)
    state.prepare()
    state.write_record(
        EmbeddedRecord(
            redis_url="redis://127.0.0.1:9/0",
            blobs_url=folder.as_uri(),
            redis_pid=pid,
            worker_pid=None,
            kept=True,
            idle_seconds=idle_seconds,
        )
    )


def keep(folder: Path, seconds: float = 5) -> None:
    async def within() -> None:
        async with asyncio.timeout(seconds):
            await keeper.keep(Settings(state_dir=folder))

    asyncio.run(within())


def test_what_was_not_used_for_its_time_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = iter([True, False, False, False, False, False])
    ended: list[Any] = []

    async def is_used(*_: Any) -> bool:
        return next(used)

    async def stop_in(folder: StateFolder, _settings: Settings) -> bool:
        ended.append(folder.path)
        folder.remove_record()
        return True

    monkeypatch.setattr(keeper, "_is_used", is_used)
    monkeypatch.setattr(keeper, "stop_in", stop_in)
    monkeypatch.setattr(keeper, "GRACE_SECONDS", 0)
    record(tmp_path / "state")

    keep(tmp_path / "state")

    assert ended == [tmp_path / "state"]


def test_services_that_are_kept_for_good_need_no_keeper(tmp_path: Path) -> None:
    record(tmp_path, idle_seconds=None)

    keep(tmp_path)

    assert StateFolder(tmp_path).read_record() is not None, "it has ended nothing"


def test_services_that_a_command_keeps_for_good_while_the_keeper_waits_for_it_are_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path)
    looks: list[bool] = []

    async def is_used(*_: Any) -> bool:
        looks.append(True)
        if len(looks) > 1:
            record(
                tmp_path, idle_seconds=None
            )  # the command's, just before the keeper has the lock
        return False

    async def stop_in(*_: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(keeper, "_is_used", is_used)
    monkeypatch.setattr(keeper, "stop_in", stop_in)

    keep(tmp_path)

    assert len(looks) > 1


def test_services_of_a_deleted_folder_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "GRACE_SECONDS", 0.1)
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"], start_new_session=True
    )
    record(tmp_path / "state", pid=stubborn.pid)
    keeping = keeper.keep(Settings(state_dir=tmp_path / "state"))

    async def delete_meanwhile() -> None:
        task = asyncio.create_task(keeping)
        await asyncio.sleep(0.05)
        await asyncio.to_thread(shutil.rmtree, tmp_path / "state")
        async with asyncio.timeout(60):
            await task

    asyncio.run(delete_meanwhile())

    assert stubborn.wait(60) < 0
