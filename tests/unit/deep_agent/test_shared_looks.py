"""Looks at the machine's processes are shared by those who ask together."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fanout.orchestrator.deep_agent.backends.proc_table import EnvironmentReader, SharedLooks


async def test_who_asks_together_shares_a_look_and_who_asks_during_one_has_the_next() -> None:
    began, may_end = threading.Event(), threading.Event()
    numbers = iter(range(1, 10))

    def look(_: EnvironmentReader) -> int:
        number = next(numbers)
        began.set()
        assert may_end.wait(60)
        return number

    looks = SharedLooks(look)
    first = [asyncio.create_task(looks.look()) for _ in range(20)]
    assert await asyncio.to_thread(began.wait, 60)
    second = [asyncio.create_task(looks.look()) for _ in range(20)]
    await asyncio.sleep(0)
    may_end.set()

    assert set(await asyncio.gather(*first)) == {1}
    assert set(await asyncio.gather(*second)) == {2}


async def test_a_failed_look_is_repeated_for_the_next_who_ask() -> None:
    failures = [OSError("the table cannot be read")]

    def look(_: EnvironmentReader) -> str:
        if failures:
            raise failures.pop()
        return "seen"

    looks = SharedLooks(look)
    answers = await asyncio.gather(looks.look(), looks.look(), return_exceptions=True)

    assert [type(answer) for answer in answers] == [OSError, OSError]
    assert await looks.look() == "seen"


async def test_a_machine_without_room_for_a_thread_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert await SharedLooks(lambda _: "seen").look() == "seen"
