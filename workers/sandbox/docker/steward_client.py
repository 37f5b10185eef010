"""The worker's client of its steward: starts the container and calls its operations."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

from workers.sandbox.docker import container_config
from workers.sandbox.docker.engine import Engine, uninterrupted
from workers.sandbox.docker.naming import Names
from workers.sandbox.errors import SandboxStartFailed, SnapshotUnusable
from workers.sandbox.inside.archives import add_member
from workers.sandbox.inside.steward import EMPTY_SNAPSHOT
from workers.sandbox.protocol import SnapshotSource
from workers.sandbox.resident.client import ResidentClient
from workers.sandbox.resident.code import code_files
from workers.sandbox.resident.replies import OperationFailed

OnChunk = Callable[[bytes], Awaitable[None]]

STORE = "/store"
"""The path of the volume for the steward."""

_PYTHON = ("python3", "-ISB")
_START_SECONDS = 30.0
"""The longest that a steward's container takes to start on a busy engine."""
_SLOW_SECONDS = 600.0
"""The longest that unpacking, copying, bundling or deleting a big tree takes before the steward
counts as dead."""

_READ_BYTES = 4 * 1024**2
"""Read at once: large enough to be quick, small beside a process."""
_PREPARE_TRIES = 3


@dataclass(kw_only=True)
class Steward:
    """A running steward. After a `SandboxDied` a new one must be started."""

    engine: Engine
    container: str
    client: ResidentClient
    snapshots: SnapshotSource
    mount_point: str
    """The volume's folder on the engine's host."""
    code_id: str
    _unpacking: dict[str, asyncio.Lock] = field(default_factory=dict)

    @classmethod
    async def start(
        cls, engine: Engine, snapshots: SnapshotSource, *,
        names: Names, image: str, cache_bytes: int,
    ) -> Self:  # fmt: skip
        """Start a steward on the installation's volume, which is created if it does not exist.

        Args:
            engine: the engine.
            snapshots: fetches a snapshot's archive.
            names: those of this worker.
            image: the steward's image.
            cache_bytes: the limit on unpacked snapshots that no job uses.

        Raises:
            SandboxFailure: the engine does not answer, has no such image, or failed to start it.
        """
        store_labels = names.labels("store")
        mount_point = await engine.create_volume(names.store, {}, store_labels)
        mount = container_config.local_volume(names.store, STORE, options={}, labels=store_labels)
        archive, identity = await asyncio.to_thread(steward_code)
        config = container_config.steward_config(
            image=image,
            mount=mount,
            command=steward_command(cache_bytes),
            labels=names.labels("steward"),
        )
        name = names.container("steward")
        try:
            await engine.create_container(name, config)
            await engine.put_archive(name, "/opt", archive)
            client = ResidentClient(await engine.attach(name))
            await engine.start(name)
            await client.start(_START_SECONDS)
        except BaseException:
            await uninterrupted(engine.remove_container(name))
            raise
        return cls(
            engine=engine, container=name, client=client, snapshots=snapshots,
            mount_point=mount_point, code_id=identity,
        )  # fmt: skip

    def code_options(self) -> dict[str, str]:
        """Return the mount options of the resident's code."""
        return {"type": "none", "o": "bind,ro", "device": f"{self.mount_point}/code/{self.code_id}"}

    def workspace_options(self, job: str, snapshot: str | None, *, overlay: bool) -> dict[str, str]:
        """Return the mount options of a job's workspace, once it is prepared."""
        home = f"{self.mount_point}/jobs/{job}"
        if not overlay:
            return {"type": "none", "o": "bind", "device": f"{home}/tree"}
        lower = f"{self.mount_point}/snapshots/{snapshot or EMPTY_SNAPSHOT}/tree"
        layers = f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work"
        return {"type": "overlay", "device": "overlay", "o": f"{layers},userxattr,nosuid,nodev"}

    async def prepare(self, job: str, snapshot: str | None, *, overlay: bool) -> str:
        """Create a job's folders with its snapshot unpacked; an earlier attempt's are kept.

        Returns:
            See `Sandbox.files_id`.

        Raises:
            SnapshotUnusable: the archive is damaged or leaves its root.
            SandboxFailure: the steward failed.
        """
        arguments = {"job": job, "snapshot": snapshot or EMPTY_SNAPSHOT, "overlay": overlay}
        for _try in range(_PREPARE_TRIES):  # another steward may evict between the two
            answer = await self._ask("prepare", arguments)
            if answer["files"] is not None:
                return str(answer["files"])
            if snapshot is not None:
                await self._unpack(snapshot)
        raise SandboxStartFailed(
            "A snapshot was evicted as often as it was unpacked: the snapshot cache is too small."
        )

    async def _unpack(self, snapshot: str) -> None:
        """Send a snapshot once, however many jobs of this worker start with it at the same time."""
        lock = self._unpacking.setdefault(snapshot, asyncio.Lock())
        waited = lock.locked()
        async with lock:
            if waited:
                return
            archive = await self.snapshots(snapshot)
            try:
                folder = f"{STORE}/tmp"  # noqa: S108 - on the volume
                upload = await self.client.upload(_parts(archive), folder)
                await self._ask("unpack", {"snapshot": snapshot, "upload": upload})
            except OperationFailed as failure:
                if failure.kind != "UnusableArchive":
                    raise
                raise SnapshotUnusable(
                    f"The snapshot {snapshot[:12]} cannot be used: {failure}."
                ) from failure
            except OSError as error:
                raise SandboxStartFailed(
                    f"A snapshot could not be sent: {error.strerror}."
                ) from error
            finally:
                self._unpacking.pop(snapshot, None)

    async def bundle(self, job: str) -> IO[bytes]:
        """Return the job's change bundle as an open temporary file.

        Raises:
            SandboxFailure: the steward failed.
        """
        file = await asyncio.to_thread(tempfile.TemporaryFile)

        async def keep(chunk: bytes) -> None:
            await asyncio.to_thread(file.write, chunk)

        try:
            await self._ask("bundle", {"job": job}, keep)
            await asyncio.to_thread(file.seek, 0)
        except BaseException:
            file.close()
            raise
        return file

    async def measure(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return how many bytes each of these jobs has added to its snapshot.

        Raises:
            SandboxFailure: the steward failed.
        """
        answer = await self._ask("measure", {"jobs": list(jobs)})
        return {str(job): int(size) for job, size in answer["bytes"].items()}

    async def jobs(self) -> list[str]:
        """Return the jobs that have files on the volume, also those of other workers.

        Raises:
            SandboxFailure: the steward failed.
        """
        answer = await self._ask("jobs", {})
        return [str(job) for job in answer["jobs"]]

    async def delete(self, job: str) -> bool:
        """Delete a job's files; return whether there were any. Its containers must be removed.

        Raises:
            SandboxFailure: the steward failed.
        """
        answer = await self._ask("delete", {"job": job})
        return bool(answer["deleted"])

    async def _ask(
        self, operation: str, arguments: dict[str, Any], on_chunk: OnChunk | None = None
    ) -> dict[str, Any]:
        """Carry out an operation; an OSError of the volume is a failure of the sandbox."""
        try:
            answer, _ = await self.client.request(
                operation, arguments, on_chunk=on_chunk, timeout_seconds=_SLOW_SECONDS
            )
        except OSError as error:
            raise SandboxStartFailed(
                f"The steward's {operation} failed: {error.strerror}."
            ) from error
        return answer

    async def close(self) -> None:
        """End the steward and remove its container.

        Raises:
            SandboxFailure: the engine does not answer.
        """
        await self.client.close()
        await self.engine.remove_container(self.container)


def steward_command(cache_bytes: int) -> list[str]:
    """Return the command of a steward that keeps so many bytes of snapshots that no job uses."""
    _, identity = steward_code()
    return [*_PYTHON, "/opt/steward", STORE, str(cache_bytes), "/opt/resident", identity]


@cache
def steward_code() -> tuple[bytes, str]:
    """Return a tar of the steward's and the resident's code, and the latter's version."""
    code = code_files()
    identity = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:16]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder, files in (("steward", code_files("steward")), ("resident", code)):
            for path, content in files.items():
                add_member(archive, f"{folder}/{path}", content, len(content))
    return buffer.getvalue(), identity


async def _parts(path: Path) -> AsyncIterator[bytes]:
    """Yield a file's content in parts, read in a thread."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while part := await asyncio.to_thread(file.read, _READ_BYTES):
            yield part
    finally:
        await asyncio.to_thread(file.close)
