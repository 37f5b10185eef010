"""Real services as processes of a test: a Redis that can be killed, workers that can be killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.jobs.store.keys import Keys
from tests.forked import REPOSITORY, ForkedProcess
from tests.integration.scripts import write_agents, write_script
from tests.waits import eventually, eventually_in_thread

START_SECONDS = 90.0


WAITS = "touch begun; until [ -e may-end ]; do sleep 0.1; done; rm begun may-end"
"""A command of a local job that ends when `Installation.let_end` says so."""


def free_port() -> int:
    """Return a port of the loopback that nothing listens on, for a service that does not choose."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisProcess:
    """A private redis-server with `appendfsync always`, on a free port of the loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        place = ["--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process is None or self._process.poll() is not None:
                # Again, if another test's connection has had its port meanwhile.
                self._process = subprocess.Popen(
                    [binary, *place, *self.options()], stdout=subprocess.DEVNULL
                )
            if self.answers():
                return
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.05)

    def options(self) -> list[str]:
        """Its own options of redis-server's command line."""
        return ["--port", str(self.port), "--appendonly", "yes", "--appendfsync", "always"]

    def answers(self) -> bool:
        """Whether it answers PING."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=60)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=60)


def _is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped by a signal."""
    states = [
        path.read_text().rpartition(")")[2].split()[0]
        for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


@dataclass
class WorkerProcess:
    """A worker as `fanout worker` runs it."""

    environment: dict[str, str]
    log: Path
    concurrency: int = 4
    module: str = "fanout.workers"
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | ForkedProcess | None = field(default=None, init=False)
    is_ended: bool = field(default=False, init=False)
    """A test has ended it: its exit code, which on a busy machine may be any, says nothing."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=self.environment,
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module, *self.arguments()]

    def arguments(self) -> list[str]:
        return ["--concurrency", str(self.concurrency), *self.options]

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.is_ended = True
            self.process.wait(timeout=60)
        if number is signal.SIGSTOP:  # a thread on another processor runs on for a moment
            eventually_in_thread(lambda: _is_stopped(self.process.pid))

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.send(signal.SIGTERM)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


class ForkedWorker(WorkerProcess):
    """The same, without the seconds of its imports."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = ForkedProcess(
                self.module, self.arguments(), self.environment, stdout=log, stderr=log
            )


class Installation:
    """One Redis, one state folder, any number of workers, and the settings that a client needs."""

    def __init__(
        self, folder: Path, redis: RedisProcess, *, script: Path | None, **environment: str
    ) -> None:
        self.folder = folder
        self.redis = redis
        self.workers: list[WorkerProcess] = []
        self._identity = ""
        self.settings: Settings = load_settings(
            redis_url=redis.url,
            redis_prefix=environment.get("FANOUT_REDIS_PREFIX", "fanout"),
            state_dir=folder / "state",
            **({"model": f"scripted:{script}"} if script else {}),
        )
        agents = environment.get("FANOUT_AGENTS_DIR")
        self.definitions = load_agent_definitions(Path(agents) if agents else None)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FANOUT_")}
        self.environment = {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            "FANOUT_REDIS_URL": redis.url,
            "FANOUT_STATE_DIR": str(folder / "state"),
            "FANOUT_SANDBOX__PROVIDER": "local",
            "FANOUT_WORKER__PROCESSES": "1",  # tests stop and weigh the one that they start
            "ADK_SUPPRESS_EXPERIMENTAL_FEATURE_WARNINGS": "true",
            **({"FANOUT_MODEL": f"scripted:{script}"} if script else {}),
            **environment,
        }

    @property
    def identity(self) -> str:
        """The id that its ledger keeps, with which everything is labelled that its workers make."""
        if not self._identity:
            self._identity = identity_in(self.redis.url)
        return self._identity

    @property
    def provider(self) -> str:
        """The kind of its sandboxes."""
        return self.environment["FANOUT_SANDBOX__PROVIDER"]

    def client(self) -> JobClient:
        return JobClient(self.redis.url, self.settings, self.definitions)

    def start_worker(
        self,
        concurrency: int = 4,
        module: str = "fanout.workers",
        *,
        forked: bool = True,
        options: tuple[str, ...] = (),
        **environment: str,
    ) -> WorkerProcess:
        """One more worker; one that is measured is not `forked`, since that shares its memory."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        kind = ForkedWorker if forked else WorkerProcess
        worker = kind({**self.environment, **environment}, log, concurrency, module, options)
        worker.start()
        self.workers.append(worker)
        return worker

    async def ready(self, client: JobClient, workers: int = 1) -> None:
        deadline = time.monotonic() + START_SECONDS
        while len(await client.workers()) < workers:
            dead = [
                worker
                for worker in self.workers
                if worker.process and worker.process.poll() and not worker.is_ended
            ]
            assert not dead, dead[0].tail()
            assert time.monotonic() < deadline, self.workers[-1].tail()
            await asyncio.sleep(0.1)

    async def let_end(self, count: int = 1) -> None:
        """Let local jobs go on that have come to `WAITS`, once there are so many at a time."""
        jobs = self.folder / "state" / "sandboxes" / "jobs"
        begun = await eventually(
            lambda: list(jobs.glob("*/tree/begun")), lambda begun: len(begun) >= count
        )
        for file in begun:
            file.with_name("may-end").touch()

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


@contextmanager
def installation(
    folder: Path, *, script: Path | None = None, **environment: str
) -> Iterator[Installation]:
    """A Redis of its own, and whatever workers the test starts; all stopped at the end."""
    redis = RedisProcess(folder)
    redis.start()
    made = Installation(folder, redis, script=script, **environment)
    try:
        yield made
    finally:
        made.stop()
        redis.stop()


class Installer:
    """Makes installations in one folder, which end together."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder = folder
        self._opened = opened

    def below(self, name: str) -> Installer:
        """One for a folder inside of this one's, for the second installation of a module."""
        folder = self.folder / name
        folder.mkdir()
        return Installer(folder, self._opened)

    def __call__(
        self,
        *conversations: dict[str, Any],
        agents: Mapping[str, str] | None = None,
        workers: int = 0,
        concurrency: int = 4,
        **environment: str,
    ) -> Installation:
        """An installation with a Redis.

        Args:
            conversations: the script of its model, if that is to be a scripted one.
            agents: the text of each agent's definition, by its name.
            workers: how many are started.
            concurrency: how many jobs each of them runs at once.
            environment: settings of its processes.
        """
        script = write_script(self.folder, *conversations) if conversations else None
        if agents:
            environment["FANOUT_AGENTS_DIR"] = str(write_agents(self.folder, agents))
        made = self._opened.enter_context(installation(self.folder, script=script, **environment))
        for _ in range(workers):
            made.start_worker(concurrency)
        return made


def identity_in(redis_url: str) -> str:
    """The id of the installation whose ledger this Redis holds; its first worker has made it."""
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        identity = redis.get(Keys().installation)
    assert identity, "no worker has started yet"
    return str(identity)


def docker(*arguments: str) -> str:
    """Run Docker's client, and return what it prints."""
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def containers_of(installation: str) -> list[str]:
    """The names of all containers with the installation's label, whatever their state."""
    return docker("ps", "-aq", "--filter", f"label=fanout.installation={installation}").split()


def workers_of_sandboxes(installation: str) -> set[str]:
    """The workers of which there are containers, or volumes that were made ahead.

    Other volumes are a job's or the installation's, whoever made them.
    """
    found: set[str] = set()
    for listing in (["ps", "-a"], ["volume", "ls", "--filter", "label=fanout.warm"]):
        ours = ("--filter", f"label=fanout.installation={installation}")
        found.update(docker(*listing, *ours, "--format", '{{.Label "fanout.worker"}}').split())
    return found


def volumes_of(installation: str) -> list[str]:
    """The names of all volumes with the installation's label."""
    label = f"label=fanout.installation={installation}"
    return docker("volume", "ls", "-q", "--filter", label).split()
