"""`python -P -m fanout.workers.sandbox.engine_proxy`: serve workers until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.engine_proxy.proxy import EngineProxy
from fanout.workers.sandbox.engine_proxy.rules import Rules


def main() -> None:
    """Run the proxy with the options of the command line.

    Raises:
        SystemExit: The options are not usable, or the engine does not answer.
    """
    parser = argparse.ArgumentParser(
        prog="python -P -m fanout.workers.sandbox.engine_proxy",
        description="Let workers use a Docker engine for sandboxes, and for nothing else.",
    )
    parser.add_argument("--listen", required=True, type=Path, help="path of the socket to create")
    parser.add_argument(
        "--engine", default="/var/run/docker.sock", help="path of the engine's socket"
    )
    parser.add_argument(
        "--mode", default="600", help="the new socket's mode; 660 lets its group connect"
    )
    options = parser.parse_args()
    try:
        asyncio.run(_serve(options.listen, options.engine, int(options.mode, 8)))
    except (SandboxFailure, OSError) as error:
        sys.exit(f"{error}")


async def _serve(path: Path, engine_socket: str, mode: int) -> None:
    engine = Engine(f"unix://{engine_socket}")
    try:
        rules = Rules(engine.labels_of, str((await engine.info())["DockerRootDir"]))
        listening = _socket(path, mode)
        server = await asyncio.start_unix_server(
            EngineProxy(engine_socket, rules).serve, sock=listening
        )
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        print("ready", file=sys.stderr, flush=True)  # noqa: T201 - the process's own words
        await stopped.wait()
        server.close()
    finally:
        await engine.close()


def _socket(path: Path, mode: int) -> socket.socket:
    """Return a bound socket that never had another mode."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o777 & ~mode)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    return listening


if __name__ == "__main__":
    main()
