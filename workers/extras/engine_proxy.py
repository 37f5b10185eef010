"""A proxy of the Docker engine's socket, which passes the calls that a worker makes.

Who can open the engine's socket is root on its host. A worker therefore opens the socket of this
proxy, which passes only what `engine_rules` permits: a worker's calls, with the configurations that
`workers/sandbox/docker` builds. It needs no right but to open the engine's socket:

    python -P -m fanout.workers.extras.engine_proxy --listen /run/fanout/engine.sock

Building images is not a worker's call: `fanout images build` needs the engine itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import h11
import structlog

from fanout.orchestrator.jobs.failures import SandboxFailure

from ..sandbox.docker.engine import Engine
from .engine_rules import Call, CallRefused, Passed, Rules

_HEAD_BYTES = 64 * 1024
"""The longest head of a request: a list's filters are its longest part."""
_BODY_BYTES = 8 * 1024**2
"""The longest body: the steward's code, some 200 KiB, is the longest one."""
_REQUEST_SECONDS = 30.0
"""The time in which a request has to arrive completely."""
_PIECE_BYTES = 64 * 1024
"""Relayed at once: what a pipe holds."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class EngineProxy:
    """The proxy of one engine.

    Attributes:
        engine_socket: the path of the engine's unix socket.
        rules: which calls pass.
    """

    engine_socket: str
    rules: Rules

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end; for `asyncio.start_unix_server`."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    call, rest = await _read(reader)
                await self._relay(await self._checked(call), rest, reader, writer)
            except CallRefused as refused:
                await _answer(writer, 403, f"fanout's engine proxy refuses this call: {refused}.")
            except (h11.RemoteProtocolError, TimeoutError):
                await _answer(writer, 400, "fanout's engine proxy cannot read this request.")
        writer.close()

    async def _checked(self, call: Call) -> Passed:
        try:
            return await self.rules.check(call)
        except CallRefused as refused:
            log.warning("engine call refused", method=call.method, reason=str(refused))
            raise

    async def _relay(
        self,
        passed: Passed,
        rest: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            from_engine, to_engine = await asyncio.open_unix_connection(self.engine_socket)
        except OSError:
            await _answer(writer, 502, "The Docker engine behind fanout's proxy does not answer.")
            return
        try:
            to_engine.write(_head(passed) + passed.body)
            if passed.upgrade:
                to_engine.write(rest)
                await _both_ways((reader, to_engine), (from_engine, writer))
            else:
                await _copy(from_engine, writer)
        finally:
            to_engine.close()


async def _read(reader: asyncio.StreamReader) -> tuple[Call, bytes]:
    """Return a request, and what of an upgraded connection's data came with it."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
    request: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                raise CallRefused("it waits for a sign to go on")
            connection.receive_data(await reader.read(_PIECE_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _BODY_BYTES:
                raise CallRefused(f"its body is longer than {_BODY_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            break
        else:  # the connection was closed before a request
            raise asyncio.IncompleteReadError(b"", None)
    upgrade = any(name == b"upgrade" for name, _ in request.headers)
    call = Call(request.method.decode(), request.target.decode("ascii"), bytes(body), upgrade)
    return call, connection.trailing_data[0]


def _head(passed: Passed) -> bytes:
    fields = [f"{passed.method} {passed.target} HTTP/1.1", "Host: docker"]
    fields += ["Connection: Upgrade", "Upgrade: tcp"] if passed.upgrade else ["Connection: close"]
    if passed.body:
        fields.append(f"Content-Type: {passed.content_type}")
    fields.append(f"Content-Length: {len(passed.body)}")
    return ("\r\n".join(fields) + "\r\n\r\n").encode("ascii")


async def _both_ways(
    there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Relay until the engine ends its side; the end of the worker's side is passed on.

    A worker that dies ends its side, and a sandbox ends with its input.
    """
    inward = asyncio.create_task(_copy(*there))
    try:
        await _copy(*back)
    finally:
        inward.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await inward


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE_BYTES):
        target.write(piece)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _answer(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    body = json.dumps({"message": message}).encode()
    head = f"HTTP/1.1 {status} {'Forbidden' if status == 403 else 'Error'}\r\n"  # noqa: PLR2004
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write((head + fields + "Connection: close\r\n\r\n").encode() + body)
    await writer.drain()


def main() -> None:
    """Run the proxy with the options of the command line.

    Raises:
        SystemExit: The options are not usable, or the engine does not answer.
    """
    parser = argparse.ArgumentParser(
        prog="python -P -m fanout.workers.extras.engine_proxy",
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
        rules = Rules(engine.read_labels, str((await engine.info())["DockerRootDir"]))
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
