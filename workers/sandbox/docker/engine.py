"""The Docker engine for asyncio: docker-py in threads, and its errors as ours.

The only module that knows docker-py's exceptions. Each call names what it does, and its failure
repeats that name.

Podman's Docker API differs. It takes the value of `seccomp=` for the path of a file on its machine,
where Docker takes JSON; refuses file systems in memory with an owner or a number of files; and
overlooks the options of volumes that are to be created with a container. It gives a new volume to
the container's user, which a read-only one does not let it: so the mount of the volume is
read-only, not the volume.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import requests
from docker import errors as docker_errors
from docker.utils import kwargs_from_env, parse_host

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.portable.command_output import BoundedOutput

from ..errors import (
    EngineForbidden,
    EngineUnavailable,
    ImageMissing,
    SandboxDied,
    SandboxStartFailed,
    unreachable,
)
from .image_failures import image_missing

_READ_AHEAD_BYTES = 1024 * 1024
"""The bytes of a sandbox's output that are buffered in memory: one part of a reply fits."""
_READ_BYTES = 256 * 1024
"""Passed on at once: others have their turn in between."""
_STDERR = 2
_STDERR_KEPT_BYTES = 2048
"""The end of a dead resident's error output, for the error message."""
_CONNECT_SECONDS = 30.0
"""The longest that a busy engine takes to attach to a container."""
_REFUSALS = {404: SandboxDied, 409: SandboxDied, 500: SandboxStartFailed}
"""Failures by the status of a refused attach request; others are those of proxies before the
engine. Podman mounts what a container has when somebody attaches to it, and Docker at its start."""
T = TypeVar("T")

_CALL_SECONDS = 60
"""docker-py's own default. An engine that needs longer for one of our small calls counts as
unavailable."""

_PARALLEL_CALLS = 32
"""Connections to the engine that are kept open: one for each simultaneous call."""
_OK = 200
_DONE = 204
_FORBIDDEN = 403
_GONE = 404
_CONFLICT = 409
_ENDING = ("container state improper", "Could not kill running container")
"""Why Podman and Docker 20.10 do not remove a container that ends at that moment: errors without a
status of their own. Docker 20.10 has found it running, and not running when it killed it."""
_UNAUTHORIZED = 401
_PINGS = ("/_ping", "/version")
"""What an engine answers at once. The second one also passes proxies of earlier releases."""
_REMOVAL_SECONDS = 10.0
"""How long to wait for a removal in progress."""
_REMOVAL_POLL_SECONDS = 0.02
"""Between two checks of a removal, which takes 80 ms."""
_READ_ONLY = "ro"
_INLINE = "seccomp={"
_KNOWN = {"rw", "exec", "nosuid", "nodev", "size"}
"""The options of file systems in memory that Podman knows too."""
_FOR_ALL = "mode=1777"
"""Instead of the owner: in a container of ours is one job only. The number of files stays bounded
by the memory that the container may use."""


@dataclass(frozen=True)
class EngineAddress:
    """The address of an engine."""

    url: str
    """`unix://PATH` or `tcp://HOST:PORT`."""
    tls: ssl.SSLContext | None = None

    async def connect(self) -> AttachStream:
        """Open a connection for the engine's HTTP API.

        Raises:
            EngineUnavailable: nothing answers there.
        """
        parts = urlsplit(self.url)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if parts.scheme in {"unix", "http+unix"}:
                    opening = asyncio.open_unix_connection(parts.path, limit=_READ_AHEAD_BYTES)
                else:
                    opening = asyncio.open_connection(
                        parts.hostname, parts.port, ssl=self.tls, limit=_READ_AHEAD_BYTES
                    )
                return AttachStream(*await opening)
        except (OSError, TimeoutError) as error:
            raise EngineUnavailable(f"No Docker engine answers at {self.url}.") from error

    async def http_status(self, path: str) -> int:
        """Return the status of the engine's answer to a GET request.

        Raises:
            EngineUnavailable: nothing answers there.
            OSError: the connection broke.
            EOFError: the answer is none.
        """
        stream = await self.connect()
        try:
            return await stream.http_status(path)
        finally:
            await stream.close()


class AttachStream:
    """A container's standard streams as one `ByteStream`: reads its output, writes its input.

    Docker puts an 8-byte header before each piece of output; it is removed here. The last 2 KiB of
    error output are kept separately, to explain why a container ended before it was ready.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left_in_piece = 0
        self._is_error_piece = False
        self._error_output = BoundedOutput(tail_bytes=_STDERR_KEPT_BYTES)

    @property
    def error_output(self) -> bytes:
        """The last 2 KiB of the container's error output."""
        return self._error_output.content()

    async def attach(self, path: str) -> None:
        """Ask the engine to turn this connection into the streams of a container.

        Args:
            path: the path and the query of the request.

        Raises:
            SandboxDied: the container does not exist any more.
            SandboxStartFailed: the engine could not prepare the container.
            EngineUnavailable: the engine refused or closed the connection.
        """
        request = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            "Content-Length: 0\r\n\r\n"
        )
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self.write(request.encode())
                head = await self._reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise EngineUnavailable("The Docker engine hung up on an attach request.") from error
        status = int(head.split(b" ", 2)[1])
        if status not in {101, 200}:
            message = await self._refusal()
            failure = _REFUSALS.get(status, EngineUnavailable)
            raise failure(f"The Docker engine refused to attach: {message}")

    async def http_status(self, path: str) -> int:
        """Return the status of the engine's answer to a GET request, of which no more is read.

        Raises:
            OSError: the connection broke.
            EOFError: the answer is none.
        """
        await self.write(
            f"GET {path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n".encode()
        )
        line = await self._reader.readline()
        parts = line.split(b" ", 2)
        if len(parts) < 2 or not parts[1].isdigit():  # noqa: PLR2004 - the protocol, and a number
            raise EOFError("no answer")
        return int(parts[1])

    async def _refusal(self) -> str:
        with contextlib.suppress(TimeoutError, OSError, ValueError, KeyError, TypeError):
            async with asyncio.timeout(1):
                return str(json.loads(await self._reader.readline())["message"])
        return "no reason given"

    async def read(self) -> bytes:
        """Return the next bytes of the container's output; b"" when it has ended."""
        try:
            while data := await self._read_piece():
                if not self._is_error_piece:
                    return data
                self._error_output.add(data)
        except (OSError, EOFError):
            pass
        return b""

    async def _read_piece(self) -> bytes:
        """Return a part of the present piece, or of the next one; never waits for a whole one."""
        while not self._left_in_piece:
            head = await self._reader.readexactly(8)
            self._is_error_piece = head[0] == _STDERR
            self._left_in_piece = int.from_bytes(head[4:], "big")
        data = await self._reader.read(min(self._left_in_piece, _READ_BYTES))
        self._left_in_piece -= len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Write to the container's input; waits while the peer does not read.

        Raises:
            OSError: the connection is broken.
        """
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Close the stream; the container's main process reads the end of its input and exits."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()


def translated(error: Exception, doing: str, host: str) -> SandboxFailure:
    """Return a docker-py or requests exception as a failure of ours.

    Args:
        error: the exception.
        doing: what failed, in the infinitive.
        host: the engine's address.
    """
    if isinstance(error, docker_errors.ImageNotFound):
        return ImageMissing(
            f"The Docker engine has no image to {doing}; see `fanout images build`."
        )
    if isinstance(error, docker_errors.NotFound):
        return SandboxDied(f"Could not {doing}: it does not exist on the Docker engine any more.")
    if isinstance(error, docker_errors.APIError):
        reason = error.explanation or type(error).__name__
        return SandboxStartFailed(f"The Docker engine could not {doing}: {reason}")
    if isinstance(error, requests.Timeout):
        return EngineUnavailable(f"The Docker engine at {host} did not {doing} in time.")
    return unreachable(error, host)


class Engine:
    """One engine. Creating the object does no I/O; the first call connects.

    A cancelled caller waits until the engine has answered, so that nothing is created without its
    knowledge. Every method raises the failures of `translated`: `EngineUnavailable`,
    `ImageMissing`, `SandboxDied` (what it names does not exist any more) and `SandboxStartFailed`
    (the engine refused).
    """

    def __init__(self, docker_host: str | None = None, call_seconds: float = _CALL_SECONDS) -> None:
        """Prepare a connection.

        Args:
            docker_host: the engine's address; None uses DOCKER_HOST and its companions from the
                environment, or the default.
            call_seconds: the time for an answer.
        """
        self._call_seconds = call_seconds
        options: dict[str, Any] = (
            kwargs_from_env() if docker_host is None else {"base_url": docker_host}
        )
        self._tls = options.get("tls")
        self.host: str = options.get("base_url") or parse_host(None).replace(
            "http+unix://", "unix://"
        )
        self._options = options
        self._is_podman: bool | None = None
        """None until it was asked."""
        self._connecting = threading.Lock()
        self._api: docker.APIClient | None = None

    def _connected(self) -> docker.APIClient:
        if self.host.startswith("ssh://"):
            raise EngineUnavailable(
                "ssh:// engines are not supported; forward the engine's socket "
                "(ssh -N -L /tmp/engine.sock:/var/run/docker.sock HOST) and set DOCKER_HOST to it."
            )
        with self._connecting:
            if self._api is None:
                self._api = docker.APIClient(
                    version="auto",
                    timeout=self._call_seconds,
                    max_pool_size=_PARALLEL_CALLS,
                    **self._options,
                )
            return self._api

    async def is_podman(self) -> bool:
        """Return whether it is Podman; only the first call asks the engine."""
        if self._is_podman is None:
            self._is_podman = is_podman(await self.version())
        return self._is_podman

    async def call(self, doing: str, request: Callable[[docker.APIClient], T]) -> T:
        """Send one request in a thread.

        Args:
            doing: what it does, in the infinitive, for error messages.
            request: calls docker-py.

        Raises:
            SandboxFailure: see `translated`.
        """
        try:
            return await uninterrupted(asyncio.to_thread(lambda: request(self._connected())))
        except (docker_errors.DockerException, requests.RequestException, OSError) as error:
            raise translated(error, doing, self.host) from error

    async def ping(self, timeout_seconds: float) -> None:
        """Check that the engine answers, without one of the threads, which it may block for long.

        Raises:
            EngineUnavailable: it does not answer in time, or with an error.
            EngineForbidden: this user, or a proxy, has no access to it.
        """
        address = await asyncio.to_thread(self._address)
        try:
            async with asyncio.timeout(timeout_seconds):
                for path in _PINGS:
                    status = await address.http_status(path)
                    if status not in {_FORBIDDEN, _GONE}:
                        break
        except (OSError, EOFError, TimeoutError, EngineUnavailable) as error:
            raise unreachable(error, self.host) from error
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            raise EngineForbidden(
                f"The way to the Docker engine at {self.host} is closed to this user ({status}): "
                "see what its proxy permits."
            )
        if status != _OK:
            raise EngineUnavailable(
                f"The Docker engine at {self.host} answers with an error ({status}): look at its "
                "log, or restart Docker."
            )

    async def version(self) -> dict[str, Any]:
        """Return the engine's answer to `GET /version`."""
        return await self.call("report its version", lambda api: dict(api.version()))

    async def info(self) -> dict[str, Any]:
        """Return the engine's answer to `GET /info`."""
        return await self.call("describe itself", lambda api: dict(api.info()))

    async def is_guarded(self) -> bool:
        """Return whether a proxy lets pass only a part of the API."""

        def look(api: docker.APIClient) -> bool:
            try:
                api.networks(names=["none"])
            except docker_errors.APIError as error:
                if error.status_code == _FORBIDDEN:
                    return True
                raise
            return False

        return await self.call("list networks", look)

    async def image(self, name: str) -> dict[str, Any] | None:
        """Return the engine's data about an image; None when it has none of that name."""

        def look(api: docker.APIClient) -> dict[str, Any] | None:
            try:
                return dict(api.inspect_image(name))
            except docker_errors.NotFound:
                return None

        return await self.call(f"look for {name}", look)

    async def image_names(self) -> list[str]:
        """Return the names of the engine's images; none where a proxy does not tell them."""
        try:
            found = await self.call("list its images", lambda api: list(api.images()))
        except SandboxFailure:
            return []
        return [str(name) for image in found for name in image.get("RepoTags") or ()]

    async def create_container(self, name: str, config: Mapping[str, Any]) -> str:
        """Create a container from an Engine API configuration; return its id.

        Raises:
            ImageMissing: the message says what to do about it.
            SandboxFailure: see `call`.
        """
        podman = await self.is_podman()

        def create(api: docker.APIClient) -> dict[str, Any]:
            if not podman:
                return dict(api.create_container_from_config(dict(config), name))
            for volume in volumes(config):
                api.create_volume(**volume)
            return dict(api.create_container_from_config(for_podman(config), name))

        try:
            made = await self.call(f"create a container of {config['Image']}", create)
        except ImageMissing:
            raise image_missing(config["Image"], await self.image_names()) from None
        return str(made["Id"])

    async def host_config(self, container: str) -> dict[str, Any]:
        """Return the `HostConfig` of a container, as the engine took it."""
        return await self.call(
            "inspect the container",
            lambda api: dict(api.inspect_container(container)["HostConfig"]),
        )

    async def start(self, container: str) -> None:
        """Start a container."""
        await self.call("start the container", lambda api: api.start(container))

    async def rename(self, container: str, name: str) -> None:
        """Give a container another name."""
        await self.call("rename the container", lambda api: api.rename(container, name))

    async def put_archive(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive into a container."""
        await self.call(
            "copy into the container", lambda api: api.put_archive(container, path, archive)
        )

    async def containers(
        self, labels: Iterable[str], *, running_too: bool = True
    ) -> list[dict[str, Any]]:
        """List the containers that have all these labels (`key` or `key=value`), in any state."""
        filters: dict[str, Any] = {"label": list(labels)}
        if not running_too:
            filters["status"] = ["created", "exited", "dead"]
        return await self.call(
            "list containers", lambda api: list(api.containers(all=True, filters=filters))
        )

    async def remove_container(self, container: str) -> bool:
        """Kill and remove a container and wait for its removal; return whether it existed.

        Raises:
            EngineUnavailable: the engine does not remove it in time.
            SandboxFailure: see `call`.
        """

        def remove(api: docker.APIClient) -> int:
            try:
                api.remove_container(container, v=True, force=True)
            except docker_errors.APIError as error:
                if any(reason in str(error.explanation) for reason in _ENDING):
                    return _CONFLICT
                if error.status_code not in {_GONE, _CONFLICT}:
                    raise
                return int(error.status_code)
            return _DONE

        async def remove_and_wait() -> bool:
            deadline = time.monotonic() + _REMOVAL_SECONDS
            first = status = await self.call("remove the container", remove)
            while status == _CONFLICT:  # a removal is in progress
                if time.monotonic() > deadline:
                    raise EngineUnavailable(
                        f"The Docker engine at {self.host} does not remove a container."
                    )
                await asyncio.sleep(_REMOVAL_POLL_SECONDS)
                status = await self.call("remove the container", remove)
            return first != _GONE

        return await uninterrupted(remove_and_wait())

    async def create_volume(
        self, name: str, options: Mapping[str, str], labels: Mapping[str, str]
    ) -> str:
        """Create or find a volume of the local driver; return its mount point on the host."""
        made = await self.call(
            "create a volume",
            lambda api: api.create_volume(
                name, driver="local", driver_opts=dict(options), labels=dict(labels)
            ),
        )
        return str(made["Mountpoint"])

    async def read_labels(self, kind: str, name: str) -> dict[str, str] | None:
        """Return the labels of a `container` or a `volume`; None when there is none of the name."""

        def look(api: docker.APIClient) -> dict[str, str] | None:
            try:
                if kind == "volume":
                    return dict(api.inspect_volume(name).get("Labels") or {})
                return dict(api.inspect_container(name)["Config"].get("Labels") or {})
            except docker_errors.NotFound:
                return None

        return await self.call(f"look for a {kind}", look)

    async def volumes(self, label: str) -> list[dict[str, Any]]:
        """List the volumes that have this label (`key` or `key=value`)."""
        answer = await self.call(
            "list volumes", lambda api: api.volumes(filters={"label": [label]})
        )
        return list(answer["Volumes"] or [])

    async def remove_volume(self, name: str) -> bool:
        """Remove a volume; False when it does not exist or a container uses it."""

        def remove(api: docker.APIClient) -> bool:
            try:
                api.remove_volume(name)
            except docker_errors.APIError as error:
                if error.status_code in {_GONE, _CONFLICT}:
                    return False
                raise
            return True

        return await self.call("remove a volume", remove)

    async def attach(self, container: str) -> AttachStream:
        """Attach to the container's standard streams; to be called before it is started.

        Raises:
            SandboxDied: the container does not exist any more.
            EngineUnavailable: the engine does not answer, or refused.
        """
        api_version = await self.call("report its API version", lambda api: str(api.api_version))
        address = await asyncio.to_thread(self._address)
        stream = await address.connect()
        try:
            query = "stream=1&stdin=1&stdout=1&stderr=1"
            await stream.attach(f"/v{api_version}/containers/{container}/attach?{query}")
        except BaseException:
            await stream.close()
            raise
        return stream

    def _address(self) -> EngineAddress:
        if self._tls is None:
            return EngineAddress(self.host)
        context = ssl.create_default_context(cafile=self._tls.ca_cert)
        if self._tls.cert:
            context.load_cert_chain(*self._tls.cert)
        if not self._tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return EngineAddress(self.host, context)

    async def close(self) -> None:
        """Close the connections."""
        if self._api is not None:
            await asyncio.to_thread(self._api.close)
            self._api = None


def is_podman(version: Mapping[str, Any]) -> bool:
    """Return whether an engine is Podman.

    Args:
        version: Its answer to `GET /version`.
    """
    return any(part.get("Name") == "Podman Engine" for part in version.get("Components") or ())


def for_podman(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's configuration as Podman takes it.

    The engine has to be on this machine: seccomp profiles become files. The first call for a
    profile writes it.
    """
    host = dict(config["HostConfig"])
    host["SecurityOpt"] = [
        f"seccomp={_file(option.removeprefix('seccomp='))}"
        if option.startswith(_INLINE)
        else option
        for option in host.get("SecurityOpt") or ()
    ]
    host["Mounts"] = [
        mount | {"ReadOnly": True} if _READ_ONLY in _flags(_driver(mount)) else mount
        for mount in host.get("Mounts") or ()
    ]
    if "Tmpfs" in host:
        host["Tmpfs"] = {path: _options(given) for path, given in host["Tmpfs"].items()}
    return {**config, "HostConfig": host}


def volumes(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments that create the volumes of a container's configuration with options."""
    for mount in config["HostConfig"].get("Mounts") or ():
        driver = _driver(mount)
        if driver.get("Options"):
            flags = [flag for flag in _flags(driver) if flag != _READ_ONLY]
            yield {
                "name": mount["Source"],
                "driver": driver["Name"],
                "driver_opts": {**driver["Options"], "o": ",".join(flags)},
                "labels": mount["VolumeOptions"]["Labels"],
            }


def _driver(mount: Mapping[str, Any]) -> dict[str, Any]:
    return dict((mount.get("VolumeOptions") or {}).get("DriverConfig") or {})


def _flags(driver: Mapping[str, Any]) -> list[str]:
    return str((driver.get("Options") or {}).get("o", "")).split(",")


def _options(given: str) -> str:
    known = [one for one in given.split(",") if one.partition("=")[0] in _KNOWN]
    return ",".join([*known, _FOR_ALL])


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that only this user, and the engine as root, can read."""
    return tempfile.TemporaryDirectory(prefix="fanout-seccomp-")


@cache
def _file(profile: str) -> str:
    path = Path(_folder().name) / f"{sha256(profile.encode()).hexdigest()[:16]}.json"
    path.write_text(profile, encoding="utf-8")
    return str(path)
