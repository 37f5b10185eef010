"""A command beside a hostile sandbox that exhausts one resource, against the same one alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

from fanout.workers.sandbox.protocol import Command, Sandbox
from tests.benchmarks.engine import bench
from tests.benchmarks.measure import Benchmark, Samples, Section, milliseconds

ROUNDS = 3
COMMANDS_A_ROUND = 60
SETTLING_SECONDS = 1.5
"""Until the neighbour has reached its limit, before the commands beside it are timed."""
ATTACK_SECONDS = 120.0
"""Longer than a round: its sandbox is closed while it runs."""

ATTACKS = {
    "cpu": "for i in $(seq 64); do (while :; do :; done) & done; wait",
    "memory": (
        "while :; do python3 -c 'kept = []\nwhile True: kept.append(bytearray(1 << 22))'; done"
    ),
    "pids": (
        "python3 -c 'import os, time\nwhile True:\n"
        "    try: os.fork()\n    except OSError: time.sleep(0.01)'"
    ),
    "disk": "while :; do dd if=/dev/zero of=full bs=1M; rm -f full; done",
    "output": "yes 0123456789012345678901234567890123456789012345678901234567890123",
    "descriptors": (
        "for i in $(seq 16); do (while :; do python3 -c '"
        "import socket\nkept = []\n"
        'try:\n    while True: kept += [socket.socketpair(), open("/dev/null")]\n'
        "except OSError: import time; time.sleep(1)'; done) & done; wait"
    ),
}
"""What the neighbour runs, by the resource that it exhausts."""

BENCHMARKS = {
    resource: Benchmark(
        name=f"beside-{resource}",
        title=f"trivial command next to one that exhausts {resource}",
        unit="ms",
        floor="the same command alone",
        target_p95_ratio=2.0,
    )
    for resource in ATTACKS
}


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Time the commands of one sandbox, alone and beside each attack in turn."""
    async with bench() as place, place.sandbox() as victim:
        await _commands(victim)  # a warm-up
        for resource, benchmark in BENCHMARKS.items():
            if benchmark.name not in wanted:
                continue
            beside: list[float] = []
            alone: list[float] = []
            for _ in range(ROUNDS):
                alone += await _commands(victim)
                async with place.sandbox() as neighbour, _attacked_by(neighbour, resource):
                    beside += await _commands(victim)
            yield benchmark, Samples(beside, alone)


async def _commands(sandbox: Sandbox) -> list[float]:
    return [
        await milliseconds(sandbox.run(Command(argv=["true"]))) for _ in range(COMMANDS_A_ROUND)
    ]


@contextlib.asynccontextmanager
async def _attacked_by(neighbour: Sandbox, resource: str) -> AsyncIterator[None]:
    """Let the neighbour exhaust a resource; it must be at it until the context is left."""
    command = Command(argv=ATTACKS[resource], timeout_seconds=ATTACK_SECONDS)
    attack = asyncio.create_task(neighbour.run(command))
    await asyncio.sleep(SETTLING_SECONDS)
    assert not attack.done(), f"the attack on {resource} has ended by itself"
    try:
        yield
    finally:
        attack.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await attack


SECTION = Section(benchmarks=tuple(BENCHMARKS.values()), run=run)
