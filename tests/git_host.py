"""A Git host over HTTPS, and an API beside it: both ask for a key with every request."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class GitHost:
    """Serves the bare repositories in a folder by Git's own program, and `/v1/` as an API.

    Args:
        folder: The repositories.
        context: The context of its TLS.
        wanted: The headers without which a request is answered with 401, by the path's beginning.
    """

    def __init__(
        self, folder: Path, context: ssl.SSLContext, wanted: Mapping[str, tuple[str, str]]
    ) -> None:
        self.folder = folder
        self.wanted = wanted
        self.refused: list[str] = []
        host = self

        class Handler(_Handler):
            git_host = host

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])

    @contextlib.contextmanager
    def serving(self) -> Iterator[GitHost]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    git_host: GitHost
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self._body()
        for beginning, (name, value) in self.git_host.wanted.items():
            if self.path.startswith(beginning) and self.headers.get(name) != value:
                self.git_host.refused.append(self.path)
                self._reply(401, {"WWW-Authenticate": "Basic"}, b"no key\n")
                return
        if self.path.startswith("/v1/"):
            self._reply(200, {}, json.dumps(dict(self.headers)).encode())
        else:
            self._git(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _git(self, body: bytes) -> None:
        url = urlsplit(self.path)
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "GIT_PROJECT_ROOT": str(self.git_host.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REMOTE_USER": "job",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=True
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._reply(int(headers.pop("Status", "200").split()[0]), headers, content)

    def _reply(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Print nothing."""


def make_repository(path: Path) -> None:
    """Make a bare repository with one commit on `main`."""
    tree, identity = path.with_suffix(".tree"), ["-c", "user.name=t", "-c", "user.email=t@example"]
    tree.mkdir(parents=True)
    (tree / "README").write_text("a project\n")
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", "first"],
        ["clone", "-q", "--bare", ".", str(path)],
    ):
        subprocess.run(["git", *command], cwd=tree, check=True)
    subprocess.run(["git", "-C", path, "config", "http.receivepack", "true"], check=True)
