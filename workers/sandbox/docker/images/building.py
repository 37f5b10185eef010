"""Builds our images: those that are missing, each after the one that it is built on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from typing import NamedTuple

from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import BUILT_ON, tag
from fanout.workers.sandbox.docker.images import debian_base
from fanout.workers.sandbox.docker.images.builder_calls import (
    ImageBuildFailed,
    RegistryFailed,
    build_image,
    pull_image,
)
from fanout.workers.sandbox.docker.images.catalog import (
    BASE_LABEL,
    CONTENT_LABEL,
    FOLDER,
    ImageStatus,
    content_hash,
)
from fanout.workers.sandbox.docker.images.progress import Progress

DEBIAN = "debian:bookworm-slim"
"""What the lowest image is built on, from a registry; the Dockerfile's own default."""

SECONDS = {"base": 110, "python": 30}
"""How long a build takes about, measured on two busy cores with a near mirror: for the notice."""
BASE_SECONDS = 30
"""The same for the image that the lowest one is built on."""

_NO_APT = 127
"""The exit code of a shell that does not find a program: the Dockerfiles' first is apt-get."""
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


class Wanted(NamedTuple):
    """What a person asked for."""

    names: Collection[str] = ()
    """The images; empty: all."""
    base: str | None = None
    """What the lowest image is built on; None: an image of Debian that can be had."""
    bootstrap: bool = False
    """Make that from Debian packages, whether or not a registry is reachable."""
    force: bool = False
    """Build also what is up to date."""


def to_build(statuses: Collection[ImageStatus], wanted: Wanted) -> list[str]:
    """Return the images that have to be built, in this order.

    An image is built if it is missing or out of date, if it was built on another base than the
    wanted one, or if the one below it is built.

    Args:
        statuses: all our images on the engine.
        wanted: what a person asked for.
    """
    found = {status.name: status for status in statuses}
    needed = set(wanted.names or BUILT_ON)
    for name, below in reversed([*BUILT_ON.items()]):
        if name in needed and below is not None and not found[below].up_to_date:
            needed.add(below)
    chosen: list[str] = []
    for name, below in BUILT_ON.items():
        forced = wanted.force and name in (wanted.names or BUILT_ON)
        other_base = below is None and wanted.base not in {None, found[name].base}
        stale = not found[name].up_to_date or other_base or forced
        if name in needed and (stale or below in chosen):
            chosen.append(name)
    return chosen


def expected_seconds(names: Collection[str]) -> int:
    """Return how long it takes about to build these images, in seconds."""
    lowest = BASE_SECONDS if any(BUILT_ON[name] is None for name in names) else 0
    return sum(SECONDS[name] for name in names) + lowest


async def build(engine: Engine, name: str, wanted: Wanted) -> None:
    """Build an image and print the progress; the one below it must exist.

    Raises:
        ImageBuildFailed: quotes the builder.
        SandboxFailure: the engine does not answer.
    """
    below = BUILT_ON[name]
    base = await _lowest(engine, wanted) if below is None else tag(below)
    arguments = {
        variable: value for variable in _PROXY_VARIABLES if (value := os.environ.get(variable))
    }
    labels = {CONTENT_LABEL: await asyncio.to_thread(content_hash, name)}
    if below is None and wanted.base is not None:
        labels[BASE_LABEL] = wanted.base
    progress = Progress(tag(name))
    progress.begin()
    try:
        await build_image(
            engine, FOLDER / name, tag(name), arguments=arguments | {"BASE_IMAGE": base},
            labels=labels, on_line=progress.line,
        )  # fmt: skip
    except ImageBuildFailed as failure:
        progress.fail()
        if f"non-zero code: {_NO_APT}" in str(failure):
            raise ImageBuildFailed(
                f"{tag(name)} cannot be built on {base}, which has no apt-get: name an image of "
                "Debian or Ubuntu with --base."
            ) from None
        raise
    progress.end()


async def _lowest(engine: Engine, wanted: Wanted) -> str:
    """Return the image to build the lowest of ours on, which the engine has.

    Raises:
        ImageBuildFailed: it cannot be had; the message says what to do.
    """
    if wanted.base is not None:
        if await engine.image(wanted.base) is None:
            await _pull(engine, wanted.base)
        return wanted.base
    for image in () if wanted.bootstrap else (DEBIAN, debian_base.IMAGE):
        if await engine.image(image) is not None:
            return image
    if not wanted.bootstrap:
        try:
            await _pull(engine, DEBIAN)
        except RegistryFailed as failure:
            if not debian_base.can_make():
                raise ImageBuildFailed(
                    f"{failure} Install the Debian package {debian_base.PROGRAM}, with which the "
                    "base is made without a registry, and build again; or name an image of Debian "
                    "that the engine has with --base."
                ) from None
        else:
            return DEBIAN
    await _bootstrap(engine)
    return debian_base.IMAGE


async def _pull(engine: Engine, image: str) -> None:
    progress = Progress(f"pulling {image}")
    progress.begin()
    try:
        await pull_image(engine, image, progress.line)
    except ImageBuildFailed:
        progress.fail()
        raise
    progress.end()


async def _bootstrap(engine: Engine) -> None:
    if await engine.image(debian_base.IMAGE) is not None:
        return
    progress = Progress(f"{debian_base.IMAGE} from Debian's packages")
    progress.begin()
    try:
        await debian_base.make_debian_base(engine, progress.line)
    except ImageBuildFailed:
        progress.fail()
        raise
    progress.end()
