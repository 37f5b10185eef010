"""A server of the service as a process of a test, and keys for it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from fanout.orchestrator.jobs.spec import DEFINITIONS_ONLY, CallerPolicy
from fanout.orchestrator.jobs.store.access_stores import open_access_stores
from tests.forked import REPOSITORY, ForkedProcess
from tests.services import START_SECONDS, Installation

ALL = ("submit", "read", "approve", "admin")
_URL = re.compile(r"fanout serves at (\S+)")


@dataclass
class ServerProcess:
    """`fanout serve` on a free port of the loopback."""

    installation: Installation
    name: str = "server"
    forked: bool = True
    """Without the seconds of its imports; one that is measured is not, since forks share memory."""
    settings: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ("--port", "0")
    url: str = field(default="", init=False)
    process: subprocess.Popen[bytes] | ForkedProcess = field(init=False)

    def start(self) -> str:
        """Start it, and return where it is reached."""
        environment = {**self.installation.environment, **self.settings}
        with self.log.open("wb") as log:
            arguments = ("serve", *self.options)
            if self.forked:
                self.process = ForkedProcess(
                    "orchestrator", arguments, environment, stdout=log, stderr=log
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "fanout", *arguments],
                    env=environment,
                    cwd=REPOSITORY,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        deadline = time.monotonic() + START_SECONDS
        while not (found := _URL.search(self.log.read_text(errors="replace"))):
            assert self.process.poll() is None, self.tail()
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.02)
        self.url = found[1]
        # A successor takes the same address.
        self.options = ("--port", self.url.rpartition(":")[2])
        return self.url

    @property
    def log(self) -> Path:
        """Its output."""
        return self.installation.folder / f"{self.name}.log"

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait(timeout=60)

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)

    def tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-3000:]

    def client(self, key: str) -> httpx2.AsyncClient:
        """A client with a key."""
        return httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )


async def make_key(
    installation: Installation,
    name: str,
    *scopes: str,
    owner: str | None = None,
    tenant: str = "default",
    policy: CallerPolicy = DEFINITIONS_ONLY,
) -> str:
    """A new key, with all scopes unless some are named."""
    settings = installation.settings
    url = installation.environment["FANOUT_REDIS_URL"]
    async with open_access_stores(url, settings.redis_prefix) as stores:
        key, _ = await stores.keys.create(
            name,
            scopes or ALL,
            owner=owner or name,
            tenant=tenant,
            created_by="test",
            policy=policy,
        )
    return key
