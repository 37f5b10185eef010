"""Starts containers: prepares the files, creates the container and waits for its resident.

How many start at once is limited by a gate, since the processor limits starts: more would delay
each. The lighter OCI runtime is used where it is fit. An engine that runs containers without the
limits that they are created with is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.spec import Limits

from ..egress.proxy import Egress
from ..errors import (
    DiskLimitExceeded,
    EngineUnfit,
    SandboxDied,
    SandboxNotSecluded,
    SandboxStartFailed,
)
from ..inside.commands import OUTPUT_FOLDER
from ..inside.seclusion import REFUSAL
from ..protocol import WORKSPACE, SandboxSpec
from ..resident.client import ResidentClient
from ..resident.replies import integer
from . import container_config
from .container_config import named_hosts
from .engine import AttachStream, Engine
from .holders import NONE, EmptyNetworks, Holder
from .image_failures import unfit
from .naming import Names, Role
from .steward_client import Prepared, Steward

_SOME_HOST = ("host.invalid",)
"""A container has no network of its own: only whether there are hosts is part of it."""
_LIMITS = {"Memory": "memory_bytes", "PidsLimit": "pids"}
"""Those that stewards have too, by their names in a container's configuration. A limit of the
processor that an engine cannot keep is an error of the container's start."""
_USUAL, _LIGHTER = "runc", "crun"
"""Both isolate alike. The lighter one takes a tenth less of the engine's processor for a start."""

_FIT = b"fit"
_PROBE = ("sh", "-c", "mkdir /sys/fs/cgroup/probe 2>/dev/null || echo fit")
_PROBE_SECONDS = 10.0
"""The longest that a container takes to start and end on a busy engine."""

log = structlog.get_logger(__name__)
HEARTBEAT_SECONDS = 15.0
"""How long a resident waits for a sign of life from a worker whose connection is still open, for
example because it is stopped. It is the longest lease of a job: afterwards another attempt may have
begun."""
_READY_SECONDS = 30.0
"""The longest that a container takes to start on a busy engine."""
_MOUNT_FAILED = ("failed to mount local volume", "mounting volume")
"""Texts in the messages of Docker and Podman when the host cannot mount an overlay there."""


_MOST_INODE = (1 << 64) - 1
"""The kernel's number of a namespace."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All of it. What is not in here is given to a sandbox when a job has it."""

    image: str
    limits: Limits
    """Those that the container keeps."""
    has_credentials: bool
    labels: tuple[tuple[str, str], ...]
    """Those that its container has besides our own."""
    snapshot: str | None
    layers: tuple[str, ...]
    environment: str
    """The key of the prepared environment."""

    @classmethod
    def of(cls, spec: SandboxSpec) -> Shape:
        """Return the shape of a sandbox."""
        limits = spec.limits
        return cls(
            image=spec.image,
            limits=Limits(
                cpus=limits.cpus,
                memory_bytes=limits.memory_bytes,
                pids=limits.pids,
                disk_bytes=limits.disk_bytes,
                network=_SOME_HOST if named_hosts(limits) else "none",
            ),
            has_credentials=bool(spec.credentials),
            labels=tuple(sorted(spec.labels.items())),
            snapshot=spec.snapshot,
            layers=spec.layers,
            environment=spec.environment,
        )


class LimitedClient(ResidentClient):
    """A resident's client that reports an exceeded limit when its sandbox was ended for it."""

    exceeded: DiskLimitExceeded | None = None

    async def request(self, *arguments: Any, **options: Any) -> tuple[dict[str, Any], bytes]:
        """See `ResidentClient.request`.

        Raises:
            DiskLimitExceeded: the sandbox was ended for it.
            SandboxFailure: see `ResidentClient.request`.
        """
        try:
            return await super().request(*arguments, **options)
        except SandboxDied:
            if self.exceeded is not None:
                raise self.exceeded from None
            raise


@dataclass
class Container:
    """A container that was created, and maybe started."""

    name: str
    """The name by which the engine finds it: once it is created its id, since an adoption renames
    it."""
    volumes: tuple[str, ...]
    """What it mounts of the files that are its job's alone."""
    network: str
    client: LimitedClient | None = None
    egress: Egress | None = None
    is_closed: bool = False


@dataclass(frozen=True)
class Started:
    """A container that is ready, and the files in it."""

    container: Container
    client: LimitedClient
    prepared: Prepared


def require_limits(host: str, created: Mapping[str, Any]) -> None:
    """Refuse an engine that does not keep limits.

    Args:
        host: The engine's address.
        created: The `HostConfig` of a container that was created with these limits.

    Raises:
        EngineUnfit: The message names the limits, and what such an engine needs.
    """
    lost = [limit for name, limit in _LIMITS.items() if not created.get(name)]
    if lost:
        raise EngineUnfit(
            f"The Docker engine at {host} runs containers without the limits "
            f"{', '.join(lost)}: a rootless engine needs control groups of version 2, "
            "with their controllers delegated to its user."
        )


async def lighter_runtime(
    engine: Engine, names: Names, image: str, info: Mapping[str, Any]
) -> str | None:
    """Return an engine's lighter runtime if it is fit; None to use the engine's default.

    An engine lists runtimes that cannot start anything: `crun` refuses hosts with hybrid control
    groups. With those of version 1, it gives a job a writable folder in addition to its own, which
    no limit of ours bounds. So one container is started with it and tries that. A default that is
    not the usual one was chosen by somebody, for example for its isolation, and is kept.

    Args:
        engine: The engine.
        names: Those of this worker.
        image: The image of the container.
        info: The engine's answer to `GET /info`.
    """
    if info.get("DefaultRuntime") != _USUAL or _LIGHTER not in (info.get("Runtimes") or {}):
        return None
    labels = names.labels("network")
    config = container_config.probe_config(image, list(_PROBE), labels, runtime=_LIGHTER)
    said, reason = b"", "its containers are not as closed as they must be"
    try:
        probe = await Holder.start(engine, names.container("network"), config)
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                said = await probe.end
        finally:
            await probe.close(engine)
    except SandboxFailure as failure:
        reason = str(failure)
    except TimeoutError:
        reason = "its container does not end"
    if said.strip() == _FIT:
        return _LIGHTER
    log.info("the engine's lighter runtime is not used", runtime=_LIGHTER, reason=reason)
    return None


class StartGate:
    """A semaphore with two queues: what nobody waits for starts when nothing else wants to."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._urgent: deque[Future[None]] = deque()
        self._patient: deque[Future[None]] = deque()

    @property
    def is_awaited(self) -> bool:
        """Whether a start that a job waits for has to wait for others."""
        return bool(self._urgent)

    @contextlib.asynccontextmanager
    async def urgent(self) -> AsyncIterator[None]:
        """Enter for a start that a job waits for."""
        await self._enter(self._urgent)
        try:
            yield
        finally:
            self._leave()

    @contextlib.asynccontextmanager
    async def patient(self) -> AsyncIterator[None]:
        """Enter for a start that nobody waits for."""
        await self._enter(self._patient)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, queue: deque[Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        turn = get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._leave()  # its turn came together with the cancellation
            else:
                queue.remove(turn)
            raise

    def _leave(self) -> None:
        for queue in (self._urgent, self._patient):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


class _NetworkShared(SandboxStartFailed):
    """Another sandbox is in the same network."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose a sandbox is: an attempt's, or nobody's when it is started ahead."""

    id: str
    """The job's, or the warm sandbox's own."""
    attempt: int | None
    """None: it is started ahead."""

    @property
    def is_ahead(self) -> bool:
        """Whether it is started ahead."""
        return self.attempt is None


class ContainerStarts:
    """Starts the containers of one worker.

    Args:
        engine: the engine.
        names: those of this worker.
        networks: where their networks come from.
        close: removes a container, with what the worker holds for it.
        settle: waits until what has one of these names is removed, if it is to be removed.
        runtime: an OCI runtime; None uses the engine's default.
        first_uid: of the users of jobs that have a disk of their own.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        networks: EmptyNetworks,
        *,
        close: Callable[[Container], Awaitable[None]],
        settle: Callable[[Collection[str]], Awaitable[None]],
        runtime: str | None,
        first_uid: int,
    ) -> None:
        self._engine = engine
        self._names = names
        self._networks = networks
        self._close = close
        self._settle = settle
        self.runtime = runtime
        """The runtime of later starts; None: the engine's default."""
        self._first_uid = first_uid
        self._overlay = True

    async def start(self, steward: Steward, shape: Shape, owner: Owner) -> Started:
        """Start one; when that fails, its container is removed.

        Raises:
            SandboxFailure: see `workers.sandbox.errors`.
        """
        try:
            return await self._start(steward, shape, owner)
        except _NetworkShared:
            pass
        except SandboxStartFailed as failure:
            if not self._overlay or not any(said in str(failure) for said in _MOUNT_FAILED):
                raise
            self._overlay = False
        await self._settle(self._names.of_job(owner.id))  # the next one has the same volumes
        return await self._start(steward, shape, owner)

    async def _start(self, steward: Steward, shape: Shape, owner: Owner) -> Started:
        prepared = await steward.prepare(
            owner.id,
            shape.snapshot,
            shape.layers,
            overlay=self._overlay,
            disk_bytes=shape.limits.disk_bytes,
            first_uid=self._first_uid,
            ahead=owner.is_ahead,
            environment=shape.environment,
        )
        if prepared.adopted and not owner.is_ahead:  # by an attempt that may still use it
            await self.remove_adopted(prepared.adopted)
        container = Container(
            self._names.container("sandbox", owner.id),
            self._names.of_job(owner.id),
            self._networks.take(),
        )
        try:
            config = self._config(container, steward, shape, owner, prepared)
            container.name = await self._engine.create_container(container.name, config)
            stream = await self._engine.attach(container.name)
            client = container.client = LimitedClient(stream, ttl_seconds=HEARTBEAT_SECONDS)
            image = shape.image
            await self._start_container(container.name, image)
            await _wait_until_ready(client, stream, image)
            await self._check_network(container, client)
        except BaseException:
            await uninterrupted(self._close(container))
            raise
        return Started(container, client, prepared)

    async def _check_network(self, container: Container, client: LimitedClient) -> None:
        """Check that a sandbox whose network is disabled does not share another one's."""
        if container.network == NONE:
            return
        try:
            answer, _ = await client.request("network", {})
        except OSError:  # a runtime without namespaces
            answer = {"namespace": 0}
        with client.parsing():
            namespace = integer(answer, "namespace", 0, _MOST_INODE)
        if not self._networks.claim(container.name, namespace):
            client.mark_dead("its network is not its own")  # it is removed before the next start
            raise _NetworkShared("its network is not its own")

    async def rename(self, container: Container, job_id: str) -> None:
        """Give an adopted container the name that one of the job has, for people who look."""
        with contextlib.suppress(SandboxFailure):  # it has just ended
            await self._engine.rename(container.name, self._names.container("sandbox", job_id))

    async def remove_adopted(self, warm: str) -> None:
        """Remove the container of a sandbox that was started ahead and adopted, and its volumes.

        Raises:
            SandboxFailure: the engine does not answer.
        """
        for container in await self._engine.containers(self._names.of_warm(warm)):
            await self._engine.remove_container(container["Id"])
        for volume in self._names.of_job(warm):
            await self._engine.remove_volume(volume)

    async def _start_container(self, name: str, image: str) -> None:
        try:
            await self._engine.start(name)
        except SandboxStartFailed as failure:
            raise unfit(image, str(failure)) or failure from None

    def _config(
        self,
        container: Container,
        steward: Steward,
        shape: Shape,
        owner: Owner,
        prepared: Prepared,
    ) -> dict[str, Any]:
        workspace, output = container.volumes
        mounts = [
            self._volume("workspace", workspace, WORKSPACE, prepared.options, owner),
            self._volume("output", output, OUTPUT_FOLDER, prepared.output_options, owner),
            container_config.local_volume(
                self._names.code(steward.code_id),
                container_config.CODE_FOLDER,
                options=steward.code_options(),
                labels=self._names.labels("code"),
                read_only=True,
            ),
        ]
        return container_config.sandbox_config(
            image=shape.image,
            limits=shape.limits,
            network=container.network,
            runtime=self.runtime,
            mounts=mounts,
            labels={**dict(shape.labels), **self._labels("sandbox", owner, owner.attempt)},
            heartbeat_seconds=HEARTBEAT_SECONDS,
            has_credentials=shape.has_credentials,
            user=prepared.user,
        )

    def _volume(
        self,
        role: Role,
        name: str,
        target: str,
        options: Mapping[str, str],
        owner: Owner,
    ) -> dict[str, Any]:
        return container_config.local_volume(
            name, target, options=options, labels=self._labels(role, owner)
        )

    def _labels(self, role: Role, owner: Owner, attempt: int | None = None) -> dict[str, str]:
        if owner.is_ahead:
            return self._names.labels(role, warm=owner.id)
        return self._names.labels(role, owner.id, attempt)


async def _wait_until_ready(client: ResidentClient, stream: AttachStream, image: str) -> None:
    try:
        await client.start(_READY_SECONDS)
    except SandboxDied as failure:
        last = stream.error_output.decode(errors="replace").strip().rpartition("\n")[2]
        if last == REFUSAL:
            raise SandboxNotSecluded(f"The sandbox did not start. {last}") from failure
        raise SandboxStartFailed(
            f"The sandbox ended before it was ready ({last or failure}); "
            f"`fanout images check {image}` says whether the image has what sandboxes need."
        ) from failure
