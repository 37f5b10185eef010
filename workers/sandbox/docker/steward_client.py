"""The worker's client of its steward: starts the container and calls its operations.

The files of `workers/sandbox/inside` are copied into containers, and `orchestrator/portable`, which
they share with this program. They keep their names below `fanout`, so that the modules import each
other inside as they do here; the packages above them are empty. In a folder, the code is started
with `python3 -ISB FOLDER`, which runs its `__main__.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import PurePosixPath
from typing import IO, Any, Self

import structlog

from fanout.orchestrator.cancellation import uninterrupted

from ..errors import (
    NOT_COLLECTED,
    EnvironmentMissing,
    EnvironmentsUnfit,
    SandboxStartFailed,
    SnapshotUnusable,
)
from ..inside.archives import add_member
from ..inside.disks import RENAMING_OVERLAY
from ..layers import Element, element_archive, read_chain
from ..protocol import SnapshotSource
from ..resident.client import ResidentClient, use_while_sent
from ..resident.replies import OperationFailed
from . import container_config
from .disk_quota import (
    QUOTA_SETTING,
    RESERVE_SETTING,
    STOP_BYTES,
    DiskQuota,
    DiskSettings,
)
from .engine import Engine
from .holders import Holder, share_store
from .naming import Names

INSIDE = "fanout/workers/sandbox/inside"
PORTABLE = "fanout/orchestrator/portable"
"""Standard library only, Python 3.8 or later, nothing that python3-minimal lacks."""
STORE = "/store"
"""The path of the volume for the steward."""


_PYTHON = ("python3", "-ISB")
log = structlog.get_logger(__name__)

OnChunk = Callable[[bytes], Awaitable[None]]

_START_SECONDS = 30.0
"""The longest that a steward's container takes to start on a busy engine."""
_SLOW_SECONDS = 600.0
"""The longest that unpacking, copying, bundling or deleting a big tree takes before the steward
counts as dead."""

_PREPARE_TRIES = 3
_MAX_COLLECTIONS = 32
"""The most collections at once: each takes four of a steward's 256 processes and threads, five when
git is asked. Long ones do not delay the others then."""
_ASKED_JOBS = 500
"""The most jobs in one question: their ids, and a name for each, fit a reply's header."""
_MAX_OPTION_BYTES = 4000
"""The longest options of a mount: the kernel takes one page, and cuts off the rest."""
_OVERLAY_OPTIONS = "lowerdir={0},upperdir={1}/upper,workdir={1}/work,{2},nosuid,nodev"
_UNFIT = (
    "This engine cannot have prepared environments: its containers may not mount, as disks of jobs "
    f"need it, too ({QUOTA_SETTING})."
)


class EnvironmentReady(Exception):
    """An environment is prepared: nobody has to do it."""


def code_files(main_module: str = "resident") -> dict[str, bytes]:
    """Return the relative path and the content of each file.

    Args:
        main_module: a module of `workers.sandbox.inside` whose `main()` is run.
    """
    files = {
        f"{folder}/{file.name}": file.read_bytes()
        for folder in (INSIDE, PORTABLE)
        for file in resources.files(folder.replace("/", ".")).iterdir()
        if file.name.endswith(".py")
    }
    above = {part.as_posix() for name in (INSIDE, PORTABLE) for part in PurePosixPath(name).parents}
    for folder in sorted(above - {"."}):
        files[f"{folder}/__init__.py"] = b""
    files["__main__.py"] = (
        f"from fanout.workers.sandbox.inside.{main_module} import main\nmain()\n".encode()
    )
    return files


def steward_command(cache_bytes: int, reserve_bytes: int) -> list[str]:
    """Return the command of a steward.

    Args:
        cache_bytes: the limit on unpacked snapshots that no job uses.
        reserve_bytes: the free space that the engine's disk keeps.
    """
    _, identity = steward_code()
    sizes = (str(cache_bytes), str(reserve_bytes))
    return [*_PYTHON, "/opt/steward", STORE, *sizes, "/opt/resident", identity]


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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job's files, ready to be mounted."""

    files_id: str
    """See `Sandbox.files_id`."""
    adopted: str
    """Under which id they were prepared ahead; empty when they were made for the job."""
    options: dict[str, str]
    """The mount options of the workspace."""
    output_options: dict[str, str]
    """The mount options of the folder with the outputs of commands."""
    user: int
    """Whose they are, and so whom the sandbox's processes must be."""
    has_disk: bool
    """The files are on a disk of the job's own, whose size the kernel keeps."""


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
    quota: DiskQuota
    """What keeps the disk limit of the jobs."""
    shared_user: str | None
    """Why all jobs have one user; None when each has its own."""
    no_renaming: str | None
    """Why jobs cannot rename the folders that they start from; None when they can."""
    holder: Holder | None = None
    """Keeps the folder mounted on which the steward mounts the jobs' disks."""
    _unpacking: dict[str, asyncio.Lock] = field(default_factory=dict)
    _collecting: asyncio.Semaphore = field(
        default_factory=partial(asyncio.Semaphore, _MAX_COLLECTIONS)
    )

    @classmethod
    async def start(
        cls, engine: Engine, snapshots: SnapshotSource, *,
        names: Names, image: str, cache_bytes: int, disk: DiskSettings,
    ) -> Self:  # fmt: skip
        """Start a steward on the installation's volume, which is created if it does not exist.

        Args:
            engine: the engine.
            snapshots: fetches a snapshot's archive.
            names: those of this worker.
            image: the steward's image.
            cache_bytes: the limit on unpacked snapshots that no job uses.
            disk: how the disk limits of jobs are kept.

        Raises:
            SandboxFailure: the engine does not answer, has no such image, failed to start it, or
                cannot keep the disk limits as it must.
        """
        started = partial(
            cls._start, engine, snapshots,
            names=names, image=image, cache_bytes=cache_bytes,
            reserve_bytes=disk.reserve_bytes + STOP_BYTES,
        )  # fmt: skip
        if disk.quota == "watch":
            return await started(DiskQuota("watch", f"{QUOTA_SETTING} asks for it"))
        if disk.quota == "auto" and await engine.is_podman():
            return await started(DiskQuota("watch", "Podman changes the owner of a job's disk"))
        try:
            return await started(DiskQuota("image", "each job has a file system of its own"))
        except (OperationFailed, SandboxStartFailed) as failure:
            if disk.quota == "image":
                raise SandboxStartFailed(
                    f"Jobs cannot have disks of their own on this engine ({failure}), "
                    f"and {QUOTA_SETTING} asks for them."
                ) from failure
            log.warning("disk limits are only watched", reason=str(failure))
            return await started(DiskQuota("watch", str(failure)))

    @classmethod
    async def _start(
        cls, engine: Engine, snapshots: SnapshotSource, quota: DiskQuota, *,
        names: Names, image: str, cache_bytes: int, reserve_bytes: int,
    ) -> Self:  # fmt: skip
        store_labels = names.labels("store")
        mount_point = await engine.create_volume(names.store, {}, store_labels)
        mount = container_config.local_volume(names.store, STORE, options={}, labels=store_labels)
        archive, identity = await asyncio.to_thread(steward_code)
        name, holder, client = names.container("steward"), None, None
        try:
            if quota.kind == "image":
                holder, mount_point = await share_store(engine, names, image, mount, mount_point)
                mount = container_config.shared_bind(mount_point, STORE)
            config = container_config.steward_config(
                image=image,
                mount=mount,
                command=steward_command(cache_bytes, reserve_bytes),
                labels=names.labels("steward"),
                may_mount=quota.kind == "image",
            )
            await engine.create_container(name, config)
            await engine.put_archive(name, "/opt", archive)
            client = ResidentClient(await engine.attach(name))
            await engine.start(name)
            await client.start(_START_SECONDS)
            shared_user: str | None = "the steward may not mount"
            no_renaming = shared_user
            if quota.kind == "image":
                answer, _ = await client.request("check_disks", {}, timeout_seconds=_START_SECONDS)
                shared_user = answer["shared_user"]
                checked, _ = await client.request(
                    "check_renaming", {}, timeout_seconds=_START_SECONDS
                )
                no_renaming = checked["no_renaming"]
        except BaseException:
            await uninterrupted(_give_up(engine, name, client, holder))
            raise
        return cls(
            engine=engine, container=name, client=client, snapshots=snapshots,
            mount_point=mount_point, code_id=identity, quota=quota, shared_user=shared_user,
            no_renaming=no_renaming, holder=holder,
        )  # fmt: skip

    def code_options(self) -> dict[str, str]:
        """Return the mount options of the resident's code."""
        return {"type": "none", "o": "bind,ro", "device": f"{self.mount_point}/code/{self.code_id}"}

    async def prepare(
        self, job: str, snapshot: str | None, layers: Sequence[str] = (), *,
        overlay: bool, disk_bytes: int | None, first_uid: int, ahead: bool = False,
        environment: str = "",
    ) -> Prepared:  # fmt: skip
        """Create a job's folders with what it starts from; an earlier attempt's are kept.

        Args:
            job: the job's id, or that of a sandbox that is started ahead.
            snapshot: the snapshot's id.
            layers: the ids of the layers on it, in order.
            overlay: whether the engine mounts an overlay.
            disk_bytes: the job's limit.
            first_uid: of the users of jobs that have a disk of their own.
            ahead: it is not a job's id; see `adopt`.
            environment: the key of its prepared environment; empty: it has none.

        Raises:
            SnapshotUnusable: an archive or a layer is damaged or leaves its root.
            EnvironmentMissing: the environment is not there any more.
            EnvironmentsUnfit: the engine mounts no overlay for it.
            NotUnderstood: a newer release wrote a layer.
            SandboxFailure: the steward failed, or the engine's disk is full up to its reserve.
        """
        chain = read_chain(snapshot, layers)
        home = f"{'warm' if ahead else 'jobs'}/{job}"
        arguments = {
            "job": job,
            "chain": [element.id for element in chain],
            "overlay": overlay,
            "may_stack": self._options_fit(home, chain, environment),
            "disk_bytes": disk_bytes if self.quota.kind == "image" else None,
            "first_id": first_uid,
            "ahead": ahead,
            "environment": environment,
        }
        for _try in range(_PREPARE_TRIES):  # another steward may evict between the two
            answer = (await self._ask("prepare", arguments))["prepared"]
            if answer["files"] is not None:
                return Prepared(
                    files_id=str(answer["files"]),
                    adopted=str(answer["adopted"]),
                    options=self._workspace_options(home, answer),
                    output_options=self._bind(answer.get("layers", home) + "/output"),
                    user=int(answer["user"]),
                    has_disk=str(answer.get("layers", "")).endswith(("/layers", "/disk")),
                )
            names = [str(name) for name in answer["names"]]
            for number, element in enumerate(chain):
                if names[number] in answer["missing"]:
                    await self._unpack(names[: number + 1], element)
        raise SandboxStartFailed(
            "A snapshot was evicted as often as it was unpacked: the snapshot cache is too small."
        )

    def _options_fit(self, home: str, chain: Sequence[Element], environment: str) -> bool:
        """Return whether a mount takes the paths of all elements, wherever they are shown."""
        shown = f"{self.mount_point}/{home}/layers"
        names = [*(element.id for element in chain), *([f"e{environment}"] if environment else [])]
        lower = ":".join(f"{shown}/{name}/tree" for name in names)
        return len(_OVERLAY_OPTIONS.format(lower, shown, RENAMING_OVERLAY)) <= _MAX_OPTION_BYTES

    def _workspace_options(self, home: str, prepared: Mapping[str, Any]) -> dict[str, str]:
        if "layers" not in prepared:
            return self._bind(f"{home}/tree")
        lower = ":".join(f"{self.mount_point}/{tree}" for tree in prepared["lower"])
        layers = f"{self.mount_point}/{prepared['layers']}"
        options = _OVERLAY_OPTIONS.format(lower, layers, prepared["options"])
        return {"type": "overlay", "device": "overlay", "o": options}

    def _bind(self, folder: str) -> dict[str, str]:
        return {"type": "none", "o": "bind", "device": f"{self.mount_point}/{folder}"}

    async def _unpack(self, names: Sequence[str], element: Element) -> None:
        """Send an element once, however many jobs of this worker start with it at the same time."""
        lock = self._unpacking.setdefault(names[-1], asyncio.Lock())
        waited = lock.locked()
        async with lock:
            if waited:
                return
            try:
                async with element_archive(element, self.snapshots) as archive:
                    unpack = partial(self._ask_to_unpack, names)
                    folder = f"{STORE}/tmp"  # noqa: S108 - on the volume
                    await use_while_sent(self.client, archive, folder, unpack)
            except OperationFailed as failure:
                if failure.kind != "UnusableArchive":
                    raise
                raise SnapshotUnusable(f"The {element} cannot be used: {failure}.") from failure
            except OSError as error:
                raise SandboxStartFailed(
                    f"A snapshot could not be sent: {error.strerror}."
                ) from error
            finally:
                self._unpacking.pop(names[-1], None)

    async def _ask_to_unpack(self, names: Sequence[str], upload: str, size: int) -> None:
        await self._ask("unpack", {"names": names, "upload": upload, "bytes": size})

    async def bundle(self, job: str) -> IO[bytes]:
        """Return the job's change bundle as an open temporary file.

        Raises:
            SandboxFailure: the steward failed.
        """
        file = await asyncio.to_thread(tempfile.TemporaryFile)

        async def keep(chunk: bytes) -> None:
            await asyncio.to_thread(file.write, chunk)

        try:
            async with self._collecting:
                await self._ask("bundle", {"job": job}, keep)
            await asyncio.to_thread(file.seek, 0)
        except BaseException:
            file.close()
            raise
        return file

    async def measure(self, jobs: Sequence[str]) -> dict[str, int]:
        """Return how many bytes of the engine's disk each of these jobs has taken.

        Raises:
            SandboxFailure: the steward failed.
        """
        answer = await self._ask("measure", {"jobs": list(jobs)})
        return {str(job): int(size) for job, size in answer["bytes"].items()}

    async def free_bytes(self) -> int:
        """Return the free space of the engine's disk.

        Raises:
            SandboxFailure: the steward failed.
        """
        return int((await self._ask("free", {}))["bytes"])

    async def jobs(self) -> list[str]:
        """Return the jobs that have files on the volume, also those of other workers.

        Raises:
            SandboxFailure: the steward failed.
        """
        jobs: list[str] = []
        while page := (await self._ask("jobs", {"after": jobs[-1] if jobs else ""}))["jobs"]:
            jobs += [str(job) for job in page]
        return jobs

    async def delete(self, job: str, *, ahead: bool = False) -> bool:
        """Delete a job's files; return whether there were any. Its containers must be removed.

        Args:
            job: the job's id, or that of a sandbox that was started ahead.
            ahead: which of the two.

        Raises:
            SandboxFailure: the steward failed.
        """
        answer = await self._ask("delete", {"job": job, "ahead": ahead})
        return bool(answer["deleted"])

    async def adopt(self, warm: str, job: str) -> str:
        """Make files that were prepared ahead those of a job, in one step.

        Args:
            warm: the id under which they were prepared.
            job: the job's id.

        Returns:
            The id of the files; empty when the job has files already, or these are gone.

        Raises:
            SandboxFailure: the steward failed.
        """
        return str((await self._ask("adopt", {"warm": warm, "job": job}))["files"])

    async def adopted(self, jobs: Sequence[str]) -> dict[str, str]:
        """Return under which ids the files of jobs were prepared, of those that were ahead.

        Raises:
            SandboxFailure: the steward failed.
        """
        found: dict[str, str] = {}
        for at in range(0, len(jobs), _ASKED_JOBS):
            asked = {"jobs": list(jobs[at : at + _ASKED_JOBS])}
            found |= (await self._ask("adopted", asked))["adopted"]
        return found

    async def warm(self, idle_seconds: float) -> list[str]:
        """Return the ids of files that were prepared ahead at least so long ago.

        Raises:
            SandboxFailure: the steward failed.
        """
        answer = await self._ask("warm", {"idle_seconds": idle_seconds})
        return [str(warm) for warm in answer["warm"]]

    async def keep_ahead(self, warm: str) -> None:
        """Keep files that were prepared ahead, although no container has them for a moment.

        Raises:
            SandboxFailure: the steward failed.
        """
        await self._ask("keep_ahead", {"warm": warm})

    async def has_environment(self, key: str) -> bool:
        """Return whether there is a prepared environment of this key.

        Raises:
            SandboxFailure: the steward failed.
        """
        return bool((await self._ask("has_environment", {"key": key}))["found"])

    async def claim_environment(self, key: str) -> bool:
        """Return whether this worker may prepare an environment now; False: another one does.

        Raises:
            EnvironmentReady: it is prepared.
            EnvironmentsUnfit: the engine cannot have any.
            SandboxFailure: the steward failed.
        """
        claim = str((await self._ask("claim_environment", {"key": key}))["claim"])
        if claim == "ready":
            raise EnvironmentReady
        if claim == "impossible":
            raise EnvironmentsUnfit(_UNFIT)
        return claim == "claimed"

    async def release_environment(self, key: str) -> None:
        """Give up a claim, if this steward holds it.

        Raises:
            SandboxFailure: the steward failed.
        """
        await self._ask("release_environment", {"key": key})

    async def seal(
        self, key: str, build: str, record: Mapping[str, str], most_bytes: int
    ) -> dict[str, Any]:
        """Make an environment of what a set-up made.

        Args:
            key: of a claim that is held.
            build: under which id its files were prepared ahead.
            record: what is kept of it.
            most_bytes: its largest archive.

        Returns:
            `bytes` that it takes, and the `digest` of its archive.

        Raises:
            SandboxFailure: the steward failed, the claim is lost, or the files cannot be read or
                are too many.
        """
        arguments = {"key": key, "build": build, "record": dict(record), "most_bytes": most_bytes}
        return await self._ask("seal", arguments)

    async def environments(self) -> list[dict[str, Any]]:
        """Return the records of all prepared environments.

        Raises:
            SandboxFailure: the steward failed.
        """
        found: list[dict[str, Any]] = []
        while page := (
            await self._ask("environments", {"after": found[-1]["key"] if found else ""})
        )["environments"]:
            found += page
        return found

    async def remove_environments(
        self, keys: Sequence[str] | None, unused_seconds: float, most_bytes: int
    ) -> list[str]:
        """Remove environments that no job uses; see `Environments.remove`.

        Raises:
            SandboxFailure: the steward failed.
        """
        arguments = {
            "keys": None if keys is None else list(keys),
            "unused_seconds": unused_seconds,
            "most_bytes": most_bytes,
        }
        return [str(key) for key in (await self._ask("remove_environments", arguments))["removed"]]

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
        except OperationFailed as failure:
            if failure.kind == "DiskReserve":
                raise SandboxStartFailed(
                    "The engine's disk has reached its reserve of free space "
                    f"({failure} bytes are free; {RESERVE_SETTING}): free some space there."
                ) from failure
            if (failed := NOT_COLLECTED.get(failure.kind)) is not None:
                raise failed(f"The job's changes cannot be collected: {failure}.") from failure
            if failure.kind == "EnvironmentsUnfit":
                raise EnvironmentsUnfit(_UNFIT) from failure
            if failure.kind == "EnvironmentMissing":
                raise EnvironmentMissing("The job's prepared environment was removed.") from failure
            if failure.kind in {"NotClaimed", "Unsealed"}:
                raise SandboxStartFailed(
                    f"The prepared environment cannot be kept: {failure}."
                ) from failure
            if failure.kind == "DiskFailed":
                raise SandboxStartFailed(f"The job's disk failed: {failure}.") from failure
            raise
        return answer

    async def close(self) -> None:
        """End the steward and remove its container.

        Raises:
            SandboxFailure: the engine does not answer.
        """
        await self.client.close()
        await self.engine.remove_container(self.container)
        if self.holder is not None:
            await self.holder.close(self.engine)


async def _give_up(
    engine: Engine, container: str, client: ResidentClient | None, holder: Holder | None
) -> None:
    if client is not None:
        await client.close()
    await engine.remove_container(container)
    if holder is not None:
        await holder.close(engine)
