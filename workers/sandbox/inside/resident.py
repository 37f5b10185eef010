"""The process inside a sandbox that carries out the worker's requests; PID 1 of its container.

It exchanges the frames of `frames` on standard input and output. This folder needs only Python 3.8
and the modules of Debian's python3-minimal, so that it runs in any image.

The end of standard input means that the worker is gone: every process is killed and the resident
exits. With `FANOUT_RESIDENT_TTL` (seconds) set, so does a silence of that length; any frame counts
as a sign of life.

A program of the same kind adds its own operations to `OPERATIONS` (quick: they block every other
request) and `SLOW_OPERATIONS` (each runs in a thread) and calls `main`.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial

from . import files, frames, seclusion
from .commands import Commands
from .loop import Context, Loop, OperationRefused

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .forward import Forward
    from .loop import Operation, Reply, SlowOperation


TTL_VARIABLE = "FANOUT_RESIDENT_TTL"
_LONGEST_SLEEP_SECONDS = 60.0
"""poll() does not accept longer timeouts everywhere, and one idle wake-up a minute costs
nothing."""
_THREAD_STACK_BYTES = 1 << 19
"""The stack of each thread: they copy and compare files, and a sandbox has little memory."""


def _network_namespace() -> int:
    return os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 - pathlib takes 5 ms to import


def _unknown(name: str, _arguments: dict[str, Any], _payload: bytes) -> Reply:
    raise OperationRefused("UnknownOperation", f"no operation {name}")


def _without_context(operation: Operation) -> SlowOperation:
    """Adapt an operation that has a single reply and ends without a cancellation."""
    return lambda _context, arguments, payload: operation(arguments, payload)


OPERATIONS: dict[str, Operation] = {
    "ping": lambda _arguments, _payload: ({"pid": os.getpid()}, b""),
    "network": lambda _arguments, _payload: ({"namespace": _network_namespace()}, b""),
    **files.OPERATIONS,
}
"""Quick operations by name."""

SLOW_OPERATIONS: dict[str, SlowOperation] = {
    name: _without_context(operation) for name, operation in files.SLOW_OPERATIONS.items()
}
"""Operations that run in their own thread, by name."""


class Resident:
    """Receives requests and sends replies."""

    def __init__(
        self, loop: Loop, incoming: int, commands: Commands, *, ttl_seconds: float
    ) -> None:
        self._loop, self._incoming, self._commands = loop, incoming, commands
        self._frames = frames.FrameReader(_accept)
        self._ttl_seconds, self._heard = ttl_seconds or float("inf"), time.monotonic()
        self._slow: dict[int, Context] = {}
        self._posted: deque[tuple[int, int, dict[str, Any] | None, bytes]] = deque()
        self._forward: Forward | None = None
        self._wake_read, self._wake_write = os.pipe()

    def serve(self) -> NoReturn:
        """Carry out requests until the peer closes its end."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._loop.watch(self._incoming, self._on_incoming)
        self._loop.watch(self._wake_read, self._on_wake)
        self._loop.send(frames.READY, 0)
        while True:
            now = time.monotonic()
            lapse = self._heard + self._ttl_seconds
            if now > lapse:
                self._end()
            until = min(self._commands.advance(now), lapse, now + _LONGEST_SLEEP_SECONDS)
            self._commands.watch_outputs()
            if self._forward is not None:
                self._forward.pause(self._loop.is_behind)
            # with no event requested, the peer's end is still reported
            self._loop.watch(self._incoming, None, 0 if self._loop.is_blocked else select.POLLIN)
            self._loop.wait(max(0.0, until - now))

    def _on_incoming(self, events: int) -> None:
        data = self._loop.receive() if events & select.POLLIN else b""
        if data is None:
            return
        if not data:
            self._end()
        self._heard = time.monotonic()
        try:
            for kind, number, header, payload in self._frames.feed(data):
                if kind == frames.CANCEL:
                    self._cancel(number)
                elif kind == frames.CREDIT:
                    self._credit(number)
                elif kind == frames.TUNNEL:
                    self._on_tunnel(number, frames.decode_header(header), payload)
                else:
                    self._request(number, frames.decode_header(header), payload)
        except (frames.FrameError, KeyError, TypeError, ValueError):
            self._end()  # what follows a malformed frame cannot be understood either

    def _request(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        name, arguments = header["op"], dict(header["arguments"])
        if name == "run":
            link = self._tunnels().pair(arguments["tunnel"]) if "tunnel" in arguments else None
            self._commands.start(number, arguments, payload, link)
        elif name in SLOW_OPERATIONS:
            self._start_slow(number, SLOW_OPERATIONS[name], arguments, payload)
        else:
            unknown = partial(_unknown, name)
            own = {"listen": self._listen, "end": self._end_processes}
            operation = own.get(name) or OPERATIONS.get(name, unknown)
            self._reply(number, *_carry_out(operation, arguments, payload))

    def _reply(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        try:
            self._loop.send(frames.REPLY, number, header, payload)
        except frames.FrameError:
            refusal = {"refused": "ReplyTooLarge", "message": "the reply is too large"}
            self._loop.send(frames.REPLY, number, refusal)

    def _cancel(self, number: int) -> None:
        slow = self._slow.get(number)
        if slow is None:
            self._commands.stop(number)
        else:
            slow.cancel()

    def _credit(self, number: int) -> None:
        slow = self._slow.get(number)
        if slow is None:
            self._commands.credit(number)
        else:
            slow.credit()

    def _listen(self, arguments: dict[str, Any], _payload: bytes) -> Reply:
        """Listen on a loopback port and carry its connections to the worker."""
        return {"port": self._tunnels().listen(int(arguments["port"]))}, b""

    def _end_processes(self, _arguments: dict[str, Any], _payload: bytes) -> Reply:
        """Kill everything. The reply says that nothing of the job is at work any more.

        The peer closes its end when the engine has the time to remove the container.
        """
        is_over = self._commands.end()
        files.forget_uploads()
        if self._slow or not is_over:  # a thread may write files, a process may survive
            self._end()
        return {}, b""

    def _tunnels(self) -> Forward:
        if self._forward is None:
            # Few sandboxes need it, and its import takes 10 ms.
            from .forward import Forward  # noqa: PLC0415

            self._forward = Forward(self._loop)
        return self._forward

    def _on_tunnel(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        if self._forward is not None:  # else it ends a process that was never started
            self._forward.frame(number, header["event"], payload, header.get("bytes", 0))

    def _start_slow(
        self, number: int, operation: SlowOperation, arguments: dict[str, Any], payload: bytes
    ) -> None:
        context = self._slow[number] = Context(partial(self._post, frames.MORE, number, None))
        with_context = partial(operation, context)

        def work() -> None:
            self._post(frames.REPLY, number, *_carry_out(with_context, arguments, payload))

        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:  # no process is left to the job: carry it out here, slowly
            del self._slow[number]
            self._reply(number, *_carry_out(with_context, arguments, payload))

    def _post(self, kind: int, number: int, header: dict[str, Any] | None, payload: bytes) -> None:
        """Queue a frame from a thread."""
        self._posted.append((kind, number, header, payload))
        with suppress(BlockingIOError):  # then it is awake
            os.write(self._wake_write, b"\0")

    def _on_wake(self, _events: int) -> None:
        os.read(self._wake_read, 4096)
        while self._posted:
            kind, number, header, payload = self._posted.popleft()
            if header is None:
                self._loop.send(kind, number, None, payload)
            else:
                self._slow.pop(number, None)
                self._reply(number, header, payload)
        self._commands.reap()

    def _end(self) -> NoReturn:
        """Kill everything and exit: the worker is gone."""
        self._commands.end()
        files.forget_uploads()
        os._exit(0)


def _carry_out(
    operation: Operation, arguments: dict[str, Any], payload: bytes
) -> tuple[dict[str, Any], bytes]:
    """Carry out an operation; return header and payload of the reply."""
    try:
        result, data = operation(arguments, payload)
    except OperationRefused as refusal:
        return {"refused": refusal.kind, "message": str(refusal)}, b""
    except OSError as error:
        path = error.filename if isinstance(error.filename, str) else arguments.get("path")
        return {"errno": error.errno or errno.EIO, "path": path}, b""
    except ValueError:  # a path with a NUL
        return {"errno": errno.EINVAL, "path": arguments.get("path")}, b""
    except Exception as error:  # noqa: BLE001 - must not end every other request
        message = "the operation failed"
        return {"refused": type(error).__name__, "message": message}, b""
    return {"result": result}, data


def _accept(kind: int, _number: int, header_bytes: int, payload_bytes: int) -> None:
    """Accept what a client may send; it is trusted, a stream that is out of step is not."""
    if kind not in (frames.REQUEST, frames.CANCEL, frames.CREDIT, frames.TUNNEL):
        raise frames.FrameError("an unknown kind")
    if header_bytes > frames.MAX_HEADER_BYTES or payload_bytes > frames.MAX_PAYLOAD_BYTES:
        raise frames.FrameError("the frame is too big")


def main(*, reap_orphans: bool = True) -> NoReturn:
    """Serve the peer on standard input and output.

    Args:
        reap_orphans: collect the status of every ended child. A program whose slow operations start
            and wait for processes of their own passes False, or their exit codes would be lost.
    """
    oom_score = seclusion.seclude()
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # a handler, unlike SIG_IGN, is not inherited
        signal.signal(number, lambda _number, _frame: None)
    os.umask(0o022)
    threading.stack_size(_THREAD_STACK_BYTES)
    ttl_seconds = float(os.environ.get(TTL_VARIABLE, "0"))
    loop = Loop(incoming, outgoing)
    commands = Commands(loop, reap_orphans=reap_orphans, oom_score=oom_score)
    Resident(loop, incoming, commands, ttl_seconds=ttl_seconds).serve()
