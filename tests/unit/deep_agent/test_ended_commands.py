"""What an ended command costs the event loop until it is reported."""

from __future__ import annotations

import asyncio
import selectors
from pathlib import Path

from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend

FEW_STEPS = 200
"""A loop that a readable descriptor keeps awake takes thousands in the time of a command."""


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the loop has looked for events."""

    looks = 0

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, selectors._EventMask]]:
        self.looks += 1
        return super().select(timeout)


def test_the_loop_rests_while_the_output_of_an_ended_command_is_awaited(tmp_path: Path) -> None:
    selector = CountingSelector()
    backend = LocalShellBackend(tmp_path)

    async def run() -> None:
        command = "sleep 2 & echo started"  # the first holds the command's output
        ended = await backend.execute(command, timeout_seconds=60, max_output_bytes=1000)
        assert ended.output == b"started\n"

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(run())

    assert selector.looks < FEW_STEPS
