"""The engine's calls for building images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import nearest
from fanout.workers.sandbox.errors import EngineUnavailable

OnLine = Callable[[str], None]
"""Receives a line of progress; called in a thread."""

_SILENCE_SECONDS = 900
"""How long a build may be silent: installing packages prints nothing."""
_PIECE_BYTES = 1 << 20
"""Read at once of an archive: a chunk of the request, small beside the archive."""

_UNREACHABLE = re.compile(r"dial tcp|lookup |no such host|[Tt]imeout|deadline exceeded|refused|EOF")
_UNKNOWN = re.compile(r"not found|manifest unknown|denied|unauthorized|does not exist")
"""What engines say about pulls; a public registry denies what does not exist."""


class ImageBuildFailed(Exception):
    """An image could not be built; the message quotes the builder."""


class RegistryFailed(ImageBuildFailed):
    """An image could not be pulled: its registry is not reachable, or does not have it."""


async def build_image(
    engine: Engine,
    folder: Path,
    tag: str,
    *,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    on_line: OnLine,
) -> None:
    """Build a folder with a Dockerfile, on the host's network.

    The host's resolver may listen on loopback only, hence its network.

    Args:
        engine: the engine that builds.
        folder: the build context.
        tag: the image's name.
        arguments: the build arguments.
        labels: the image's labels.
        on_line: receives the progress.

    Raises:
        ImageBuildFailed: quotes the builder.
        SandboxFailure: see `Engine.call`.
    """

    def build(api: Any) -> None:
        answers = api.build(
            path=str(folder), tag=tag, buildargs=dict(arguments), labels=dict(labels),
            network_mode="host", rm=True, forcerm=True, decode=True, timeout=_SILENCE_SECONDS,
        )  # fmt: skip
        for answer in answers:
            if "error" in answer:
                raise ImageBuildFailed(
                    f"The image {tag} could not be built: {answer['error'].strip()}"
                )
            for line in str(answer.get("stream", "")).splitlines():
                on_line(line)

    await engine.call(f"build {tag}", build)


async def pull_image(engine: Engine, image: str, on_line: OnLine) -> None:
    """Pull an image from its registry.

    Args:
        engine: the engine that pulls.
        image: its name, with a tag.
        on_line: receives the progress.

    Raises:
        RegistryFailed: quotes the engine.
        EngineUnavailable: the engine does not answer.
    """

    def pull(api: Any) -> str | None:
        for answer in api.pull(image, stream=True, decode=True):
            if "error" in answer:
                return str(answer["error"])
            on_line(" ".join(str(answer[key]) for key in ("id", "status") if key in answer))
        return None

    try:
        reason = await engine.call(f"pull {image}", pull)
    except EngineUnavailable:
        raise
    except SandboxFailure as failure:
        reason = str(failure)
    if reason is not None:
        raise RegistryFailed(_why_not_pulled(image, reason, await engine.image_names()))


def _why_not_pulled(image: str, reason: str, others: Iterable[str]) -> str:
    """Return one sentence about a pull that failed.

    Args:
        image: the name that was to be pulled.
        reason: what the engine said, which quotes Go's network library.
        others: the names that the engine has.
    """
    meant = nearest(image, others)
    advice = f"; the nearest name on the engine is {meant}." if meant else "."
    if _UNREACHABLE.search(reason):
        return f"The image {image} is not on this engine, and its registry does not answer{advice}"
    if _UNKNOWN.search(reason):
        return f"There is no image {image}, neither on this engine nor in its registry{advice}"
    return f"The image {image} could not be pulled: {reason.strip()}"


async def import_image(engine: Engine, archive: IO[bytes], repository: str, tag: str) -> None:
    """Create an image from the tar of a root file system.

    Raises:
        SandboxFailure: see `Engine.call`.
    """

    def take(api: Any) -> None:
        pieces = iter(partial(archive.read, _PIECE_BYTES), b"")  # of a file it would send the size
        api.import_image_from_stream(pieces, repository=repository, tag=tag)

    await engine.call(f"import {repository}", take)
