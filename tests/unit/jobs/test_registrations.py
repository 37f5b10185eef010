"""The registrations of workers are read in bounded steps, and no more of them than is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio.client import Pipeline

from fanout.orchestrator.jobs.store import registrations
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.registrations import Registrations
from fanout.orchestrator.jobs.worker_info import WorkerAbility, WorkerInfo, WorkerLoad
from tests.builders import make_worker

WORKERS, AT_ONCE = 12, 5


@pytest.fixture(autouse=True)
async def registered(redis: FakeAsyncRedis) -> None:
    for number in range(WORKERS):
        worker = make_worker(
            f"w{number:02}", running=number, agents=("a", "b"), definitions={"a": "1f"}
        )
        await Ledger(redis, Keys()).register(worker, 600)


@pytest.mark.parametrize("kind", [WorkerLoad, WorkerAbility, WorkerInfo])
async def test_they_are_read_in_steps_with_the_fields_of_what_is_asked_for(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch, kind: type[WorkerLoad]
) -> None:
    monkeypatch.setattr(registrations, "REGISTRATIONS_AT_ONCE", AT_ONCE)
    steps: list[int] = []
    asked: set[str] = set()
    execute = Pipeline.execute

    async def noted(self: Any, *options: Any) -> Any:
        steps.append(len(self))
        for command, _ in self.command_stack:
            asked.update(command[2:])
        return await execute(self, *options)

    monkeypatch.setattr(Pipeline, "execute", noted)
    found = [worker async for worker in Registrations(redis, Keys()).read(kind)]

    assert steps == [AT_ONCE, AT_ONCE, WORKERS % AT_ONCE]
    assert [worker.running for worker in found] == list(range(WORKERS))
    assert {type(worker) for worker in found} == {kind}
    assert ("definitions" in asked, "agents" in asked) == (
        kind is WorkerInfo,
        kind is not WorkerLoad,
    )


async def test_one_that_is_not_understood_hides_no_other(redis: FakeAsyncRedis) -> None:
    for name, field, value in [
        ("w01", "concurrency", "many"),
        ("w02", "definitions", "{"),
        ("w03", "what_comes_later", "x"),
    ]:
        await redis.hset(Keys().worker(name), field, value)
    await redis.delete(Keys().worker("w04"))
    read = Registrations(redis, Keys()).read
    assert len([one async for one in read(WorkerLoad)]) == WORKERS - 2
    assert len([one async for one in read(WorkerInfo)]) == WORKERS - 3
    assert [one.name async for one in read(WorkerLoad, ["w05", "gone"])] == ["w05"]
