"""Which calls of the Engine API pass: those of a worker, with what a worker puts into them.

Nothing of a request is forwarded as it came: a call that is known is written again from its checked
parts. The engine reads the names of JSON fields in any case and takes the last of two, so a
configuration is compared whole with the one that `container_config` builds from its values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pydantic import ValidationError

from fanout.orchestrator.jobs.spec import MAX_LAYERS, Limits

from ..sandbox.docker import container_config
from ..sandbox.docker.holders import SHARED
from ..sandbox.docker.naming import ROLE
from ..sandbox.docker.steward_client import STORE, steward_code, steward_command
from ..sandbox.inside.commands import OUTPUT_FOLDER
from ..sandbox.inside.disks import PLAIN_OVERLAY, RENAMING_OVERLAY
from ..sandbox.protocol import WORKSPACE

NAME = r"fanout-[A-Za-z0-9][A-Za-z0-9_.-]{0,200}"
"""The pattern of the names of our containers and volumes."""
IMAGE = r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,250}"
"""The pattern of the names of images."""
_RUNTIME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}"
_ID = "[A-Za-z0-9_-]+"
_HOMES = f"(jobs|warm)/{_ID}"
"""The folders of jobs and of warm sandboxes on a store."""
_LAYERED = "(/layers|/disk|/renaming)?"
"""Where in such a folder the layers of its overlay are."""

Config = Mapping[str, Any]
_LABEL = "fanout."
_CONTAINER = r"(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,200})"
_VERSION = re.compile(r"(?P<version>/v1\.[0-9]{2})?(?P<path>/[!-~]*)")


class CallRefused(Exception):
    """A call does not pass; the text says why, without its content."""


def rebuilt_container(config: Config, root: str) -> dict[str, Any]:
    """Return the configuration of a container, built by our own code.

    Args:
        config: the one that was asked for.
        root: the engine's folder on its host, which contains its volumes.

    Raises:
        CallRefused: it is not one of a sandbox, a steward or a holder of a network namespace.
    """
    try:
        labels, image = dict(config["Labels"]), config["Image"]
        check_labels(labels)
        _check(IMAGE, image)
        match labels[ROLE]:
            case "sandbox":
                rebuilt = _sandbox(config, root)
            case "steward":
                rebuilt = _steward(config, root)
            case "network":
                rebuilt = container_config.holder_config(image=image, labels=labels)
            case "shared":
                rebuilt = _holder_of_disks(config, root)
            case _:
                raise CallRefused("its container has no role")
    except (LookupError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise CallRefused("its container is not configured as fanout's are") from error
    if canonical(rebuilt) != canonical(config):
        raise CallRefused("its container is not configured as fanout's are")
    return rebuilt


def shared_volumes(root: str) -> list[dict[str, str]]:
    """Return the patterns of a volume that shows a store, with the disks mounted on it."""
    store = rf"{re.escape(root)}/volumes/fanout-{_ID}/_data"
    return [{"type": "none", "o": "bind,rshared", "device": store}]


def matches(options: Mapping[str, str], patterns: Mapping[str, str]) -> bool:
    """Return whether options have exactly these names, each with a value of its pattern."""
    return options.keys() == patterns.keys() and all(
        re.fullmatch(pattern, options[name]) for name, pattern in patterns.items()
    )


def check_labels(labels: object) -> None:
    """Check the labels of something of fanout's.

    Raises:
        CallRefused: they are malformed, or do not tell its role.
    """
    if not isinstance(labels, dict) or ROLE not in labels:
        raise CallRefused("it has no label of fanout's")
    if not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise CallRefused("its labels are malformed")


def canonical(config: Config) -> bytes:
    """Return a configuration as JSON that is the same for equal ones."""
    return json.dumps(config, sort_keys=True).encode()


def _sandbox(config: Config, root: str) -> dict[str, Any]:
    host = config["HostConfig"]
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    sizes = {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}
    limits = Limits(
        cpus=host["NanoCpus"] / 1e9,
        memory_bytes=host["Memory"],
        pids=host["PidsLimit"],
        disk_bytes=sizes["fsize"],
        network=("host.invalid",) if "HTTP_PROXY" in environment else "none",
    )
    if (runtime := host.get("Runtime")) is not None:
        _check(_RUNTIME, runtime)
    if (network := host["NetworkMode"]) != "none":
        _check(f"container:{NAME}", network)
    user = int(config["User"].partition(":")[0])
    if user < container_config.AGENT_ID:
        raise CallRefused("its user is not one of fanout's")
    workspace, output, code = host["Mounts"]
    return container_config.sandbox_config(
        image=config["Image"],
        limits=limits,
        network=network,
        runtime=runtime,
        mounts=[
            _mount(workspace, WORKSPACE, _workspaces(root)),
            _mount(output, OUTPUT_FOLDER, _outputs(root)),
            _mount(code, container_config.CODE_FOLDER, _codes(root), read_only=True),
        ],
        labels=config["Labels"],
        heartbeat_seconds=float(environment["FANOUT_RESIDENT_TTL"]),
        user=user,
    )


def _steward(config: Config, root: str) -> dict[str, Any]:
    (mount,) = config["HostConfig"]["Mounts"]
    where = steward_command(0, 0).index("0")
    sizes = [int(size) for size in config["Entrypoint"][where : where + 2]]
    if may_mount := mount["Type"] == "bind":
        _check(rf"{re.escape(root)}/volumes/fanout-{_ID}\.shared/_data", mount["Source"])
        mounted = container_config.shared_bind(mount["Source"], STORE)
    else:
        mounted = _mount(mount, STORE, [{}])
    return container_config.steward_config(
        image=config["Image"],
        mount=mounted,
        command=steward_command(*sizes),
        labels=config["Labels"],
        may_mount=may_mount,
    )


def _holder_of_disks(config: Config, root: str) -> dict[str, Any]:
    store, shared = config["HostConfig"]["Mounts"]
    return container_config.holder_config(
        image=config["Image"],
        labels=config["Labels"],
        mounts=[
            _mount(store, STORE, [{}]),
            _mount(shared, SHARED, shared_volumes(root)),
        ],
    )


def _mount(
    mount: Config, target: str, allowed: list[dict[str, str]], *, read_only: bool = False
) -> dict[str, Any]:
    """Return a mount of a volume of fanout's whose options match one of the patterns."""
    volume = mount["VolumeOptions"]
    options = volume["DriverConfig"]["Options"]
    _check(NAME, mount["Source"])
    check_labels(volume["Labels"])
    if not any(matches(options, patterns) for patterns in allowed):
        raise CallRefused("it mounts what is not a workspace")
    return container_config.local_volume(
        mount["Source"], target, options=options, labels=volume["Labels"], read_only=read_only
    )


def _workspaces(root: str) -> list[dict[str, str]]:
    """Return the patterns of a workspace's mount.

    They name the folders that the steward makes, and none below them: there, a job may have made a
    link that the engine would follow on its host.
    """
    job = f"{_shown(root)}/{_HOMES}"
    tree = f"({_shown(root)}/snapshots|{job}/lower)/{_ID}/tree"
    home = f"{job}{_LAYERED}"
    lower = f"{tree}(:{tree}){{0,{MAX_LAYERS}}}"
    layers = f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work"
    return [
        {"type": "none", "o": "bind", "device": f"{job}/tree"},
        {
            "type": "overlay",
            "device": "overlay",
            "o": f"{layers},({PLAIN_OVERLAY}|{RENAMING_OVERLAY}),nosuid,nodev",
        },
    ]


def _outputs(root: str) -> list[dict[str, str]]:
    """Return the patterns of the mount of a job's outputs, a folder that the steward makes."""
    home = f"{_shown(root)}/{_HOMES}{_LAYERED}"
    return [{"type": "none", "o": "bind", "device": f"{home}/output"}]


def _codes(root: str) -> list[dict[str, str]]:
    return [{"type": "none", "o": "bind,ro", "device": f"{_shown(root)}/code/[0-9a-f]+"}]


def _shown(root: str) -> str:
    """Return the pattern of the folders in which a store is shown."""
    return rf"{re.escape(root)}/volumes/fanout-{_ID}(\.shared)?/_data"


def _check(pattern: str, text: str) -> None:
    if not re.fullmatch(pattern, text):
        raise CallRefused("it has a malformed name")


@dataclass(frozen=True)
class Call:
    """A request as it came."""

    method: str
    target: str
    """The path and the query."""
    body: bytes = b""
    upgrade: bool = False
    """It asks for the connection itself."""


@dataclass(frozen=True)
class Passed:
    """A request as it is sent to the engine."""

    method: str
    target: str
    body: bytes = b""
    content_type: str = "application/json"
    upgrade: bool = False


@dataclass(frozen=True)
class Rules:
    """The rules of one engine.

    Attributes:
        read_labels: returns the labels of the container or the volume of a name, None when there is
            none; called with `container` or `volume` and the name.
        root: the engine's folder on its host, which contains its volumes.
    """

    read_labels: Callable[[str, str], Awaitable[Mapping[str, str] | None]]
    root: str

    async def check(self, call: Call) -> Passed:
        """Return the request to be sent for a call.

        Raises:
            CallRefused: it is not a call of a worker.
        """
        parts = urlsplit(call.target)
        found = _VERSION.fullmatch(parts.path)
        if found is None or parts.scheme or parts.netloc or parts.fragment:
            raise CallRefused("its path is malformed")
        for method, pattern, handler in _ROUTES:
            match = pattern.fullmatch(found["path"])
            if match and method == call.method:
                request = _Request(call, match.groupdict(), _query(parts.query))
                passed = await handler(self, request)
                if call.upgrade != passed.upgrade:
                    raise CallRefused("it asks for the connection")
                version = found["version"] or ""
                return Passed(**{**vars(passed), "target": version + passed.target})
        raise CallRefused("workers do not make it")

    async def look(self, request: _Request) -> Passed:
        """Pass a question about the engine itself."""
        request.has_only({})
        return Passed("GET", request.path)

    async def image(self, request: _Request) -> Passed:
        """Pass a question about an image."""
        name = request.names["image"]
        if not re.fullmatch(IMAGE, name) or ".." in name:
            raise CallRefused("its image's name is malformed")
        request.has_only({})
        return Passed("GET", f"/images/{quote(name)}/json")

    async def list_containers(self, request: _Request) -> Passed:
        """Pass a list of what belongs to fanout."""
        fixed = {"limit": "-1", "all": "1", "size": "0", "trunc_cmd": "0"}
        return _listed("/containers/json", request, fixed)

    async def inspect_container(self, request: _Request) -> Passed:
        """Pass a question about a steward: whether the engine has kept its limits."""
        request.has_only({})
        await self._is_ours("container", request.names["container"], role="steward")
        return Passed("GET", request.path)

    async def list_volumes(self, request: _Request) -> Passed:
        """Pass a list of what belongs to fanout."""
        return _listed("/volumes", request, {})

    async def create_container(self, request: _Request) -> Passed:
        """Pass a sandbox, a steward or a holder of a network namespace."""
        name = request.query.pop("name", "")
        request.has_only({})
        if not re.fullmatch(NAME, name):
            raise CallRefused("its container's name is not one of fanout's")
        rebuilt = rebuilt_container(request.json(), self.root)
        mode = rebuilt["HostConfig"]["NetworkMode"]
        if mode != "none":
            await self._is_ours("container", mode.removeprefix("container:"), role="network")
        return Passed("POST", f"/containers/create?name={quote(name)}", canonical(rebuilt))

    async def create_volume(self, request: _Request) -> Passed:
        """Pass a plain volume, or one that shows a store."""
        request.has_only({})
        asked = request.json()
        options = asked.get("DriverOpts")
        made: dict[str, Any] = {
            "Name": asked.get("Name"),
            "Driver": "local",
            "DriverOpts": options,
            "Labels": asked.get("Labels"),
        }
        allowed = [{}, *shared_volumes(self.root)]
        if (
            asked != made
            or not re.fullmatch(NAME, str(made["Name"]))
            or not isinstance(options, dict)
            or not any(matches(options, patterns) for patterns in allowed)
        ):
            raise CallRefused("its volume is not one of fanout's")
        check_labels(made["Labels"])
        return Passed("POST", "/volumes/create", canonical(made))

    async def remove_volume(self, request: _Request) -> Passed:
        """Pass the removal of a volume of fanout's."""
        request.has_only({})
        await self._is_ours("volume", request.names["volume"])
        return Passed("DELETE", request.path)

    async def start(self, request: _Request) -> Passed:
        """Pass the start of a container of fanout's."""
        request.has_only({})
        await self._is_ours("container", request.names["container"])
        return Passed("POST", request.path)

    async def remove_container(self, request: _Request) -> Passed:
        """Pass the removal of a container of fanout's."""
        request.has_only({"v": "True", "link": "False", "force": "True"})
        await self._is_ours("container", request.names["container"])
        return Passed("DELETE", f"{request.path}?v=true&link=false&force=true")

    async def attach(self, request: _Request) -> Passed:
        """Pass a stream to a container of fanout's."""
        streams = dict.fromkeys(("stream", "stdin", "stdout", "stderr"), "1")
        request.has_only(streams)
        await self._is_ours("container", request.names["container"])
        return Passed("POST", f"{request.path}?{urlencode(streams)}", upgrade=True)

    async def rename(self, request: _Request) -> Passed:
        """Pass another name for a sandbox."""
        name = request.query.pop("name", "")
        request.has_only({})
        if not re.fullmatch(NAME, name):
            raise CallRefused("its container's name is not one of fanout's")
        await self._is_ours("container", request.names["container"], role="sandbox")
        return Passed("POST", f"{request.path}?name={quote(name)}")

    async def put_archive(self, request: _Request) -> Passed:
        """Pass this release's own code into a steward; nothing else runs in it as root."""
        request.has_only({"path": "/opt"})
        archive, _ = steward_code()
        if request.call.body != archive:
            raise CallRefused("it is not this release's code: the proxy and workers need the same")
        await self._is_ours("container", request.names["container"], role="steward")
        return Passed("PUT", f"{request.path}?path=/opt", archive, "application/x-tar")

    async def _is_ours(self, kind: str, name: str, *, role: str | None = None) -> None:
        labels = await self.read_labels(kind, name)
        if labels is None:
            return  # the engine says so itself
        if ROLE not in labels or (role is not None and labels[ROLE] != role):
            raise CallRefused(f"its {kind} is not fanout's")


@dataclass
class _Request:
    """A call and the parts of its target."""

    call: Call
    names: Mapping[str, str]
    query: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path without a version."""
        found = _VERSION.fullmatch(urlsplit(self.call.target).path)
        assert found is not None  # noqa: S101 - `check` has matched it
        return found["path"]

    def has_only(self, query: Mapping[str, str]) -> None:
        """Check what is left of the query.

        Raises:
            CallRefused: it is another one.
        """
        if self.query != query:
            raise CallRefused("its query is not a worker's")

    def json(self) -> dict[str, Any]:
        """Return the body.

        Raises:
            CallRefused: it is no JSON object, or names a field twice.
        """
        try:
            value = json.loads(self.call.body, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise CallRefused("its body is not JSON") from error
        if not isinstance(value, dict):
            raise CallRefused("its body is not an object")
        return value


def _query(text: str) -> dict[str, str]:
    pairs = parse_qsl(text, keep_blank_values=True)
    query = dict(pairs)
    if len(query) != len(pairs):
        raise CallRefused("its query names a parameter twice")
    return query


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is named twice")
    return fields


def _listed(path: str, request: _Request, fixed: Mapping[str, str]) -> Passed:
    try:
        filters = json.loads(request.query.pop("filters", "{}"), object_pairs_hook=_unique)
        labels = list(filters.pop("label"))
        status = list(filters.pop("status", []))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CallRefused("it lists more than what is fanout's") from error
    ours = [label for label in labels if str(label).startswith(_LABEL)]
    if filters or not ours or not all(isinstance(one, str) for one in (*labels, *status)):
        raise CallRefused("it lists more than what is fanout's")
    request.has_only(fixed)
    kept = {"label": labels, **({"status": status} if status else {})}
    return Passed("GET", f"{path}?{urlencode({**fixed, 'filters': json.dumps(kept)})}")


_ROUTES = tuple(
    (method, re.compile(pattern), handler)
    for method, pattern, handler in (
        ("GET", r"/(_ping|version|info)", Rules.look),
        ("GET", r"/images/(?P<image>.+)/json", Rules.image),
        ("GET", r"/containers/json", Rules.list_containers),
        ("GET", rf"/containers/{_CONTAINER}/json", Rules.inspect_container),
        ("POST", r"/containers/create", Rules.create_container),
        ("POST", rf"/containers/{_CONTAINER}/start", Rules.start),
        ("POST", rf"/containers/{_CONTAINER}/attach", Rules.attach),
        ("POST", rf"/containers/{_CONTAINER}/rename", Rules.rename),
        ("PUT", rf"/containers/{_CONTAINER}/archive", Rules.put_archive),
        ("DELETE", rf"/containers/{_CONTAINER}", Rules.remove_container),
        ("GET", r"/volumes", Rules.list_volumes),
        ("POST", r"/volumes/create", Rules.create_volume),
        ("DELETE", rf"/volumes/(?P<volume>{NAME})", Rules.remove_volume),
    )
)
