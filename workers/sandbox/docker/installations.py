"""What all installations have on an engine, and the removal of what a gone one left there.

A reaper removes only what its own installation made. When the Redis of an installation is gone for
good, nobody reaps for it any more: a person removes the rest.

Also a program, for `fanout clean`:
`python -m fanout.workers.sandbox.docker.installations ls [--json] | rm ID [--force]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.shortening import count

from ..errors import EngineUnavailable
from .engine import Engine
from .naming import INSTALLATION, WORKER

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class InstallationOnEngine:
    """What one installation has on an engine."""

    id: str
    """Empty for what releases made that knew no installations."""
    running: tuple[str, ...]
    """Ids of its running containers: one of its workers lives, or a container hangs."""
    containers: tuple[str, ...]
    """Ids of its other containers."""
    volumes: tuple[str, ...]


async def list_installations(engine: Engine) -> list[InstallationOnEngine]:
    """Return what each installation has on the engine, sorted by id.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    containers = await engine.containers([WORKER])
    volumes = await engine.volumes(WORKER)
    ids = {each["Labels"].get(INSTALLATION, "") for each in (*containers, *volumes)}
    return [
        InstallationOnEngine(
            id=one,
            running=tuple(
                each["Id"]
                for each in containers
                if each["State"] == "running" and each["Labels"].get(INSTALLATION, "") == one
            ),
            containers=tuple(
                each["Id"]
                for each in containers
                if each["State"] != "running" and each["Labels"].get(INSTALLATION, "") == one
            ),
            volumes=tuple(
                each["Name"] for each in volumes if each["Labels"].get(INSTALLATION, "") == one
            ),
        )
        for one in sorted(ids)
    ]


async def remove(engine: Engine, found: InstallationOnEngine) -> list[str]:
    """Remove all that an installation has on the engine; return the volumes that are in use.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    for container in (*found.running, *found.containers):
        await engine.remove_container(container)
    return [name for name in found.volumes if not await engine.remove_volume(name)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return asyncio.run(
            _ls(as_json=arguments.json) if arguments.action == "ls" else _rm(arguments)
        )
    except EngineUnavailable as failure:
        _notice(str(failure))
        return EXIT_UNREACHABLE
    except SandboxFailure as failure:
        _notice(str(failure))
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments that `fanout clean` passes on; it explains them."""
    parser = argparse.ArgumentParser(prog="fanout clean", description="What is left on an engine.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("ls").add_argument("--json", action="store_true")
    removal = actions.add_parser("rm")
    removal.add_argument("id", metavar="ID")
    removal.add_argument("--force", action="store_true")
    return parser


async def _ls(*, as_json: bool) -> int:
    found = await list_installations(Engine())
    if as_json:
        print(json.dumps({"installations": [asdict(one) for one in found]}))  # noqa: T201 - the payload
        return 0
    for one in found:
        print(f"{one.id or 'none':<18} {described(one)}")  # noqa: T201 - the payload
    return 0


async def _rm(arguments: argparse.Namespace) -> int:
    engine = Engine()
    wanted = "" if arguments.id == "none" else arguments.id
    found = [one for one in await list_installations(engine) if one.id == wanted]
    if not found:
        _notice(f"The engine has nothing of an installation {arguments.id}.")
        return 0
    if found[0].running and not arguments.force:
        _notice(
            f"Installation {arguments.id} has {count(len(found[0].running), 'running container')}: "
            "stop its workers first, or give --force if they no longer exist."
        )
        return EXIT_USAGE
    left = await remove(engine, found[0])
    _notice(f"Removed of installation {arguments.id}: {described(found[0])}.")
    if left:
        _notice(f"In use and not removed: {', '.join(left)}")
    return EXIT_FAILED if left else 0


def described(found: InstallationOnEngine) -> str:
    """Return what an installation has, in words."""
    return (
        f"{count(len(found.running), 'running container')}, "
        f"{count(len(found.containers), 'other')}, {count(len(found.volumes), 'volume')}"
    )


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress goes to the error output


if __name__ == "__main__":
    sys.exit(main())
