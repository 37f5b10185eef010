"""The program of `fanout images`, also for commands that are about to start a worker.

`python -P -m fanout.workers.extras.images ls [--json] | build [NAME…] | check IMAGE |
ready IMAGE`.

`check` finds out what an image lacks of what sandboxes need, in a container of it that is like a
job's: the same user, path and hardening, no network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.configuration.coding_agents import CODING_AGENTS
from fanout.orchestrator.jobs.failures import SandboxFailure

from ..sandbox.docker.container_config import FIRST_UID, probe_config
from ..sandbox.docker.engine import Engine
from ..sandbox.docker.image_failures import (
    BUILT_ON,
    image_missing,
    nearest,
    tag,
    unfit,
)
from ..sandbox.errors import (
    EngineForbidden,
    EngineUnavailable,
    ImageMissing,
    SandboxStartFailed,
)
from .coding_agent_images import SECONDS as AGENT_SECONDS
from .coding_agent_images import (
    build_coding_agent,
    coding_agent_image,
    coding_agent_images,
)
from .image_building import (
    ImageBuildFailed,
    WantedImages,
    build,
    expected_seconds,
    list_images,
    require_images,
    to_build,
)

OLDEST_PYTHON = (3, 8)
"""The resident runs with this Python and newer ones."""

MODULES = (
    "ctypes", "errno", "fcntl", "hashlib", "json", "select", "shutil", "signal", "socket", "struct",
    "subprocess", "threading",
)  # fmt: skip
"""Modules of the standard library, which some images cut down: the resident imports them."""

MOST_USERS = 256
"""Whose names our images have; see `sandbox_images/base/Dockerfile`."""

PROBE_LABEL = "fanout.image-check"
PROBE_SECONDS = 60.0
"""The time for a container that starts, is inspected and ends; on a busy engine it takes seconds.
"""

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
EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_ALLOWED = 1, 2, 3, 4
EXIT_NOT_BUILT = 10
"""The exit code of `ready`: the engine answers, but lacks an image of fanout that can be built
there."""


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(arguments))
    except EngineForbidden as failure:
        _notice(str(failure))
        return EXIT_NOT_ALLOWED
    except EngineUnavailable as failure:
        _notice(str(failure))
        return EXIT_UNREACHABLE
    except (ImageBuildFailed, SandboxFailure) as failure:
        _notice(str(failure))
        return EXIT_FAILED


async def _run(arguments: argparse.Namespace) -> int:
    match arguments.action:
        case "ready":
            return await _ready(arguments.image)
        case "check":
            return await _check(arguments.image, as_json=arguments.json)
        case "ls":
            return await _ls(as_json=arguments.json)
        case _:
            return await _build(arguments)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments that `fanout images` passes on; it explains them."""
    parser = argparse.ArgumentParser(prog="fanout images", description="The images of sandboxes.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("ls").add_argument("--json", action="store_true")
    actions.add_parser("ready").add_argument("image", metavar="IMAGE")
    checking = actions.add_parser("check")
    checking.add_argument("image", metavar="IMAGE")
    checking.add_argument("--json", action="store_true")
    building = actions.add_parser("build")
    building.add_argument("names", nargs="*", metavar="NAME")
    building.add_argument("--base", metavar="IMAGE")
    building.add_argument("--bootstrap", action="store_true")
    building.add_argument("--force", action="store_true")
    return parser


async def _ready(image: str) -> int:
    try:
        await require_images(image)
    except ImageMissing as failure:
        _notice(str(failure))
        return EXIT_NOT_BUILT if failure.is_buildable else EXIT_UNREACHABLE
    return 0


async def _check(image: str, *, as_json: bool) -> int:
    engine = Engine()
    try:
        findings = await examine(engine, image)
    finally:
        await engine.close()
    fits = all(finding.status != "fail" for finding in findings)
    if as_json:
        document = {"image": image, "fits": fits, "checks": [one._asdict() for one in findings]}
        print(json.dumps(document, indent=2))  # noqa: T201 - the payload
    else:
        for finding in findings:
            print(f"{finding.status:<6}{finding.name:<10}{finding.found}")  # noqa: T201 - the payload
        _notice(f"Jobs {'can' if fits else 'cannot'} run in {image}.")
    return 0 if fits else EXIT_FAILED


async def _ls(*, as_json: bool) -> int:
    engine = Engine()
    try:
        images = [*await list_images(engine), *await coding_agent_images(engine)]
    finally:
        await engine.close()
    if as_json:
        document = {"images": [asdict(image) for image in images]}
        print(json.dumps(document))  # noqa: T201 - the payload
        return 0
    for image in images:
        state = "missing" if not image.present else "ready" if image.up_to_date else "out of date"
        line = f"{image.image:<24} {state:<12} {image.size_bytes / 1e6:>6.0f} MB"
        print(line)  # noqa: T201 - the payload
    return 0


async def _build(arguments: argparse.Namespace) -> int:
    names = [name.removeprefix("fanout/").removesuffix(":latest") for name in arguments.names]
    known = [*BUILT_ON, *CODING_AGENTS]
    for name in names:
        if name not in known:
            meant = nearest(name, known)
            advice = f"did you mean {meant}?" if meant else f"choose from {', '.join(known)}."
            _notice(f"There is no image {name} of fanout's: {advice}")
            return EXIT_USAGE
    agents = [name for name in names if name in CODING_AGENTS]
    below = [name for name in names if name in BUILT_ON]
    wanted = WantedImages(below, arguments.base, arguments.bootstrap, arguments.force)
    engine = Engine()
    try:
        if agents:
            await _build_wanted(engine, WantedImages(["base"], arguments.base, arguments.bootstrap))
        if below or not agents:
            await _build_wanted(engine, wanted)
        for name in agents:
            await _build_agent(engine, name, force=arguments.force)
    finally:
        await engine.close()
    return 0


async def _build_wanted(engine: Engine, wanted: WantedImages) -> None:
    chosen = to_build(await list_images(engine), wanted)
    for name in BUILT_ON:
        if name not in chosen and name in (wanted.names or BUILT_ON):
            _notice(f"{tag(name)} is up to date.")
            print(tag(name), flush=True)  # noqa: T201 - the payload
    if chosen:
        minutes = max(1, round(expected_seconds(chosen) / 60))
        built = " and ".join(tag(name) for name in chosen)
        about = "about a minute" if minutes == 1 else f"about {minutes} minutes"
        _notice(f"Building {built}: {about}, longer where downloads are slow.")
    for name in chosen:
        await build(engine, name, wanted)
        print(tag(name), flush=True)  # noqa: T201 - the payload


async def _build_agent(engine: Engine, name: str, *, force: bool) -> None:
    agent = CODING_AGENTS[name]
    if (await coding_agent_image(engine, agent)).up_to_date and not force:
        _notice(f"{tag(name)} is up to date.")
    else:
        _notice(
            f"Building {tag(name)} with {agent.pinned}: about {AGENT_SECONDS // 60} minutes, longer "
            "where downloads are slow."
        )
        await build_coding_agent(engine, agent)
    print(tag(name), flush=True)  # noqa: T201 - the payload


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress goes to the error output


if __name__ == "__main__":
    sys.exit(main())
