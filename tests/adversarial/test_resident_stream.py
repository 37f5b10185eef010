"""A stream that a job has taken over: whatever it sends, the worker stays quick and small."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Self

import pytest

from fanout.workers.sandbox.errors import SandboxDied
from fanout.workers.sandbox.inside import frames
from fanout.workers.sandbox.protocol import Command
from fanout.workers.sandbox.resident.client import ResidentClient
from fanout.workers.sandbox.resident.replies import PARSED_ON_LOOP_BYTES
from fanout.workers.sandbox.resident.sandbox import ResidentSandbox

MIB = 1 << 20
READY = frames.pack_frame(frames.READY, 0)
LONGEST_STALL_SECONDS = 0.4
"""Of the worker's loop. It was 1.2 to 2.5 for one header; on an idle machine it is 0.02 now."""

Use = Callable[[ResidentClient], Coroutine[Any, Any, Any]]


class HostileStream:
    """Sends what it is given after the first request has been sent, as fast as it is read."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts, self.sent_bytes = iter(parts), 0
        self._asked, self._closed = asyncio.Event(), asyncio.Event()
        self._first = True

    async def read(self) -> bytes:
        if self._first:
            self._first = False
            return READY
        await self._asked.wait()
        part = next(self._parts, None)
        if part is None:
            await self._closed.wait()
            return b""
        self.sent_bytes += len(part)
        return part

    async def write(self, _data: bytes) -> None:
        self._asked.set()

    async def close(self) -> None:
        self._closed.set()


async def ping(client: ResidentClient) -> Any:
    return await client.request("ping", {}, timeout_seconds=5)


async def ping_twice(client: ResidentClient) -> Any:
    await ping(client)
    return await ping(client)


async def read(client: ResidentClient) -> Any:
    return await client.request("read", {}, max_reply_bytes=frames.CHUNK_BYTES, timeout_seconds=5)


async def bundle(client: ResidentClient) -> Any:
    """A reply in parts that are taken slowly."""

    async def slowly(_part: bytes) -> None:
        await asyncio.sleep(0.05)

    return await client.request("bundle", {}, on_chunk=slowly, timeout_seconds=5)


async def run(client: ResidentClient) -> Any:
    return await ResidentSandbox(client).run(Command(argv="true", timeout_seconds=1))


async def lstat(client: ResidentClient) -> Any:
    return await ResidentSandbox(client).lstat("/workspace/x")


async def walk(client: ResidentClient) -> Any:
    return await ResidentSandbox(client).walk("/workspace", max_entries=100, timeout_seconds=5)


async def grep(client: ResidentClient) -> Any:
    return await ResidentSandbox(client).grep(
        "x", "/workspace", only=None, max_hits=100, timeout_seconds=5
    )


def cut(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), MIB):
        yield data[at : at + MIB]


def raw(kind: int, number: int, header: bytes = b"", payload: bytes = b"") -> bytes:
    return frames.PREFIX.pack(kind, number, len(header), len(payload)) + header + payload


def reply(result: Any, payload: bytes = b"", number: int = 1) -> bytes:
    return raw(frames.REPLY, number, frames.encode({"result": result}), payload)


def nested(kind: bytes, depth: int) -> bytes:
    return raw(frames.REPLY, 1, kind * depth + b"e" * depth)


RUN_RESULT = {
    "exit_code": 0, "output_bytes": 0, "total_bytes": 0, "timed_out": False,
    "out_of_memory": False, "seconds": 0.1,
}  # fmt: skip


def run_with(**fields: Any) -> Iterator[bytes]:
    return cut(reply({**RUN_RESULT, **fields}))


def entry(path: bytes = b"/x", **fields: bytes) -> bytes:
    values = {b"kind": b"f", b"size": b"1", b"modified": b"1.0", b"mode": b"644"}
    values |= {name.encode(): value for name, value in fields.items()}
    return b" ".join([*values.values(), path])


ATTACKS: dict[str, tuple[Use, Callable[[], Iterable[bytes]]]] = {
    "a reply to a request that was never made": (ping, lambda: [reply({}, number=99)]),
    "a reply with the number of a tunnel": (ping, lambda: [reply({}, number=-1)]),
    "a second reply": (ping_twice, lambda: [reply({}) + reply({})] * 2),
    "parts that nobody asked for": (ping, lambda: [raw(frames.MORE, 1, b"", b"x")]),
    "a part with a header": (bundle, lambda: [raw(frames.MORE, 1, b"n", b"x")]),
    "a part of 4 MiB": (bundle, lambda: cut(raw(frames.MORE, 1, b"", bytes(4 * MIB)))),
    "120 parts of 1 MiB, none acknowledged": (
        bundle, lambda: itertools.repeat(raw(frames.MORE, 1, b"", bytes(MIB)), 120)),
    "a hundred thousand empty parts": (
        bundle, lambda: cut(raw(frames.MORE, 1) * 100_000)),
    "a reply larger than what was asked for": (read, lambda: cut(reply({}, bytes(2 * MIB)))),
    "a payload of 4 GiB is announced": (
        read, lambda: [frames.PREFIX.pack(frames.REPLY, 1, 0, 0xFFFFFFFF)]),
    "a header of 4 MiB": (ping, lambda: cut(raw(frames.REPLY, 1, b"l" + b"n" * 4 * MIB + b"e"))),
    "a header of 60 KiB of values": (ping, lambda: [raw(frames.REPLY, 1, b"l" + b"n" * 60000 + b"e")]),
    "lists 10,000 deep": (ping, lambda: [nested(b"l", 10_000)]),
    "dicts 10,000 deep": (ping, lambda: [nested(b"m", 10_000)]),
    "a number of 50,000 digits": (ping, lambda: [raw(frames.REPLY, 1, b"i" + b"9" * 50_000 + b";")]),
    "a length of 50,000 digits": (ping, lambda: [raw(frames.REPLY, 1, b"s" + b"9" * 50_000 + b";")]),
    "a negative length": (ping, lambda: [raw(frames.REPLY, 1, b"s-5;abc")]),
    "a key twice": (ping, lambda: [raw(frames.REPLY, 1, b"ms1;aks1;ake")]),
    "a header that is a list": (ping, lambda: [raw(frames.REPLY, 1, b"le")]),
    "a header that is empty": (ping, lambda: [raw(frames.REPLY, 1)]),
    "no result and no error": (ping, lambda: [raw(frames.REPLY, 1, b"me")]),
    "an error number that is a text": (
        ping, lambda: [raw(frames.REPLY, 1, frames.encode({"errno": "2"}))]),
    "an error number that the kernel cannot have": (
        ping, lambda: [raw(frames.REPLY, 1, frames.encode({"errno": 1 << 80}))]),
    "a path that is a list": (
        ping, lambda: [raw(frames.REPLY, 1, frames.encode({"errno": 2, "path": ["x"]}))]),
    "a refusal that is a number": (
        ping, lambda: [raw(frames.REPLY, 1, frames.encode({"refused": 3}))]),
    "ready a second time": (ping, lambda: [READY]),
    "a request to the worker": (ping, lambda: [raw(frames.REQUEST, 1, b"me")]),
    "a credit to the worker": (ping, lambda: [raw(frames.CREDIT, 1)]),
    "a kind that does not exist": (ping, lambda: [raw(200, 1)]),
    "a tunnel that nobody may open": (ping, lambda: [raw(frames.TUNNEL, 1, b"ms5;events4;opene")]),
    "a process's tunnel that never began": (ping, lambda: [raw(frames.TUNNEL, -7, b"me")]),
    "text": (ping, lambda: [b"total 12\ndrwxr-xr-x 2 agent agent 4096 Jan  1 00:00 .\n"]),
    "an exit code that is a text": (run, lambda: run_with(exit_code="0")),
    "an exit code that is True": (run, lambda: run_with(exit_code=True)),
    "an exit code of 2 to the 70": (run, lambda: run_with(exit_code=1 << 70)),
    "more output than came": (run, lambda: run_with(output_bytes=5)),
    "less than no output": (run, lambda: run_with(output_bytes=-1)),
    "seconds that are not a number": (
        run, lambda: [raw(frames.REPLY, 1, b"ms6;resultms7;secondsdnan;ee")]),
    "seconds without end": (run, lambda: run_with(seconds=float("inf"))),
    "a result without its fields": (run, lambda: [reply({})]),
    "an entry that is not one": (lstat, lambda: [reply({}, b"f 1")]),
    "an entry of no kind": (lstat, lambda: [reply({}, entry(kind=b"x"))]),
    "an entry of negative size": (lstat, lambda: [reply({}, entry(size=b"-1"))]),
    "an entry of a size of 5,000 digits": (lstat, lambda: [reply({}, entry(size=b"9" * 5000))]),
    "an entry of the time nan": (lstat, lambda: [reply({}, entry(modified=b"nan"))]),
    "an entry of an infinite time": (lstat, lambda: [reply({}, entry(modified=b"inf"))]),
    "an entry of no possible mode": (lstat, lambda: [reply({}, entry(mode=b"7777777"))]),
    "two entries for one path": (lstat, lambda: [reply({}, entry() + b"\0" + entry())]),
    "more files than were asked for": (
        walk, lambda: cut(reply({"complete": True}, b"\0".join([entry()] * 200_000)))),
    "8 MiB of hits": (
        grep, lambda: cut(reply({"complete": True}, frames.encode([["/x", 1, "x"]] * 400_000)))),
    "hits that are numbers": (grep, lambda: [reply({"complete": True}, frames.encode([1, 2]))]),
    "hits that say no more": (grep, lambda: [reply({}, frames.encode([]))]),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_forged_frame_ends_the_sandbox_and_harms_nobody(attack: str) -> None:
    use, parts = ATTACKS[attack]
    client = ResidentClient(HostileStream(parts()))
    await client.start(1)

    with Stalls() as stalls:
        with pytest.raises(SandboxDied):
            await use(client)
        assert client.is_dead
        await client.close()

    assert stalls.longest_seconds < LONGEST_STALL_SECONDS


class Stalls:
    """The longest computation during which the loop did not run another task."""

    longest_seconds = 0.0

    def __enter__(self) -> Self:
        self._beating = asyncio.create_task(self._beat())
        return self

    def __exit__(self, *_error: object) -> None:
        self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            before = time.thread_time()  # a busy machine does not count
            await asyncio.sleep(0.001)
            self.longest_seconds = max(self.longest_seconds, time.thread_time() - before)


async def test_parts_that_are_never_acknowledged_take_eight_mebibytes_and_no_more() -> None:
    parts = itertools.repeat(raw(frames.MORE, 1, b"", bytes(MIB)), 120)
    stream = HostileStream(parts)
    client = ResidentClient(stream)
    await client.start(1)
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(SandboxDied):
            await bundle_but_impatient(client)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert stream.sent_bytes <= 11 * MIB
    assert peak < 14 * MIB  # before: 483
    await client.close()


async def bundle_but_impatient(client: ResidentClient) -> None:
    """Never takes a part, and asks something else meanwhile."""
    taking = asyncio.create_task(bundle(client))
    await asyncio.sleep(0)
    try:
        await ping(client)
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


async def test_a_request_that_was_given_up_may_still_be_answered_once_and_not_twice() -> None:
    late = asyncio.Event()

    class Late(HostileStream):
        async def read(self) -> bytes:
            if not self._first:
                await late.wait()
            return await super().read()

    client = ResidentClient(Late([reply({}), reply({}, number=2), reply({})]))
    await client.start(1)
    given_up = asyncio.create_task(ping(client))
    await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)

    later = asyncio.create_task(ping(client))
    late.set()
    assert await later == ({}, b"")
    with pytest.raises(SandboxDied):
        await ping(client)
    await client.close()


async def test_a_flood_of_frames_leaves_the_loop_to_others() -> None:
    begun = frames.pack_frame(frames.TUNNEL, -1, {"event": "data", "bytes": 0}, b"x")
    client = ResidentClient(HostileStream(itertools.repeat(begun * 3_000, 3)))
    await client.start(1)
    received, all_received = 0, asyncio.Event()

    def receive(*_frame: object) -> None:
        nonlocal received
        received += 1
        if received == 9_000:
            all_received.set()

    client.begin_tunnel(receive)
    with Stalls() as stalls:
        asking = asyncio.create_task(client.request("ping", {}, timeout_seconds=60))
        await all_received.wait()
        asking.cancel()

    assert stalls.longest_seconds < LONGEST_STALL_SECONDS
    await client.close()


def test_what_is_parsed_on_the_loop_is_small() -> None:
    hits = frames.encode([["/x", 1, "x"]] * (PARSED_ON_LOOP_BYTES // 17))
    started = time.process_time()

    frames.decode(hits)

    assert len(hits) <= PARSED_ON_LOOP_BYTES
    assert time.process_time() - started < LONGEST_STALL_SECONDS
