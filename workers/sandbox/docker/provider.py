"""Sandboxes in Docker: a hardened container for each attempt, its workspace an overlay.

The worker needs only the Engine API: no mounts, no root, and the engine may be on another host. The
job's files are in the overlay's upper layer on the steward's volume, so a container or a worker may
die and the next attempt opens a new container on the same files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Literal

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait, uninterrupted
from fanout.orchestrator.deep_agent import Execution, OutputSink
from fanout.orchestrator.jobs.failures import SandboxFailure

from ..egress.proxy import Egress
from ..egress.tls import install_bundle
from ..egress.traffic import Traffic
from ..egress.uplink import AllowedHosts, Uplink
from ..errors import (
    ChangesUnreadable,
    DiskLimitExceeded,
    EngineUnfit,
    EnvironmentMissing,
    FilesMissing,
    SandboxDied,
    SandboxStartFailed,
)
from ..inside.commands import OUTPUT_FOLDER
from ..protocol import (
    Command,
    IsLive,
    Process,
    Sandbox,
    SandboxSpec,
    SnapshotSource,
    nobody,
)
from ..resident.sandbox import ResidentSandbox
from ..resident.tunnels import resident_process
from . import container_config
from .disk_quota import (
    RESERVE_BYTES,
    RESERVE_SETTING,
    DiskQuota,
    DiskSettings,
    DiskWatch,
)
from .engine import Engine
from .environments import DockerEnvironments
from .holders import EmptyNetworks, networks_are_slow
from .image_failures import image_missing
from .naming import JOB, Names
from .removals import Leftovers, LivingWorkers, Removals
from .starts import (
    Container,
    ContainerStarts,
    Owner,
    Shape,
    Started,
    StartGate,
    lighter_runtime,
    require_limits,
)
from .steward_client import Steward
from .warm_pool import WARM_PER_CORE, Opening, WarmPool

STEWARD_IMAGE = "fanout/base"
DEFAULT_IMAGE = "fanout/python"

SNAPSHOT_CACHE_BYTES = 20 * 1024**3
"""The limit on unpacked snapshots on an engine, of which the most recently used are kept: a tenth
of a common disk."""
PULSE_SECONDS = 20.0
"""The longest that an engine takes to say that it is there: a busy one takes a second or two."""
LOST_TOGETHER_SECONDS = 15.0
"""Between the ends of a sandbox and of the steward when one engine ends both: an engine that is
stopped in order gives its containers ten seconds."""
STORE_TRIES = 4
STORE_TRY_SECONDS = 0.4
"""Between two tries: an engine needs a moment to release a volume."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """Data about an engine that can run sandboxes."""

    id: str
    version: str
    api_version: str
    cores: int
    is_guarded: bool
    """Whether it is reached through the engine proxy."""


class DockerSandbox(ResidentSandbox):
    """A sandbox in a container. Until it is closed, `changes` works without the container."""

    kind: Literal["docker", "local"] = "docker"
    home = container_config.HOME
    kept_folder = OUTPUT_FOLDER

    def __init__(
        self,
        spec: SandboxSpec,
        started: Started,
        *,
        opened_by: Steward,
        steward: Callable[[], Awaitable[Steward]],
        remove: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(started.client)
        self.files_id = started.prepared.files_id
        self._has_disk = started.prepared.has_disk
        self.spec = spec
        self.container = started.container
        self._limited = started.client
        self._opened_by = opened_by
        self._steward = steward
        self._remove = remove

    @property
    def was_lost(self) -> bool:
        """Whether it has ended together with its steward, another container of the same engine."""
        own, other = self._limited.died_at, self._opened_by.client.died_at
        return own is not None and other is not None and abs(own - other) < LOST_TOGETHER_SECONDS

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """See `Sandbox.run`. The notice is about the limit `disk_bytes` or `network_bytes`."""
        egress = self.container.egress
        if egress is None:
            return await super().run(command, on_output)
        hits = egress.traffic.limit_hits
        execution = await super().run(command, on_output)
        is_hit = egress.traffic.limit_hits > hits
        return replace(execution, notice=egress.traffic.exceeded or "") if is_hit else execution

    def disk_notice(self) -> str:
        """See `ResidentSandbox.disk_notice`."""
        if not self._has_disk:
            return ""
        return (
            f"The workspace is full: the job's limit (disk_bytes) is {self.spec.limits.disk_bytes} "
            "bytes. Delete what is not needed."
        )

    def open_process(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """See `Sandbox.open_process`.

        Raises:
            SandboxDied: the container has ended.
            DiskLimitExceeded: the job wrote more than its limit.
        """
        return resident_process(
            self._limited, command.max_output_bytes, partial(self._run_live, command)
        )

    async def changes(self) -> IO[bytes]:
        """See `Sandbox.changes`.

        Raises:
            SandboxDied: the sandbox is closed.
            SandboxFailure: the steward failed and no other could be started.
        """
        if self.container.is_closed:
            raise SandboxDied("the sandbox is closed")
        return await _bundle(await self._steward(), self.spec.job_id)

    @property
    def job_id(self) -> str:
        """Its job."""
        return self.spec.job_id

    async def stop_if_over_limit(self, used_bytes: int) -> None:
        """See `WatchedSandbox.stop_if_over_limit`."""
        limit = self.spec.limits.disk_bytes
        if limit is not None and used_bytes > limit and not self._has_disk:
            await self._stop(
                f"The job wrote {used_bytes} bytes to its workspace; "
                f"its limit (disk_bytes) is {limit} bytes."
            )

    async def stop_for_reserve(self, free_bytes: int, reserve_bytes: int) -> None:
        """See `WatchedSandbox.stop_for_reserve`."""
        await self._stop(
            f"The job was filling the engine's disk: {free_bytes} bytes are free, "
            f"and its reserve ({RESERVE_SETTING}) is {reserve_bytes} bytes."
        )

    async def _stop(self, reason: str) -> None:
        """Fail running and later calls, and remove the container.

        A deleted file that is still open uses space as long as its process lives.
        """
        self._limited.exceeded = DiskLimitExceeded(reason)
        self._limited.mark_dead("the disk limit is exceeded")
        await self._remove()


class DockerProvider:
    """Opens sandboxes on one engine. Made without I/O; the first use starts the steward."""

    kind: Literal["docker", "local"] = "docker"

    def __init__(
        self, snapshots: SnapshotSource, *, installation: str, worker: str, runtime: str | None = None,
        warm: int | None = None, processes: int = 1, start_gate: int | None = None,
        docker_host: str | None = None,
        steward_image: str = STEWARD_IMAGE, snapshot_cache_bytes: int = SNAPSHOT_CACHE_BYTES,
        living_workers: LivingWorkers | None = None,
        disk_quota: Literal["auto", "image", "watch"] = "auto",
        disk_reserve_bytes: int = RESERVE_BYTES,
        first_uid: int = container_config.FIRST_UID,
        ca_file: Path | None = None,
    ) -> None:  # fmt: skip
        """Make a provider.

        Args:
            snapshots: fetches a snapshot's archive.
            installation: the id that the ledger keeps; the workers of one installation share
                volumes and remove each other's leftovers, and nobody else's.
            worker: the name of this process in labels.
            runtime: an OCI runtime of the engine, such as `runsc`; None: see `lighter_runtime`.
            warm: how many sandboxes may be started ahead; None: in proportion to the engine's
                cores; 0: none.
            processes: of the worker, which share these evenly.
            start_gate: how many sandboxes may start at once; None uses the engine's number of
                cores. The processor limits starts, so more at once would only delay each.
            docker_host: the engine's address; see `Engine`.
            steward_image: the image of the steward.
            snapshot_cache_bytes: the limit on unpacked snapshots that no job uses, on the engine's
                disk.
            living_workers: returns the names of the living workers, whose containers are not
                leftovers.
            disk_quota: what keeps the disk limits; see `DiskSettings.quota`.
            disk_reserve_bytes: the free space that the engine's disk keeps: below, no sandbox is
                opened, and the one that takes most is stopped.
            first_uid: of the users of jobs with disks of their own; see `FIRST_UID`.
            ca_file: authorities that jobs' hosts may have besides the system's.

        Raises:
            ValueError: the installation's id has characters that the engine rejects.
        """
        self._engine = Engine(docker_host)
        self._names = Names(installation, worker)
        self._snapshots = snapshots
        self._start_gate = start_gate
        self._warm = warm
        self._processes = processes
        self._steward_image = steward_image
        self._cache_bytes = snapshot_cache_bytes
        self._uplink = Uplink(ca_file=ca_file)
        self._networks = EmptyNetworks(self._engine, self._names, steward_image)
        self._removals = Removals(
            self._engine,
            starts_wait=lambda: self._gate is not None and self._gate.is_awaited,
        )
        self._leftovers = Leftovers(
            self._engine, self._names, living_workers, lambda: self._removals.names
        )
        self._starts = ContainerStarts(
            self._engine,
            self._names,
            self._networks,
            close=self._close_container,
            settle=self._removals.settle,
            runtime=runtime,
            first_uid=first_uid,
        )
        self._pool = WarmPool(self._opening, self._starts, self._close_container, is_used=warm != 0)
        self._starting = asyncio.Lock()
        self._current: Steward | None = None
        self._gate: StartGate | None = None
        self._most_warm = 0
        self._open: dict[str, DockerSandbox] = {}
        self._disk = DiskSettings(quota=disk_quota, reserve_bytes=disk_reserve_bytes)
        self._disk_watch = DiskWatch(self._steward, self._open.values, disk_reserve_bytes)
        self._watcher: asyncio.Task[None] | None = None
        self.environments = DockerEnvironments(self._engine, self._steward, self._open_ahead)

    async def disk_quota(self) -> DiskQuota:
        """Return what keeps the disk limits of jobs on this engine; starts the steward.

        Raises:
            SandboxFailure: the steward could not be started.
        """
        return (await self._steward()).quota

    async def shared_user(self) -> str | None:
        """Return why all jobs have one user on this engine; None when each has its own.

        Raises:
            SandboxFailure: the steward could not be started.
        """
        return (await self._steward()).shared_user

    async def no_renaming(self) -> str | None:
        """Return why jobs cannot rename the folders that they start from; None when they can.

        Raises:
            SandboxFailure: the steward could not be started.
        """
        return (await self._steward()).no_renaming

    async def protection(self) -> dict[str, str]:
        """Return what keeps jobs apart on this engine, for people; starts the steward.

        Raises:
            SandboxFailure: the steward could not be started.
        """
        steward = await self._steward()
        return {
            "disk": steward.quota.kind,
            "users of jobs": "one for all" if steward.shared_user else "one each",
            "renaming of folders": f"no: {steward.no_renaming}" if steward.no_renaming else "yes",
            "runtime": self._starts.runtime or "the engine's default",
        }

    async def probe(self, image: str = DEFAULT_IMAGE) -> EngineStatus:
        """Return the status of the engine if it can run sandboxes of this image.

        Raises:
            EngineUnavailable: it does not answer.
            ImageMissing: the message says what to do about it.
        """
        info = await self._engine.info()
        version = await self._engine.version()
        for name in (self._steward_image, image):
            if await self._engine.image(name) is None:
                raise image_missing(name, await self._engine.image_names())
        return EngineStatus(
            id=info["ID"],
            version=info["ServerVersion"],
            api_version=version["ApiVersion"],
            cores=info["NCPU"],
            is_guarded=await self._engine.is_guarded(),
        )

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`.

        Raises:
            InvalidJob: the limit `network` has a malformed entry; see `egress.hosts`.
            SandboxFailure: see `workers.sandbox.errors`.
        """
        hosts = AllowedHosts(container_config.named_hosts(spec.limits))
        try:
            started = await self._start(spec)
        except EnvironmentMissing:
            self.environments.note_missing(spec.environment)
            raise
        async with self._opened(started, hosts) as sandbox:
            yield sandbox

    @contextlib.asynccontextmanager
    async def _open_ahead(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Open a sandbox that is no job's: its id is that of files that are prepared ahead.

        The files stay, for the next one with its id, until they are deleted.
        """
        hosts = AllowedHosts(container_config.named_hosts(spec.limits))
        opening = await self._opening()
        async with opening.gate.urgent():
            await self._removals.settle(self._names.of_job(spec.job_id))
            owner = Owner(id=spec.job_id, attempt=None)
            started = await self._starts.start(opening.steward, Shape.of(spec), owner)
        async with self._opened(self._sandbox(spec, started, opening.steward), hosts) as sandbox:
            yield sandbox

    @contextlib.asynccontextmanager
    async def _opened(
        self, sandbox: DockerSandbox, hosts: AllowedHosts
    ) -> AsyncIterator[DockerSandbox]:
        """Watch and connect a sandbox while the context is open, then close it."""
        try:
            self._open[sandbox.container.name] = sandbox
            if self._watcher is None or self._watcher.done():
                self._watcher = asyncio.create_task(self._disk_watch.run())
            await self._connect(sandbox, hosts)
            yield sandbox
        finally:
            await uninterrupted(self._close_container(sandbox.container))

    def expect(self, spec: SandboxSpec) -> AbstractContextManager[None]:
        """See `SandboxProvider.expect`."""
        return self._pool.expect(spec)

    def expect_next(self, specs: Sequence[SandboxSpec]) -> None:
        """See `SandboxProvider.expect_next`."""
        self._pool.expect_next(specs)

    async def home(self, job_id: str) -> str:
        """See `SandboxProvider.home`."""
        del job_id
        return container_config.HOME

    async def pulse(self) -> None:
        """See `SandboxProvider.pulse`.

        Raises:
            EngineUnavailable: the engine does not answer.
        """
        await self._engine.ping(PULSE_SECONDS)

    async def rehearse(self, spec: SandboxSpec) -> None:
        """See `SandboxProvider.rehearse`.

        Raises:
            SandboxFailure: see `workers.sandbox.errors`.
        """
        await self._pool.rehearse(spec)

    def was_lost(self, job_id: str) -> bool:
        """See `SandboxProvider.was_lost`."""
        return any(one.was_lost for one in self._open.values() if one.job_id == job_id)

    async def discard(self, job_id: str) -> None:
        """See `SandboxProvider.discard`.

        Raises:
            SandboxFailure: the engine does not answer.
        """
        await uninterrupted(self._discard(job_id))

    async def collect_changes(self, job_id: str) -> IO[bytes]:
        """See `SandboxProvider.collect_changes`.

        Raises:
            FilesMissing: nothing is left of the job here.
            SandboxFailure: the engine, or the steward, failed.
        """
        steward = await self._steward()
        if not self._removals.concern(await self._volumes(steward, job_id)):
            await self._end(steward, job_id)  # else its processes are dead
        try:
            return await _bundle(steward, job_id)
        except SandboxStartFailed as failure:
            if isinstance(failure.__cause__, FileNotFoundError):
                raise FilesMissing("The files of the job are not on this host any more.") from None
            raise

    async def reap(self, is_live: IsLive, keeps_files: IsLive = nobody) -> int:
        """See `SandboxProvider.reap`. Jobs that this process has open are kept.

        Raises:
            SandboxFailure: the engine does not answer.
        """
        await self._removals.wait()  # the engine has enough to do
        ours = {sandbox.spec.job_id for sandbox in self._open.values()}

        async def may_stay(job_id: str) -> bool:
            return job_id in ours or await is_live(job_id)

        return await self._leftovers.remove(self._steward, may_stay, keeps_files)

    async def close(self) -> None:
        """End the steward, and remove its volume unless another steward needs it.

        Files of jobs and prepared environments stay.
        """
        await uninterrupted(self._close())

    async def _start(self, spec: SandboxSpec) -> DockerSandbox:
        """Adopt a warm sandbox, or start one."""
        opening = await self._opening()
        started = await self._pool.adopt(opening.steward, spec)
        if started is None:
            async with opening.gate.urgent():
                await self._remove_containers(spec.job_id)
                owner = Owner(id=spec.job_id, attempt=spec.attempt)
                started = await self._starts.start(opening.steward, Shape.of(spec), owner)
        return self._sandbox(spec, started, opening.steward)

    def _sandbox(self, spec: SandboxSpec, started: Started, steward: Steward) -> DockerSandbox:
        name = started.container.name
        return DockerSandbox(
            spec,
            started,
            opened_by=steward,
            steward=self._steward,
            remove=partial(self._engine.remove_container, name),
        )

    async def _connect(self, sandbox: DockerSandbox, hosts: AllowedHosts) -> None:
        """Start the proxy of a sandbox whose job may reach hosts."""
        client = sandbox.container.client
        if not hosts.entries or client is None:
            return
        spec = sandbox.spec
        traffic = Traffic(
            spec.on_traffic,
            limit_bytes=spec.limits.network_bytes,
            used_bytes=spec.network_used_bytes,
        )
        egress = sandbox.container.egress = Egress(
            client,
            hosts,
            self._uplink,
            job_id=spec.job_id,
            traffic=traffic,
            credentials=spec.credentials,
            meter=spec.meter,
        )
        try:
            await egress.start()
            if egress.authority is not None:
                await install_bundle(
                    sandbox,
                    container_config.CA_BUNDLE,
                    egress.authority.certificate,
                    self._uplink.ca_file,
                )
        except OSError as error:
            raise SandboxStartFailed(
                f"The sandbox's way to its hosts could not be made: {error.strerror}."
            ) from error

    async def _close_container(self, container: Container) -> None:
        """Remove a container and its volumes; the job's files stay on the steward's."""
        self._open.pop(container.name, None)
        container.is_closed = True
        if container.egress is not None:
            await container.egress.close()
        await self._removals.remove(container.name, container.volumes, container.client)
        self._networks.give_back(container.name)

    async def _remove_containers(self, job_id: str) -> None:
        """Remove containers of earlier attempts, which have the job's files mounted."""
        await self._removals.settle(self._names.of_job(job_id))
        for container in await self._engine.containers(
            [self._names.of_installation, f"{JOB}={job_id}"]
        ):
            await self._engine.remove_container(container["Id"])

    async def _volumes(self, steward: Steward, job_id: str) -> set[str]:
        """Return the names of the volumes of a job's sandboxes, also of one started ahead."""
        warm = (await steward.adopted([job_id])).values()
        return {name for each in (job_id, *warm) for name in self._names.of_job(each)}

    async def _end(self, steward: Steward, job_id: str) -> None:
        """Remove a job's containers, also one that was started ahead."""
        await self._remove_containers(job_id)
        for warm in (await steward.adopted([job_id])).values():
            await self._starts.remove_adopted(warm)

    async def _discard(self, job_id: str) -> None:
        steward = await self._steward()
        await self._removals.wait_for(await self._volumes(steward, job_id))
        await self._end(steward, job_id)
        for volume in self._names.of_job(job_id):
            await self._engine.remove_volume(volume)
        await steward.delete(job_id)

    async def _opening(self) -> Opening:
        """Return what starts need; start a steward when there is none."""
        steward = await self._steward()
        assert self._gate is not None  # noqa: S101 - made with the first steward
        return Opening(steward, self._gate, self._most_warm)

    async def _steward(self) -> Steward:
        """Return the running steward; start one when there is none."""
        async with self._starting:
            if self._current is not None and self._current.client.is_dead:
                stale, self._current = self._current, None
                await uninterrupted(stale.close())
            if self._current is None:
                if self._starts.runtime and await self._engine.is_podman():
                    raise EngineUnfit(
                        "Podman overlooks the runtime of FANOUT_SANDBOX__RUNTIME: set `runtime` in "
                        "its containers.conf instead."
                    )
                await asyncio.to_thread(container_config.seccomp_profile)  # read once, off the loop
                self._current = await Steward.start(
                    self._engine,
                    self._snapshots,
                    names=self._names,
                    image=self._steward_image,
                    cache_bytes=self._cache_bytes,
                    disk=self._disk,
                )
            if self._gate is None:
                await self._require_limits(self._current)
                await self._prepare_starts()
            return self._current

    async def _prepare_starts(self) -> None:
        """Find out how this engine starts sandboxes best."""
        info, podman = await self._engine.info(), await self._engine.is_podman()
        if not self._starts.runtime and not podman:
            self._starts.runtime = await lighter_runtime(
                self._engine, self._names, self._steward_image, info
            )
        self._gate = StartGate(self._start_gate or info["NCPU"])
        warm = WARM_PER_CORE * info["NCPU"] if self._warm is None else self._warm
        self._most_warm = -(-warm // self._processes)
        if networks_are_slow(info["ServerVersion"]) and not podman:
            self._networks.avoid_hook(self._gate.patient)

    async def _require_limits(self, steward: Steward) -> None:
        """Close the first steward if the engine lost its limits: it would lose those of jobs."""
        try:
            require_limits(self._engine.host, await self._engine.host_config(steward.container))
        except SandboxFailure:
            self._current = None
            await uninterrupted(steward.close())
            raise

    async def _close(self) -> None:
        if self._watcher is not None:
            await cancel_and_wait(self._watcher)
        await self.environments.close()
        await self._pool.close()
        await self._removals.finish()
        await self._networks.close()
        self._uplink.close()
        steward, self._current = self._current, None
        if steward is not None:
            with contextlib.suppress(SandboxFailure):
                is_needed = not steward.client.is_dead and bool(
                    await steward.jobs() or await steward.environments()
                )
                await steward.close()
                if not is_needed:
                    await self._remove_store(steward)
        await self._engine.close()

    async def _remove_store(self, steward: Steward) -> None:
        """Remove the shared volumes unless another steward uses them.

        A steward that was killed releases them soon.
        """
        for _ in range(STORE_TRIES):
            await self._engine.remove_volume(self._names.code(steward.code_id))
            await self._engine.remove_volume(self._names.shared)
            if await self._engine.remove_volume(self._names.store):
                return
            await asyncio.sleep(STORE_TRY_SECONDS)


async def _bundle(steward: Steward, job_id: str) -> IO[bytes]:
    try:
        return await steward.bundle(job_id)
    except ChangesUnreadable as failure:  # else a whole job would be lost with them
        log.warning("changes are collected once more", reason=str(failure))
        return await steward.bundle(job_id)
