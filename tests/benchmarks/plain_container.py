"""The floor of the sandbox benchmarks.

A container as the Engine API and its SDK alone make and use it.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

import docker

from fanout.orchestrator.jobs.spec import Limits

COMMAND = ["true"]


@dataclass(frozen=True)
class PlainContainer:
    """A running container; every method is one use of the SDK as its documentation shows it."""

    api: docker.APIClient
    id: str

    def run(self, argv: list[str]) -> bytes:
        """What `docker exec` does."""
        made = self.api.exec_create(self.id, argv)
        return bytes(self.api.exec_start(made["Id"]))

    def read(self, path: str) -> bytes:
        """One file."""
        stream, _ = self.api.get_archive(self.id, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            file = archive.extractfile(archive.next() or "")
            assert file is not None
            return file.read()

    def write(self, folder: str, name: str, content: bytes) -> None:
        """One file."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        self.unpack(folder, buffer.getvalue())

    def unpack(self, folder: str, archive: bytes) -> None:
        """Many files."""
        assert self.api.put_archive(self.id, folder, archive)

    def remove(self) -> None:
        """Kill and remove it."""
        self.api.remove_container(self.id, force=True)


def start_plain(api: docker.APIClient, image: str, limits: Limits, label: str) -> PlainContainer:
    """Create and start a container with the limits of a sandbox, no network, and nothing else."""
    host = api.create_host_config(
        network_mode="none",
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,
        nano_cpus=int((limits.cpus or 0) * 1e9),
        pids_limit=limits.pids,
    )
    made = api.create_container(image, ["sleep", "infinity"], host_config=host, labels=[label])
    api.start(made["Id"])
    return PlainContainer(api, made["Id"])


def remove_plain(api: docker.APIClient, label: str) -> None:
    """Remove what an interrupted run has left."""
    for container in api.containers(all=True, filters={"label": label}):
        api.remove_container(container["Id"], force=True)


@contextlib.contextmanager
def sdk() -> Iterator[docker.APIClient]:
    """docker-py's low-level client, as the environment says where the engine is."""
    api = docker.from_env(timeout=120).api
    try:
        yield api
    finally:
        api.close()
