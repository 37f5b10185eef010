"""A Docker engine of the run's own, which can be killed.

Own folders, own socket, own network namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker

IMAGE = "fanout/base:latest"
"""The steward's image; the jobs of a run need no more."""
START_SECONDS = 120.0
"""dockerd gives up when a busy machine has not started its containerd within 15 s: it is tried
again."""
STOP_SECONDS = 20.0


class NoEngine(Exception):
    """This machine cannot run an engine for us; the text says why."""


class PrivateEngine:
    """One dockerd. Everything it makes is below its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{folder}/docker.sock"
        self.client: Any = None

    async def start(self) -> None:
        """Start it, or start it again after `kill`; a busy machine may need several tries."""
        self._folder.mkdir(exist_ok=True)
        deadline = time.monotonic() + START_SECONDS
        self._spawn()
        while not await asyncio.to_thread(self._answers):
            if time.monotonic() > deadline:
                raise NoEngine(f"dockerd did not start: {self._last_words()}")
            if self._process is None or self._process.poll() is not None:
                self._spawn()
            await asyncio.sleep(0.2)

    def _spawn(self) -> None:
        (self._folder / "docker.pid").unlink(missing_ok=True)
        folders = [f"--data-root={self._folder}/data", f"--exec-root={self._folder}/exec"]
        own = [f"--pidfile={self._folder}/docker.pid", "-H", self.host]
        # A second engine in the machine's network namespace would take the first one's bridge away.
        command = [
            "unshare",
            "--net",
            "dockerd",
            "--bridge=none",
            "--iptables=false",
            *folders,
            *own,
        ]
        with (self._folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    async def load_image(self) -> None:
        """Take the sandbox image over from the machine's engine."""
        command = f"docker save {IMAGE} | docker -H {self.host} load"
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        if not await asyncio.to_thread(self._has_image):
            raise NoEngine(
                f"{IMAGE} could not be copied ({errors.decode()[-300:]}): `fanout images build`."
            )

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def containers(self, installation: str, role: str | None = None) -> list[dict[str, Any]]:
        """The installation's containers, by age; blocks."""
        labels = [f"fanout.installation={installation}", *([f"fanout.role={role}"] if role else [])]
        found = self.client.api.containers(all=True, filters={"label": labels})
        return sorted(found, key=lambda container: (container["Created"], container["Id"]))

    def is_there(self, container: str) -> bool:
        """Whether a container that is listed exists; blocks.

        dockerd's list may go on showing one that it has removed, as dead, until dockerd starts
        again: by its id it knows nothing of it, and nothing of it is left to remove.
        """
        try:
            self.client.api.inspect_container(container)
        except docker.errors.NotFound:
            return any(
                container.encode() in command for _pid, command in _commands()
            )  # its shim lives
        return True

    def refusals(self, installation: str) -> list[str]:
        """What the engine answers when asked once more to remove the installation's containers.

        Blocks.
        """
        answers = []
        for container in self.containers(installation):
            try:
                self.client.api.remove_container(container["Id"], force=True)
            except docker.errors.APIError as error:
                answers.append(
                    f"asked to remove {container['Id'][:12]}, the engine says: {error.explanation}"
                )
        return answers

    def volumes(self, installation: str) -> list[dict[str, Any]]:
        """The installation's volumes; blocks."""
        found = self.client.api.volumes(filters={"label": f"fanout.installation={installation}"})
        return list(found["Volumes"] or ())

    async def stop(self) -> None:
        """End it with all that runs on it, and remove its folders; also after a failed start."""
        with contextlib.suppress(Exception):
            for container in await asyncio.to_thread(self.client.api.containers, all=True):
                await asyncio.to_thread(
                    self.client.api.remove_container, container["Id"], force=True
                )
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, STOP_SECONDS)
            self._process.kill()
        await asyncio.to_thread(self._clean)

    def _clean(self) -> None:
        """End shims and mounts that an engine which was killed left behind."""
        for pid, command in _commands():
            if f"{self._folder}/exec".encode() in command:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{self._folder}/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        for name in ("data", "exec"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            if self.client is None:
                self.client = docker.DockerClient(base_url=self.host, version="auto", timeout=10)
            return bool(self.client.ping())
        except Exception:  # noqa: BLE001 - whatever it is, it does not answer yet
            return False

    def _has_image(self) -> bool:
        return any(IMAGE in image["RepoTags"] or () for image in self.client.api.images())

    def _last_words(self) -> str:
        return (self._folder / "dockerd.log").read_text(errors="replace")[-500:]


def _commands() -> Iterator[tuple[int, bytes]]:
    """The processes of this machine but our own, with their command lines."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                yield int(process.name), (process / "cmdline").read_bytes()
