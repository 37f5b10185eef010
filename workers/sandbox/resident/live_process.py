"""A process in a container, its input and output carried by a tunnel."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fanout.orchestrator.deep_agent import Execution, OutputSink
from fanout.workers.sandbox.process import Process
from fanout.workers.sandbox.resident.client import ResidentClient
from fanout.workers.sandbox.resident.tunnels import Tunnel, parse_event


@contextlib.asynccontextmanager
async def resident_process(
    client: ResidentClient,
    max_error_bytes: int,
    run: Callable[[int, OutputSink], Coroutine[Any, Any, Execution]],
) -> AsyncIterator[Process]:
    """Run a process in a resident's sandbox while the context is open.

    Args:
        client: the resident's client.
        max_error_bytes: how much of its error output is kept.
        run: runs the command on the tunnel of that number, with a sink for its error output.

    Raises:
        SandboxFailure: the sandbox failed.
    """
    tunnel = Tunnel(0, client.send_tunnel)

    def on_frame(_number: int, header: dict[str, Any], payload: bytes) -> None:
        event, taken = parse_event(header)
        if event == "reset":
            tunnel.break_off()
        else:
            tunnel.receive(event, payload, taken)

    tunnel.number = client.begin_tunnel(on_frame)
    process = Process(tunnel, max_error_bytes)
    process.begin(run(tunnel.number, process.add_errors))
    try:
        yield process
    finally:
        try:
            await process.stop()
        finally:
            await client.close_tunnel(tunnel.number)
