"""Real Redis servers with passwords, users, certificates or little memory."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.services import RedisProcess, free_port


class GuardedRedis(RedisProcess):
    """A private redis-server with more options.

    Args:
        folder: the folder of its files.
        options: of redis-server's command line; `{port}` and `{bus}` stand for its ports.
        url: where its clients find it; `{port}` stands for its port.
        admin: options of a client that may do everything.
    """

    def __init__(
        self, folder: Path, *options: str, url: str = "redis://127.0.0.1:{port}/0", **admin: Any
    ) -> None:
        super().__init__(folder)
        bus = free_port()
        self._options = [option.format(port=self.port, bus=bus) for option in options]
        self.url = url.format(port=self.port)
        self._admin = admin

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        plain = [] if "--port" in self._options else ["--port", str(self.port)]
        command = [binary, *plain, "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", *self._options]
        deadline = time.monotonic() + 20
        while True:
            if self._process is None or self._process.poll() is not None:
                # Again, if another test's connection has had one of its ports meanwhile.
                self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                with self.admin() as client:
                    client.ping()
                    return
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server did not start"
                time.sleep(0.05)

    def admin(self) -> redis.Redis:
        """A client that may do everything."""
        return redis.Redis(host="127.0.0.1", port=self.port, decode_responses=True, **self._admin)


@contextmanager
def guarded_redis(folder: Path, *options: str, **more: Any) -> Iterator[GuardedRedis]:
    """A server for the duration of a context."""
    server = GuardedRedis(folder, *options, **more)
    server.start()
    try:
        yield server
    finally:
        server.stop()
