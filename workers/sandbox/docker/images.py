"""The images that sandboxes run in: lists and builds them, and checks that an engine has them.

Also a program, for `fanout images` and for commands that are about to start a worker:
`python -P -m fanout.workers.sandbox.docker.images ls [--json] | build [NAME…] | check IMAGE`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fanout.orchestrator.configuration.bundled import bundled
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker import debian_base
from fanout.workers.sandbox.docker.engine import Engine, ImageBuildFailed, OnLine, image_missing
from fanout.workers.sandbox.docker.provider import STEWARD_IMAGE
from fanout.workers.sandbox.errors import EngineForbidden, EngineUnavailable, ImageMissing

FOLDER = bundled("sandbox_images")

BUILT_ON: Mapping[str, str | None] = {"base": None, "python": "base"}
"""Each image and the one of ours that it is built on, in the order of building."""

CONTENT_LABEL = "fanout.content"
"""The label with the hash of the folder from which an image was built."""

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_ALLOWED = 1, 2, 3, 4

ANSWER_SECONDS = 1.5
"""For an engine's answer to a check, so that a command refuses within 3 s; a busy engine takes
tenths of a second. A worker itself is more patient."""

_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """One of our images on an engine."""

    name: str
    image: str
    present: bool
    up_to_date: bool
    """Built from the folder in its present state."""
    size_bytes: int = 0


def tag(name: str) -> str:
    """Return an image's name on the engine."""
    return f"fanout/{name}:latest"


def content_hash(name: str) -> str:
    """Return the hash of an image's folder and of those that it is built on."""
    digest = hashlib.sha256((content_hash(below) if (below := BUILT_ON[name]) else "").encode())
    for path in sorted((FOLDER / name).rglob("*")):
        if path.is_file() and path.name != "README.md":
            digest.update(f"{path.relative_to(FOLDER)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


async def list_images(engine: Engine) -> list[ImageStatus]:
    """Return the status of all our images on an engine.

    Raises:
        SandboxFailure: the engine does not answer.
    """
    return [await _status(engine, name) for name in BUILT_ON]


async def _status(engine: Engine, name: str) -> ImageStatus:
    found = await engine.image(tag(name))
    content = await asyncio.to_thread(content_hash, name)
    labels = (found or {}).get("Config", {}).get("Labels") or {}
    return ImageStatus(
        name=name,
        image=tag(name),
        present=found is not None,
        up_to_date=labels.get(CONTENT_LABEL) == content,
        size_bytes=(found or {}).get("Size", 0),
    )


async def build(
    engine: Engine,
    name: str,
    *,
    base_image: str | None = None,
    bootstrap: bool = False,
    on_line: OnLine,
) -> None:
    """Build an image, after the one that it is built on if that is missing or out of date.

    Args:
        engine: the engine that builds.
        name: a folder of `sandbox_images`.
        base_image: what the lowest image is built on; None uses Debian's from a registry.
        bootstrap: make that from Debian packages instead, unless it exists.
        on_line: receives the progress.

    Raises:
        ImageBuildFailed: quotes the builder.
        SandboxFailure: the engine does not answer.
    """
    below = BUILT_ON[name]
    if below is not None:
        if not (await _status(engine, below)).up_to_date:
            await build(engine, below, base_image=base_image, bootstrap=bootstrap, on_line=on_line)
        base_image = tag(below)
    elif bootstrap and base_image is None:
        base_image = debian_base.IMAGE
        if await engine.image(base_image) is None:
            await debian_base.make_debian_base(engine, on_line)
    on_line(f"Building {tag(name)}")
    arguments = {
        variable: value for variable in _PROXY_VARIABLES if (value := os.environ.get(variable))
    }
    if base_image is not None:
        arguments["BASE_IMAGE"] = base_image
    labels = {CONTENT_LABEL: await asyncio.to_thread(content_hash, name)}
    await engine.build_image(
        FOLDER / name, tag(name), arguments=arguments, labels=labels, on_line=on_line
    )


async def check_engine(image: str) -> None:
    """Return at once if the engine of the environment answers and has the images of a sandbox.

    Raises:
        EngineForbidden: this user may not use it.
        EngineUnavailable: it does not answer.
        ImageMissing: the message names the command that builds the image.
    """
    engine = Engine(call_seconds=ANSWER_SECONDS)
    try:
        for name in (STEWARD_IMAGE, image):
            if await engine.image(name) is None:
                raise image_missing(name)
    finally:
        await engine.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(arguments))
    except EngineForbidden as failure:
        _notice(str(failure))
        return EXIT_NOT_ALLOWED
    except (EngineUnavailable, ImageMissing) as failure:
        _notice(str(failure))
        return EXIT_UNREACHABLE
    except (ImageBuildFailed, SandboxFailure) as failure:
        _notice(str(failure))
        return EXIT_FAILED


async def _run(arguments: argparse.Namespace) -> int:
    if arguments.action == "check":
        await check_engine(arguments.image)
        return 0
    return await (_ls(as_json=arguments.json) if arguments.action == "ls" else _build(arguments))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments that `fanout images` passes on; it explains them."""
    parser = argparse.ArgumentParser(prog="fanout images", description="The images of sandboxes.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("ls").add_argument("--json", action="store_true")
    actions.add_parser("check").add_argument("image", metavar="IMAGE")
    building = actions.add_parser("build")
    building.add_argument("names", nargs="*", metavar="NAME")
    building.add_argument("--base", metavar="IMAGE")
    building.add_argument("--bootstrap", action="store_true")
    return parser


async def _ls(*, as_json: bool) -> int:
    images = await list_images(Engine())
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
    unknown = set(arguments.names) - set(BUILT_ON)
    if unknown:
        _notice(
            f"There is no image {', '.join(sorted(unknown))}: choose from {', '.join(BUILT_ON)}."
        )
        return EXIT_USAGE
    engine = Engine()
    for name in [name for name in BUILT_ON if not arguments.names or name in arguments.names]:
        await build(
            engine, name, base_image=arguments.base, bootstrap=arguments.bootstrap, on_line=_notice
        )
        print(tag(name))  # noqa: T201 - the payload
    return 0


def _notice(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress goes to the error output


if __name__ == "__main__":
    sys.exit(main())
