"""The names of our images, and the failures that tell what is wrong with an image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fanout.orchestrator import spelling
from fanout.orchestrator.configuration.coding_agents import CODING_AGENTS

from ..errors import ImageMissing, ImageUnfit

BUILT_ON: Mapping[str, str | None] = {"base": None, "python": "base"}
"""Each image of ours and the one that it is built on, in the order of building."""

REPOSITORY = "fanout/"

LEAST_SIMILARITY = 0.75
"""The least similarity of an image's name to another: names of images are alike by their
repositories already."""

_NO_PYTHON = re.compile(r"python3[\"`']*:? .*(not found|no such file)", re.IGNORECASE)
"""What engines say when an image has no python3 on the PATH: runc, crun, runsc."""


def tag(name: str) -> str:
    """Return the name that an image of ours has on an engine."""
    return f"{REPOSITORY}{name}:latest"


def nearest(image: str, known: Iterable[str]) -> str | None:
    """Return the name that a person may have meant; None when none is like it.

    Args:
        image: what they wrote.
        known: the names that there are.
    """
    spellings = {spelled: name for name in reversed([*known]) for spelled in _spellings(name)}
    close = spelling.nearest(image, spellings, LEAST_SIMILARITY)
    return spellings[close] if close else None


def _spellings(name: str) -> tuple[str, str, str]:
    """Return a name, without its tag, and without the repository's owner."""
    bare = name.rpartition(":")[0] or name
    return name, bare, bare.rpartition("/")[2]


def image_missing(image: str, others: Iterable[str] = ()) -> ImageMissing:
    """Return the failure for a missing image, with what to do about it.

    Args:
        image: its name.
        others: the names of images that the engine has.
    """
    missing = f"The image {image} is not on this engine"
    if image.removesuffix(":latest") in {REPOSITORY + name for name in BUILT_ON}:
        failure = ImageMissing(f"{missing}: run `fanout images build`.")
        failure.is_buildable = True
        return failure
    name = image.removeprefix(REPOSITORY).removesuffix(":latest")
    if image.startswith(REPOSITORY) and name in CODING_AGENTS:
        return ImageMissing(f"{missing}: run `fanout images build {name}`.")
    if image.startswith(REPOSITORY):  # whoever owns that name in a public registry is a stranger
        meant = nearest(image.removeprefix(REPOSITORY), BUILT_ON)
        ours = ", ".join(REPOSITORY + name for name in BUILT_ON)
        if meant is None:
            return ImageMissing(f"{missing}, and not one of fanout's: {ours}.")
        return ImageMissing(f"{missing}; the nearest name is {REPOSITORY}{meant}.")
    meant = nearest(image, [*map(tag, BUILT_ON), *others])
    if meant is not None:
        return ImageMissing(f"{missing}; the nearest name is {meant.removesuffix(':latest')}.")
    return ImageMissing(f"{missing}: build or pull it there (docker pull {image}).")


def unfit(image: str, refusal: str) -> ImageUnfit | None:
    """Return the failure for an image that no sandbox can be started from.

    Args:
        image: its name.
        refusal: what the engine said when it was to start the container.

    Returns:
        None when the refusal is not about the image.
    """
    if not _NO_PYTHON.search(refusal):
        return None
    return ImageUnfit(
        f"The image {image} has no python3 on its PATH, which sandboxes need: take another image, "
        f"or add Python 3.8 or newer; `fanout images check {image}` says what else it lacks."
    )
