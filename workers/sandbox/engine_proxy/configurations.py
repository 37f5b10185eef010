"""Which configurations of containers pass: those that `container_config` builds.

A configuration is built anew from the values that vary, and must be the one that was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fanout.orchestrator.jobs.spec import MAX_LAYERS, Limits
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.holders import SHARED
from fanout.workers.sandbox.docker.naming import ROLE
from fanout.workers.sandbox.docker.steward_client import STORE, steward_command
from fanout.workers.sandbox.inside.disks import PLAIN_OVERLAY, RENAMING_OVERLAY
from fanout.workers.sandbox.inside.outputs import FOLDER as OUTPUT_FOLDER
from fanout.workers.sandbox.protocol import WORKSPACE

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


class Refused(Exception):
    """A call does not pass; the text says why, without its content."""


def rebuilt_container(config: Config, root: str) -> dict[str, Any]:
    """Return the configuration of a container, built anew by our own code.

    Args:
        config: the one that was asked for.
        root: the engine's folder on its host, which contains its volumes.

    Raises:
        Refused: it is not one of a sandbox, a steward or a holder of a network namespace.
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
                raise Refused("its container has no role")
    except (LookupError, TypeError, ValueError, AttributeError, ValidationError) as error:
        raise Refused("its container is not configured as fanout's are") from error
    if canonical(rebuilt) != canonical(config):
        raise Refused("its container is not configured as fanout's are")
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
        Refused: they are malformed, or do not tell its role.
    """
    if not isinstance(labels, dict) or ROLE not in labels:
        raise Refused("it has no label of fanout's")
    if not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise Refused("its labels are malformed")


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
        raise Refused("its user is not one of fanout's")
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
        raise Refused("it mounts what is not a workspace")
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
        raise Refused("it has a malformed name")
