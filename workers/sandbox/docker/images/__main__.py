"""A program, for `fanout images` and for commands that are about to start a worker.

`python -P -m fanout.workers.sandbox.docker.images ls [--json] | build [NAME…] | check IMAGE |
ready IMAGE`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import BUILT_ON, nearest, tag
from fanout.workers.sandbox.docker.images.builder_calls import ImageBuildFailed
from fanout.workers.sandbox.docker.images.building import (
    Wanted,
    build,
    expected_seconds,
    to_build,
)
from fanout.workers.sandbox.docker.images.catalog import list_images, require_images
from fanout.workers.sandbox.docker.images.fitness import examine
from fanout.workers.sandbox.errors import EngineForbidden, EngineUnavailable, ImageMissing

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_ALLOWED = 1, 2, 3, 4
EXIT_NOT_BUILT = 10
"""Of `ready`: the engine answers, and an image of ours is missing that can be built there."""


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
        images = await list_images(engine)
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
    for name in names:
        if name not in BUILT_ON:
            meant = nearest(name, BUILT_ON)
            advice = f"did you mean {meant}?" if meant else f"choose from {', '.join(BUILT_ON)}."
            _notice(f"There is no image {name} of fanout's: {advice}")
            return EXIT_USAGE
    wanted = Wanted(names, arguments.base, arguments.bootstrap, arguments.force)
    engine = Engine()
    try:
        await _build_wanted(engine, wanted)
    finally:
        await engine.close()
    return 0


async def _build_wanted(engine: Engine, wanted: Wanted) -> None:
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


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress goes to the error output


if __name__ == "__main__":
    sys.exit(main())
