"""What an image lacks of what sandboxes need, found out in a container of it.

The container is like a job's: the same user, path and hardening, no network.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any, Literal, NamedTuple

from fanout.orchestrator.cancellation import uninterrupted
from fanout.workers.sandbox.docker.container_config import FIRST_UID, probe_config
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import image_missing, unfit
from fanout.workers.sandbox.errors import SandboxStartFailed

OLDEST_PYTHON = (3, 8)
"""Of the resident; see `inside/README.md`."""

MODULES = (
    "ctypes", "errno", "fcntl", "hashlib", "json", "select", "shutil", "signal", "socket", "struct",
    "subprocess", "threading",
)  # fmt: skip
"""Of the standard library, which some images cut down: the resident imports them."""

MOST_USERS = 256
"""Whose names our images have; see `sandbox_images/base/Dockerfile`."""

PROBE_LABEL = "fanout.image-check"
PROBE_SECONDS = 60.0
"""For a container that starts, looks around and ends; on a busy engine it takes seconds."""

_PROBE = """
import os, shutil, sys
def lacks(name):
    try:
        __import__(name)
    except ImportError:
        return True
import json
try:
    import pwd
    user = pwd.getpwuid(os.getuid()).pw_name
except (ImportError, KeyError):
    user = None
print(json.dumps({
    "version": sys.version_info[:3], "path": sys.executable,
    "modules": [name for name in sys.argv[1:] if lacks(name)],
    "sh": os.access("/bin/sh", os.X_OK), "bash": shutil.which("bash"),
    "git": shutil.which("git"), "user": user,
}))
"""
"""Runs on any Python 3."""


class Finding(NamedTuple):
    """One line of the report."""

    status: Literal["ok", "warn", "fail"]
    """`fail` is something without which no sandbox can be started."""
    name: str
    found: str


async def examine(engine: Engine, image: str) -> list[Finding]:
    """Start a container of an image and return what it has and lacks.

    Args:
        engine: the engine that has the image.
        image: its name.

    Raises:
        ImageMissing: the engine does not have it.
        SandboxFailure: the engine does not answer, or the container does not end.
    """
    if await engine.image(image) is None:
        raise image_missing(image, await engine.image_names())
    try:
        output = await _output(engine, image, ["python3", "-ISB", "-c", _PROBE, *MODULES])
    except SandboxStartFailed as failure:
        if unfit(image, str(failure)) is None:
            return [Finding("fail", "start", str(failure))]
        return [
            Finding("fail", "python3", "is not on the PATH: add Python 3.8 or newer"),
            *await _without_python(engine, image),
        ]
    try:
        seen: dict[str, Any] = json.loads(output)
    except (ValueError, RecursionError):
        return [Finding("fail", "python3", "does not run: it is not Python 3, or lacks modules")]
    return [
        _python(seen),
        _shell(has=seen["sh"]),
        _bash(seen["bash"]),
        _git(seen["git"]),
        _user(seen["user"]),
    ]


async def _without_python(engine: Engine, image: str) -> list[Finding]:
    try:
        git = await _output(engine, image, ["/bin/sh", "-c", "command -v git; echo"])
    except SandboxStartFailed:
        return [_shell(has=False)]
    return [_shell(has=True), _git(git.decode(errors="replace").strip())]


def _python(seen: dict[str, Any]) -> Finding:
    version = ".".join(map(str, seen["version"]))
    if tuple(seen["version"][:2]) < OLDEST_PYTHON:
        return Finding("fail", "python3", f"is {version}: sandboxes need 3.8 or newer")
    if seen["modules"]:
        lacking = ", ".join(seen["modules"])
        return Finding("fail", "python3", f"{version} lacks the modules {lacking}")
    return Finding("ok", "python3", f"{version} at {seen['path']}")


def _shell(*, has: bool) -> Finding:
    if has:
        return Finding("ok", "/bin/sh", "is there")
    return Finding("fail", "/bin/sh", "is not there: commands of agents need it")


def _bash(path: str | None) -> Finding:
    if path:
        return Finding("ok", "bash", path)
    return Finding("warn", "bash", "is not there: agents, which expect it, get sh")


def _git(path: str | None) -> Finding:
    if path:
        return Finding("ok", "git", path)
    return Finding("warn", "git", "is not there: agents cannot look at a repository's history")


def _user(name: str | None) -> Finding:
    if name:
        return Finding("ok", "user", f"{FIRST_UID} is {name}")
    lines = f"{FIRST_UID} to {FIRST_UID + MOST_USERS - 1} have no names in /etc/passwd"
    return Finding("warn", "user", f"{lines}: programs that look their user up, as ssh does, fail")


async def _output(engine: Engine, image: str, command: list[str]) -> bytes:
    name = f"fanout-image-check.{secrets.token_hex(4)}"
    try:
        config = await asyncio.to_thread(probe_config, image, command, {PROBE_LABEL: image})
        await engine.create_container(name, config)
        stream = await engine.attach(name)
        try:
            await engine.start(name)
            pieces = []
            async with asyncio.timeout(PROBE_SECONDS):
                while piece := await stream.read():
                    pieces.append(piece)
        finally:
            await stream.close()
    except TimeoutError:
        raise SandboxStartFailed(
            f"A container of {image} did not end within {PROBE_SECONDS:g} seconds."
        ) from None
    finally:
        await uninterrupted(engine.remove_container(name))
    return b"".join(pieces)
