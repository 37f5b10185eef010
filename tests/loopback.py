"""HTTP servers of tests, on ports of 127.0.0.1."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

T = TypeVar("T")


class Methods(BaseHTTPRequestHandler):
    """Calls `get`, `post`, `head` or `delete`."""

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def do_HEAD(self) -> None:
        self.head()

    def do_DELETE(self) -> None:
        self.delete()


class LoopbackHandler(Methods):
    """Reads and writes JSON, and prints nothing; `state` is what its server was begun with."""

    @property
    def state(self) -> Any:
        return self.server.state

    def read_json(self) -> Any:
        """Return the body of the request."""
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def send(self, status: int, body: bytes, media_type: str = "application/json") -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, status: int, value: Any) -> None:
        """Send a value as JSON."""
        self.send(status, json.dumps(value).encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def loopback_server(
    handler: type[BaseHTTPRequestHandler],
    make_state: Callable[[str], T],
    address: str = "127.0.0.1",
) -> Iterator[T]:
    """Serve with this handler.

    Args:
        handler: Answers each request.
        make_state: Makes what its requests share, of the server's URL; this is yielded.
        address: Of this machine's loopback.
    """
    with ThreadingHTTPServer((address, 0), handler) as server:
        server.daemon_threads = True
        state = server.state = make_state(f"http://{address}:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def gemini_environment(url: str) -> dict[str, str]:
    """The variables that send Gemini's client to this server."""
    return {
        "GOOGLE_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": url,
        "FANOUT_MODEL": "gemini-2.5-flash",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
