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

from tests.services import RedisProcess


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
        self._options = [option.format(port=self.port, bus=self.port ^ 1) for option in options]
        self.url = url.format(port=self.port)
        self._admin = admin

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        plain = [] if "--port" in self._options else ["--port", str(self.port)]
        command = [binary, *plain, "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
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
