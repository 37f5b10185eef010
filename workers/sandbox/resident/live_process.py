"""A process in a container, its input and output carried by a tunnel."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from orchestrator.deep_agent import Execution, OutputSink
from workers.sandbox.inside import frames
from workers.sandbox.process import Process
from workers.sandbox.resident.client import ResidentClient
from workers.sandbox.resident.tunnels import Tunnel


class _ProcessTunnel(Tunnel):
    """The tunnel to a process in a container."""

    def on_frame(self, header: dict[str, Any], payload: bytes) -> None:
        """Handle a frame.

        Raises:
            FrameError: it breaks the protocol.
        """
        event, taken = header.get("event"), header.get("bytes", 0)
        if type(event) is not str or type(taken) is not int:
            raise frames.FrameError("a tunnel's frame is malformed")
        if event == "reset":
            self.break_off()
        else:
            self.receive(event, payload, taken)


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
    tunnel = _ProcessTunnel(0, client.send_tunnel)
    tunnel.number = client.begin_tunnel(tunnel.on_frame)
    process = Process(tunnel, max_error_bytes)
    process.begin(run(tunnel.number, process.add_errors))
    try:
        yield process
    finally:
        try:
            await process.stop()
        finally:
            await client.close_tunnel(tunnel.number)
