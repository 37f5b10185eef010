"""Starts containers: prepares the files, creates the container and waits for its resident."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.attach import AttachStream
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import unfit
from fanout.workers.sandbox.docker.naming import Names, Role
from fanout.workers.sandbox.docker.networks import NONE, EmptyNetworks
from fanout.workers.sandbox.docker.opening.container import Container, LimitedClient, Started
from fanout.workers.sandbox.docker.opening.shape import Shape
from fanout.workers.sandbox.docker.steward.prepared import Prepared
from fanout.workers.sandbox.docker.steward_client import Steward
from fanout.workers.sandbox.errors import SandboxDied, SandboxNotSecluded, SandboxStartFailed
from fanout.workers.sandbox.inside.outputs import FOLDER as OUTPUT_FOLDER
from fanout.workers.sandbox.inside.seclusion import REFUSAL
from fanout.workers.sandbox.protocol import WORKSPACE
from fanout.workers.sandbox.resident.client import ResidentClient
from fanout.workers.sandbox.resident.replies import integer

HEARTBEAT_SECONDS = 15.0
"""How long a resident waits for a sign of life from a worker whose connection is still open, for
example because it is stopped. It is the longest lease of a job: afterwards another attempt may have
begun."""
_READY_SECONDS = 30.0
"""The longest that a container takes to start on a busy engine."""
_MOUNT_FAILED = ("failed to mount local volume", "mounting volume")
"""In the messages of Docker and Podman when the host cannot mount an overlay there."""


_MOST_INODE = (1 << 64) - 1
"""The kernel's number of a namespace."""


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
