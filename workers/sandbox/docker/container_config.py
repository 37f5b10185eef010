"""The Engine API configuration of our containers: the job's limits and constant hardening.

The measurements behind the choices are in the notes on the sandbox: all flags together cost less
than 2 ms a start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from fanout.orchestrator.jobs.spec import Limits

from ..inside.forward import PORT
from ..protocol import WORKSPACE

AGENT_ID = 10001
"""The group of a job's processes, and their user where it has none of its own. Numeric: engines may
look a name up on the host, where it is unknown."""
FIRST_UID = 100_000
"""The first user of jobs that have one of their own: the kernel counts inotify instances, pending
signals and more for a user over all containers. Below are the users of hosts and images."""

CODE_FOLDER = "/opt/fanout"
"""Where the resident's code is mounted, read-only."""

HOME = "/home/agent"

_MIB = 1024**2
_OPEN_FILES = 8192
_TMP_SHARE, _HOME_SHARE, _SHM_SHARE = 4, 8, 8
"""The shares of the memory limit, as divisors. Together they are half of it: tmpfs pages count as
the container's memory, and a tmpfs that could fill it would let one `dd` kill the whole sandbox."""
_TMP_MOST, _HOME_MOST, _SHM_MOST = 2048 * _MIB, 512 * _MIB, 64 * _MIB
_BYTES_PER_INODE = 8192
"""Inodes of a tmpfs are kernel memory that its size does not bound."""

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",  # images may have no name for the user's number
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
    # Files that tools leave behind would be listed as the job's changes.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "MYPY_CACHE_DIR": "/tmp/.mypy_cache",  # noqa: S108 - the container's own tmpfs
    "RUFF_CACHE_DIR": "/tmp/.ruff_cache",  # noqa: S108 - the container's own tmpfs
    "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/.hypothesis",  # noqa: S108 - the container's own tmpfs
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
}

_PROXY = f"http://127.0.0.1:{PORT}"
_PROXY_ENVIRONMENT = {
    "HTTP_PROXY": _PROXY, "HTTPS_PROXY": _PROXY, "NO_PROXY": "localhost,127.0.0.1,::1",
}  # fmt: skip
# Some programs read the names in lower case only; curl ignores HTTP_PROXY.
_PROXY_ENVIRONMENT |= {name.lower(): value for name, value in _PROXY_ENVIRONMENT.items()}

CA_BUNDLE = f"{HOME}/.fanout/ca-bundle.pem"
"""The authorities that programs trust if the job has credentials; see `egress.bundle`."""
_CA_ENVIRONMENT = dict.fromkeys(
    ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
     "NODE_EXTRA_CA_CERTS"),
    CA_BUNDLE,
)  # fmt: skip


_MOUNTING = (
    "chroot", "fsconfig", "fsmount", "fsopen", "mount", "mount_setattr", "move_mount", "open_tree",
    "pivot_root", "setns", "umount2", "unshare",
)  # fmt: skip
"""The system calls with which disks are mounted and a jail is built."""


@cache
def seccomp_profile() -> str:
    """Return our seccomp profile as one line of JSON, the format of the Engine API.

    It is the engine's default for a container without capabilities, for native architectures only,
    without io_uring, sockets other than local and IP ones, and without what would change limits or
    priorities of PID 1, whose user is the job's. The first call reads a file.
    """
    file = resources.files("fanout.workers.sandbox.docker").joinpath("seccomp.json")
    return json.dumps(json.loads(file.read_text("utf-8")), separators=(",", ":"))


def _stewards_seccomp_profile() -> str:
    profile = json.loads(seccomp_profile())
    profile["syscalls"].append({"names": list(_MOUNTING), "action": "SCMP_ACT_ALLOW"})
    return json.dumps(profile, separators=(",", ":"))


def named_hosts(limits: Limits) -> tuple[str, ...]:
    """Return the hosts that a job's commands may reach; none for the network `none`."""
    return limits.network if isinstance(limits.network, tuple) else ()


def sandbox_config(
    *, image: str, limits: Limits, network: str, runtime: str | None,
    mounts: Sequence[Mapping[str, Any]], labels: Mapping[str, str], heartbeat_seconds: float,
    has_credentials: bool = False, user: int = AGENT_ID,
) -> dict[str, Any]:  # fmt: skip
    """Return the Engine API configuration of a job's container.

    Args:
        image: the image's name.
        limits: those that are used here must be set.
        network: the network mode: `none`, or `container:` and a container's name. The sandbox gets
            that one's /etc/hosts then, and a network of its own; see `networks`.
        runtime: an OCI runtime; None uses the engine's default.
        mounts: the workspace and the code.
        labels: by which the container is found.
        heartbeat_seconds: how long the resident waits for a sign of life.
        has_credentials: programs are to trust the authorities in `CA_BUNDLE`.
        user: the user of its processes, to whom the workspace belongs.
    """
    memory = limits.memory_bytes or 0
    tmp = "/tmp"  # noqa: S108 - it is the mount
    environment = {**_ENVIRONMENT, **(_PROXY_ENVIRONMENT if named_hosts(limits) else {})}
    environment |= _CA_ENVIRONMENT if has_credentials else {}
    host = {
        **_hardening(network),
        **_memory(memory),
        "NanoCpus": int((limits.cpus or 0) * 1e9),
        "PidsLimit": limits.pids,
        "Tmpfs": {
            tmp: _tmpfs(memory // _TMP_SHARE, _TMP_MOST, "mode=1777"),
            HOME: _tmpfs(memory // _HOME_SHARE, _HOME_MOST, f"uid={user},gid={AGENT_ID},mode=0700"),
        },
        "ShmSize": min(memory // _SHM_SHARE, _SHM_MOST),
        "Ulimits": [
            _ulimit("core", 0),
            _ulimit("nofile", _OPEN_FILES),
            _ulimit("fsize", limits.disk_bytes or 0),
        ],
        "Mounts": list(mounts),
        **({"Runtime": runtime} if runtime else {}),
    }
    return {
        **_piped(image, ["python3", "-ISB", CODE_FOLDER], labels),
        **({"NetworkDisabled": True} if network != "none" else {}),
        "User": f"{user}:{AGENT_ID}",
        "WorkingDir": WORKSPACE,
        "Env": [
            *(f"{name}={value}" for name, value in environment.items()),
            f"FANOUT_RESIDENT_TTL={heartbeat_seconds:g}",
        ],
        "HostConfig": host,
    }


def steward_config(
    *, image: str, mount: Mapping[str, Any], command: list[str], labels: Mapping[str, str],
    may_mount: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the Engine API configuration of a steward: root over one volume's files only.

    Args:
        image: the steward's image.
        mount: its volume.
        command: its program.
        labels: by which the container is found.
        may_mount: whether it may mount disks of jobs. It gets the right to mount and the loop
            devices then; what a job wrote is looked at in a jail without either (`inside/jail`).
    """
    hardening = _hardening("none")
    # KILL: else a collection, which is another user's, could not be ended.
    capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETUID", "SETGID"]
    if may_mount:
        capabilities += ["SYS_ADMIN", "MKNOD", "DAC_READ_SEARCH", "SETFCAP"]
        # The common AppArmor profile of containers forbids every mount.
        hardening["SecurityOpt"] = [
            "no-new-privileges", f"seccomp={_stewards_seccomp_profile()}", "apparmor=unconfined",
        ]  # fmt: skip
        hardening["DeviceCgroupRules"] = ["c 10:237 rwm", "b 7:* rwm"]
    host = {
        **hardening,
        **_memory(2048 * _MIB),
        "ReadonlyRootfs": False,  # its code is copied into it before it starts
        "CapAdd": capabilities,
        "PidsLimit": 256,
        "Mounts": [mount],
    }
    environment = [
        "PATH=" + _ENVIRONMENT["PATH"],
        "HOME=/root",
        "LANG=C.UTF-8",
        f"TMPDIR={mount['Target']}/tmp",  # noqa: S108 - on the volume
    ]
    return {**_piped(image, command, labels), "User": "0:0", "Env": environment, "HostConfig": host}


def holder_config(
    *, image: str, labels: Mapping[str, str], mounts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the configuration of a container that holds its /etc/hosts, or mounted volumes.

    It ends with its input.
    """
    host = {
        **_hardening("none"), **_memory(32 * _MIB), "PidsLimit": 8, "Mounts": list(mounts),
    }  # fmt: skip
    return {**_piped(image, ["cat"], labels), "User": f"{AGENT_ID}:{AGENT_ID}", "HostConfig": host}


def probe_config(
    image: str, command: list[str], labels: Mapping[str, str], runtime: str | None = None
) -> dict[str, Any]:
    """Return the configuration of a container that runs one command as a job's would run it."""
    host = {
        **_hardening("none"), **_memory(256 * _MIB), "PidsLimit": 64,
        **({"Runtime": runtime} if runtime else {}),
    }  # fmt: skip
    return {
        **_piped(image, command, labels),
        "User": f"{FIRST_UID}:{AGENT_ID}",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in _ENVIRONMENT.items()],
        "HostConfig": host,
    }


def local_volume(
    name: str,
    target: str,
    *,
    options: Mapping[str, str],
    labels: Mapping[str, str],
    read_only: bool = False,
) -> dict[str, Any]:
    """Return the mount of a volume of the local driver, which the engine creates if needed.

    Its options are those of mount(8), with paths of the engine's host: an overlay or a folder of
    another volume is mounted this way without a bind mount, whose paths some engines translate.
    """
    return {
        "Type": "volume",
        "Source": name,
        "Target": target,
        "ReadOnly": read_only,
        "VolumeOptions": {
            "NoCopy": True,
            "Labels": dict(labels),
            "DriverConfig": {"Name": "local", "Options": dict(options)},
        },
    }


def shared_bind(source: str, target: str) -> dict[str, Any]:
    """Return the mount of a shared folder of the engine's host: mounts below it propagate."""
    options = {"Propagation": "rshared"}
    return {"Type": "bind", "Source": source, "Target": target, "BindOptions": options}


def _piped(image: str, command: list[str], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a container whose main process depends on its attach stream.

    The end of its input ends the container.
    """
    return {
        "Image": image,
        "Entrypoint": command,
        "Cmd": [],
        "Labels": dict(labels),
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Healthcheck": {"Test": ["NONE"]},
    }


def _hardening(network: str) -> dict[str, Any]:
    return {
        "AutoRemove": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
        "ReadonlyRootfs": True,
        "NetworkMode": network,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
    }


def _memory(limit: int) -> dict[str, Any]:
    """Return a memory limit without swap."""
    return {"Memory": limit, "MemorySwap": limit}


def _tmpfs(share: int, most: int, owner: str) -> str:
    size = min(share, most)
    return f"rw,exec,nosuid,nodev,size={size},nr_inodes={size // _BYTES_PER_INODE},{owner}"


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}
