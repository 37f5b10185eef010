"""What Podman's Docker API wants otherwise than Docker's own.

Podman takes the value of `seccomp=` for the path of a file on its machine, where Docker takes JSON;
refuses file systems in memory with an owner or a number of files; and overlooks the options of
volumes that are to be created with a container. It gives a new volume to the container's user,
which a read-only one does not let it: so the mount of the volume is read-only, not the volume.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

_READ_ONLY = "ro"
_INLINE = "seccomp={"
_KNOWN = {"rw", "exec", "nosuid", "nodev", "size"}
"""The options of file systems in memory that Podman knows too."""
_FOR_ALL = "mode=1777"
"""Instead of the owner: in a container of ours is one job only. The number of files stays bounded
by the memory that the container may use."""


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
