"""Our images, and what an engine has of them."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from fanout.orchestrator.configuration.bundled import bundled
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.image_failures import BUILT_ON, image_missing, tag
from fanout.workers.sandbox.docker.provider import STEWARD_IMAGE

FOLDER = bundled("sandbox_images")

CONTENT_LABEL = "fanout.content"
"""The label with the hash of the folder from which an image was built."""
BASE_LABEL = "fanout.base"
"""The label with the name of the image that it was built on."""

ANSWER_SECONDS = 1.5
"""For an engine's answer to a check, so that a command refuses within 3 s; a busy engine takes
tenths of a second. A worker itself is more patient."""


@dataclass(frozen=True, kw_only=True)
class ImageStatus:
    """One of our images on an engine."""

    name: str
    image: str
    present: bool
    up_to_date: bool
    """Built from the folder in its present state."""
    size_bytes: int = 0
    base: str = ""
    """What it was built on; empty when it is not known."""


def content_hash(name: str) -> str:
    """Return the hash of an image's folder and of those that it is built on."""
    digest = hashlib.sha256((content_hash(below) if (below := BUILT_ON[name]) else "").encode())
    for path in sorted((FOLDER / name).rglob("*")):
        if path.is_file() and path.name != "README.md":
            digest.update(f"{path.relative_to(FOLDER)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


async def list_images(engine: Engine) -> list[ImageStatus]:
    """Return the status of all our images on an engine, in the order of building.

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
        base=labels.get(BASE_LABEL, ""),
    )


async def require_images(image: str) -> None:
    """Return at once if the engine of the environment answers and has the images of a sandbox.

    Raises:
        EngineForbidden: this user may not use it.
        EngineUnavailable: it does not answer.
        ImageMissing: the message says what to do about it.
    """
    engine = Engine(call_seconds=ANSWER_SECONDS)
    try:
        for name in (STEWARD_IMAGE, image):
            if await engine.image(name) is None:
                raise image_missing(name, await engine.image_names())
    finally:
        await engine.close()
