"""Real Redis servers with passwords, users, certificates or little memory."""

from __future__ import annotations

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

    def options(self) -> list[str]:
        plain = [] if "--port" in self._options else ["--port", str(self.port)]
        return [*plain, *self._options]

    def answers(self) -> bool:
        try:
            with self.admin() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

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
