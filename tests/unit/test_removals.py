"""Removals of closed sandboxes let starts and ends of jobs go first, for a while."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from fanout.workers.sandbox.docker import removals
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.removals import Removals
from fanout.workers.sandbox.resident.client import ResidentClient


class RecordingEngine:
    """Removes at once."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    async def remove_container(self, container: str) -> bool:
        self.removed.append(container)
        return True


class Ended:
    """A client whose resident ends as it is asked."""

    async def end(self, _timeout_seconds: float) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is left to close."""


class Jobs:
    """Says whether jobs wait; sets an event when it was asked."""

    def __init__(self, *, wait: bool) -> None:
        self.wait = wait
        self.asked = asyncio.Event()

    def __call__(self) -> bool:
        self.asked.set()
        return self.wait


def removing(starts: Jobs) -> tuple[Removals, RecordingEngine]:
    engine = RecordingEngine()
    return Removals(cast("Engine", engine), starts_wait=starts), engine


async def close(under_test: Removals) -> None:
    await under_test.remove("closed", (), cast("ResidentClient", cast("Any", Ended())))


async def test_a_removal_waits_while_starts_wait() -> None:
    starts = Jobs(wait=True)
    under_test, engine = removing(starts)

    await close(under_test)
    await starts.asked.wait()
    assert engine.removed == []

    starts.wait = False
    await under_test.wait()
    assert engine.removed == ["closed"]


async def test_a_removal_waits_while_jobs_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "QUIET_SECONDS", 60.0)
    under_test, engine = removing(Jobs(wait=False))

    await close(under_test)
    await asyncio.sleep(2 * removals._LOOK_SECONDS)
    assert engine.removed == []

    monkeypatch.setattr(removals, "QUIET_SECONDS", 0.0)
    await under_test.wait()
    assert engine.removed == ["closed"]


async def test_a_removal_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "YIELD_SECONDS", 0.1)
    under_test, engine = removing(Jobs(wait=True))

    await close(under_test)
    await under_test.wait()

    assert engine.removed == ["closed"]


async def test_a_worker_that_stops_removes_at_once() -> None:
    under_test, engine = removing(Jobs(wait=True))

    await close(under_test)
    await under_test.finish()

    assert engine.removed == ["closed"]


async def test_the_next_attempt_of_a_job_has_its_removal_at_once() -> None:
    under_test, engine = removing(Jobs(wait=True))

    await close(under_test)
    await under_test.settle(["closed"])

    assert engine.removed == ["closed"]
