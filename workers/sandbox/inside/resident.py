"""The process inside a sandbox that carries out the worker's requests; PID 1 of its container.

It speaks the frames of `wire` on standard input and output, and needs only Python 3.8 and the
modules of Debian's python3-minimal, so that it runs in any image; `resident_code` says which files
it consists of.

The end of standard input means that the worker is gone: every process is killed and the resident
ends. With `FANOUT_RESIDENT_TTL` (seconds) set, so does a silence of that length; any frame breaks
it.

A program of the same kind adds its own operations to `OPERATIONS` (quick: they hold up every other
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

from workers.sandbox.inside import files as resident_files
from workers.sandbox.inside import frames as wire
from workers.sandbox.inside.commands import Commands

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from workers.sandbox.inside.forward import Forward

    Reply = tuple[dict[str, Any], bytes]
    """What the client gets: a result and a payload."""
    Operation = Callable[[dict[str, Any], bytes], Reply]
    SlowOperation = Callable[["Context", dict[str, Any], bytes], Reply]
    Handler = Callable[[int], object]

BEHIND_BYTES = 128 << 10
"""When this much waits for the peer, no tunnel is read: what commands send does not wait behind
it."""
STALLED_BYTES = 4 << 20
"""When this much waits for the peer, no command output is read until it has gone."""
MAX_WAITING_BYTES = 32 << 20
"""When this much waits for the peer, no request is read either."""
TTL_VARIABLE = "FANOUT_RESIDENT_TTL"
_LONGEST_SLEEP_SECONDS = 60.0
"""poll() takes no longer timeouts everywhere, and an idle wake-up a minute costs nothing."""
_THREAD_STACK_BYTES = 1 << 19
"""Of each thread: it copies and compares files, and a sandbox has little memory."""
_PR_SET_DUMPABLE = 4


class Refused(Exception):
    """An operation's own failure, which crosses to the client as its kind and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Context:
    """What a slow operation gets beside its arguments: the way back to its client."""

    def __init__(self, post: Callable[[dict[str, Any], bytes], None], number: int) -> None:
        self._post, self._number = post, number
        self._credits = threading.Semaphore(wire.CHUNKS_IN_FLIGHT)
        self.cancelled = False
        """The client no longer wants the answer."""

    def send_chunk(self, data: bytes) -> None:
        """Send a part of the answer, at most `wire.CHUNK_BYTES`; waits while the client is behind.

        Raises:
            InterruptedError: the client no longer wants it.
        """
        self._credits.acquire()
        if self.cancelled:
            raise InterruptedError(errno.EINTR, "cancelled")
        self._post({"id": self._number, "more": True}, data)

    def credit(self) -> None:
        """The client took one part."""
        self._credits.release()

    def cancel(self) -> None:
        """Stop a waiting `send_chunk`, and every later one."""
        self.cancelled = True
        self._credits.release()


def _without_context(operation: Operation) -> SlowOperation:
    """A slow operation that has one answer and ends by itself."""
    return lambda _context, arguments, payload: operation(arguments, payload)


OPERATIONS: dict[str, Operation] = {
    "ping": lambda _arguments, _payload: ({"pid": os.getpid()}, b""),
    **resident_files.OPERATIONS,
}
"""Quick operations, by name."""

SLOW_OPERATIONS: dict[str, SlowOperation] = {
    name: _without_context(operation) for name, operation in resident_files.SLOW_OPERATIONS.items()
}
"""Operations that run in a thread each, by name."""


class Loop:
    """Descriptors and frames: what arrives, what is to be sent, who listens."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        os.set_blocking(incoming, False)
        os.set_blocking(outgoing, False)

    @property
    def is_behind(self) -> bool:
        """Whether the peer is so far behind that tunnels are not read."""
        return self._waiting_bytes > BEHIND_BYTES

    @property
    def is_stalled(self) -> bool:
        """Whether the peer is so far behind that output is not read."""
        return self._waiting_bytes > STALLED_BYTES

    @property
    def is_blocked(self) -> bool:
        """Whether the peer is so far behind that requests are not read."""
        return self._waiting_bytes > MAX_WAITING_BYTES

    def watch(self, descriptor: int, handler: Handler | None, events: int = select.POLLIN) -> None:
        """Call a handler (None: the one that it has) when one of the events comes."""
        if handler is not None:
            self._handlers[descriptor] = handler
        if self._masks.get(descriptor) != events:
            self._masks[descriptor] = events
            self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Listen no more."""
        if self._masks.pop(descriptor, None) is not None:
            del self._handlers[descriptor]
            self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Call the handlers of what comes within that time."""
        for descriptor, events in self._poll.poll(seconds * 1000 + 1):
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(events)

    def receive(self) -> bytes | None:
        """What has arrived; empty when the peer is gone, None when it was nothing."""
        try:
            return os.read(self._incoming, 1 << 18)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame as soon as the peer takes it; never waits."""
        frame = memoryview(wire.pack_frame(header, payload))
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._flush()

    def _flush(self, _events: int = 0) -> None:
        while self._waiting:
            frame = self._waiting[0]
            try:
                sent = os.write(self._outgoing, frame)
            except BlockingIOError:
                self.watch(self._outgoing, self._flush, select.POLLOUT)
                return
            except OSError:  # the peer is gone, and the end of our input will say so, too
                self._waiting.clear()
                self._waiting_bytes = 0
                break
            self._waiting_bytes -= sent
            self._waiting.popleft()
            if sent < len(frame):
                self._waiting.appendleft(frame[sent:])
        self.forget(self._outgoing)


class Resident:
    """Requests in, replies out."""

    def __init__(
        self, incoming: int, outgoing: int, *, ttl_seconds: float, reap_orphans: bool
    ) -> None:
        self._loop = Loop(incoming, outgoing)
        self._commands = Commands(self._loop, reap_orphans=reap_orphans)
        self._incoming = incoming
        self._frames = wire.FrameReader()
        self._ttl_seconds, self._heard = ttl_seconds, time.monotonic()
        self._slow: dict[int, Context] = {}
        self._posted: deque[tuple[dict[str, Any], bytes]] = deque()
        self._forward: Forward | None = None
        self._wake_read, self._wake_write = os.pipe()

    def serve(self) -> NoReturn:
        """Carry out requests until the peer is gone."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._loop.watch(self._incoming, self._on_incoming)
        self._loop.watch(self._wake_read, self._on_wake)
        self._loop.send({"ready": True, "pid": os.getpid()})
        while True:
            now = time.monotonic()
            lapse = (
                self._heard + self._ttl_seconds
                if self._ttl_seconds
                else now + _LONGEST_SLEEP_SECONDS
            )
            if now > lapse:
                self._end()
            until = min(self._commands.advance(now), lapse, now + _LONGEST_SLEEP_SECONDS)
            self._commands.watch_outputs(0 if self._loop.is_stalled else select.POLLIN)
            if self._forward is not None:
                self._forward.pause(self._loop.is_behind)
            # with no event asked for, the peer's end is reported all the same
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
            for header, payload in self._frames.feed(data):
                self._request(header, payload)
        except (wire.FrameError, KeyError, TypeError):
            self._end()  # what follows a malformed frame cannot be understood either

    def _request(self, header: dict[str, Any], payload: bytes) -> None:
        name = header["op"]
        if name in ("cancel", "credit"):
            self._control(name, header["target"])
            return
        if name == "tunnel":
            self._on_tunnel(header, payload)
            return
        number, arguments = int(header["id"]), dict(header["arguments"])
        if name == "run":
            link = self._tunnels().pair(arguments["tunnel"]) if "tunnel" in arguments else None
            self._commands.start(number, arguments, payload, link)
        elif name == "listen":
            self._loop.send(*_carry_out(self._listen, number, arguments, payload))
        elif name in SLOW_OPERATIONS:
            self._start_slow(number, SLOW_OPERATIONS[name], arguments, payload)
        elif name in OPERATIONS:
            self._loop.send(*_carry_out(OPERATIONS[name], number, arguments, payload))
        else:
            self._loop.send(
                {"id": number, "refused": "UnknownOperation", "message": f"no operation {name}"}
            )

    def _control(self, name: str, target: int) -> None:
        slow = self._slow.get(target)
        if slow is None:
            if name == "cancel":
                self._commands.stop(target)
        elif name == "cancel":
            slow.cancel()
        else:
            slow.credit()

    def _listen(self, arguments: dict[str, Any], _payload: bytes) -> Reply:
        """From now on carry connections to a loopback port to the worker."""
        return {"port": self._tunnels().listen(int(arguments["port"]))}, b""

    def _tunnels(self) -> Forward:
        if self._forward is None:
            from workers.sandbox.inside.forward import (  # noqa: PLC0415 - few need it, 10 ms to import
                Forward,
            )

            self._forward = Forward(self._loop)
        return self._forward

    def _on_tunnel(self, header: dict[str, Any], payload: bytes) -> None:
        if self._forward is None:
            raise wire.FrameError("no tunnel is open")
        self._forward.frame(header["target"], header["event"], payload, header.get("bytes", 0))

    def _start_slow(
        self, number: int, operation: SlowOperation, arguments: dict[str, Any], payload: bytes
    ) -> None:
        context = self._slow[number] = Context(self._post, number)

        def with_context(arguments: dict[str, Any], payload: bytes) -> Reply:
            return operation(context, arguments, payload)

        def work() -> None:
            self._post(*_carry_out(with_context, number, arguments, payload))

        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:  # the job has used up its processes: better slowly than not at all
            self._loop.send(*_carry_out(with_context, number, arguments, payload))

    def _post(self, header: dict[str, Any], payload: bytes) -> None:
        """Hand a frame over from a thread."""
        self._posted.append((header, payload))
        with suppress(BlockingIOError):  # then it is awake
            os.write(self._wake_write, b"\0")

    def _on_wake(self, _events: int) -> None:
        os.read(self._wake_read, 4096)
        while self._posted:
            header, payload = self._posted.popleft()
            if "more" not in header:
                self._slow.pop(header["id"], None)
            self._loop.send(header, payload)
        self._commands.reap()

    def _end(self) -> NoReturn:
        """The worker is gone: so is everything here."""
        self._commands.end()
        resident_files.forget_uploads()
        os._exit(0)


def _carry_out(
    operation: Operation, number: int, arguments: dict[str, Any], payload: bytes
) -> tuple[dict[str, Any], bytes]:
    """The frame that answers a request."""
    try:
        result, data = operation(arguments, payload)
    except Refused as refusal:
        return {"id": number, "refused": refusal.kind, "message": str(refusal)}, b""
    except OSError as error:
        path = error.filename if isinstance(error.filename, str) else arguments.get("path")
        return {"id": number, "errno": error.errno or errno.EIO, "path": path}, b""
    except ValueError:  # a path with a NUL
        return {"id": number, "errno": errno.EINVAL, "path": arguments.get("path")}, b""
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end every other request
        return {
            "id": number,
            "refused": type(error).__name__,
            "message": "the operation failed",
        }, b""
    return {"id": number, "result": result}, data


def _become_undumpable() -> None:
    """Keep processes of the same user from attaching to this one or opening its descriptors."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - python3-minimal has none

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main(*, reap_orphans: bool = True) -> NoReturn:
    """Serve the peer on standard input and output.

    Args:
        reap_orphans: take the status of every ended child. A program whose slow operations start
            and await processes of their own says False, or their exit codes would be lost.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda _number, _frame: None
        )  # a handler, unlike SIG_IGN, is not inherited
    os.umask(0o022)
    threading.stack_size(_THREAD_STACK_BYTES)
    ttl_seconds = float(os.environ.get(TTL_VARIABLE, "0"))
    resident = Resident(incoming, outgoing, ttl_seconds=ttl_seconds, reap_orphans=reap_orphans)
    _become_undumpable()
    resident.serve()
