"""A project of Compose that belongs to one test: all services of docker-compose.yml."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import RedisError

from fanout.orchestrator.configuration.settings import Settings, load_settings
from tests.services import REPOSITORY, containers_of, docker, free_port, identity_in, volumes_of

COMPOSE = REPOSITORY / "docker-compose.yml"
PROGRAMS = {"v1": ("docker-compose",), "v2": ("docker", "compose")}
"""Version 1 is a program, version 2 a plugin of Docker's command line."""
LOGIN = "tester:letmein"


def program_of(version: str) -> Sequence[str]:
    """The words that begin a command; a test is skipped where there is only the other version."""
    if version not in (found := _found()):
        name = " ".join(PROGRAMS[version])
        if not found:
            pytest.fail(f"There is no {name}, nor the other version of Compose.", pytrace=False)
        pytest.skip(f"There is no {name}.")
    return PROGRAMS[version]


def _found() -> list[str]:
    return [
        version
        for version, program in PROGRAMS.items()
        if shutil.which(program[0]) is not None
        and not subprocess.run([*program, "version"], capture_output=True, check=False).returncode
    ]


def compose(
    program: Sequence[str],
    environment: dict[str, str],
    *arguments: str,
    more: Sequence[Path] = (),
) -> str:
    files = [option for path in (COMPOSE, *more) for option in ("-f", str(path))]
    command = [*program, *files, "--project-directory", str(REPOSITORY), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Stack:
    """A running Compose project of this test's own."""

    program: Sequence[str]
    environment: dict[str, str]
    override: Path
    key: str = ""
    """Of the service; see `make_key`."""

    @cached_property
    def identity(self) -> str:
        """The id that its ledger keeps, with which everything is labelled that its workers make."""
        return identity_in(
            f"redis://fanout-worker:workers@127.0.0.1:{self.environment['FANOUT_REDIS_PORT']}/0"
        )

    @property
    def project(self) -> str:
        return self.environment["COMPOSE_PROJECT_NAME"]

    @property
    def settings(self) -> Settings:
        """The settings of a client on the host."""
        url = f"redis://fanout-client:secret@127.0.0.1:{self.environment['FANOUT_REDIS_PORT']}/0"
        blobs = f"file://{self.environment['FANOUT_BLOBS_FOLDER']}"
        return load_settings(redis_url=url, blobs_url=blobs)

    def run(self, *arguments: str) -> str:
        return compose(self.program, self.environment, *arguments, more=[self.override])

    def make_key(self) -> None:
        """Make a key of the service, as its description in docker-compose.yml says."""
        made = self.run(
            *("--profile", "server", "run", "--rm", "-T", "server", "fanout", "keys", "create"),
            *("ci", "--scope", "submit", "--scope", "read", "--json"),
        )
        self.key = json.loads(made)["key"]

    def start(self, workers: int = 3) -> None:
        """Start all services, or what of them does not run."""
        self.run(
            *("--profile", "server", "up", "--detach", "--no-build"),
            *("--scale", f"worker={workers}"),
        )

    def states(self) -> dict[str, str]:
        """Service and container -> its health."""
        shown = '{{.Label "com.docker.compose.service"}} {{.ID}}\t{{.Status}}'
        label = f"label=com.docker.compose.project={self.project}"
        lines = docker("ps", "--filter", label, "--format", shown).splitlines()
        return dict(line.split("\t") for line in lines)

    def remove(self) -> None:
        """Remove it with all that its workers made."""
        identity = ""
        with suppress(AssertionError, RedisError):  # no worker has started
            identity = self.identity
        self.run("--profile", "server", "down", "--volumes")
        if identity:  # what a killed worker left has no worker any more that removes it
            for container in containers_of(identity):
                docker("rm", "--force", container)
            for volume in volumes_of(identity):
                docker("volume", "rm", volume)

    def containers(self, service: str) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        of_service = f"label=com.docker.compose.service={service}"
        return docker("ps", "-q", "--filter", label, "--filter", of_service).split()

    def container_of(self, worker: str) -> str:
        """A worker names itself after its host, which is its container."""
        return next(one for one in self.containers("worker") if worker.startswith(one))


def new_stack(
    program: Sequence[str], folder: Path, script: Path, of_our_image: dict[str, Any], **more: str
) -> Stack:
    """A stack that is not started yet.

    Args:
        program: The words that begin a command of Compose.
        folder: For the blobs, with the script in it, which workers read.
        script: The script of its model.
        of_our_image: What its services from our image have besides.
        more: More variables of its environment.
    """
    override = folder / "override.yml"
    services = dict.fromkeys(("worker", "engine", "server", "flower"), of_our_image)
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    override.write_text(yaml.dump({"services": services}, Dumper=dumper))
    port = free_port()
    plugins = os.environ.get("DOCKER_CONFIG")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),  # may have Docker's plugins
        **({"DOCKER_CONFIG": plugins} if plugins else {}),
        "COMPOSE_PROJECT_NAME": f"fanout-test-{port}",
        "FANOUT_USER": f"{os.getuid()}:{os.getgid()}",
        "FANOUT_REDIS_PASSWORD": "secret",
        "FANOUT_WORKER_PASSWORD": "workers",
        "FANOUT_DASHBOARD_PASSWORD": "flowers",
        "FANOUT_SERVER_PASSWORD": "servers",
        "FANOUT_SERVER_PORT": str(free_port()),
        "FANOUT_REDIS_PORT": str(port),
        "FANOUT_FLOWER_PORT": str(free_port()),
        "FLOWER_BASIC_AUTH": LOGIN,
        "FANOUT_BLOBS_FOLDER": str(script.parent),
        "FANOUT_WORKER__CONCURRENCY": "2",
        "FANOUT_MODEL": f"scripted:{script}",
        **more,
    }
    return Stack(program, environment, override)
