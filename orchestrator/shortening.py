"""Text made to fit on one line, and ids made short enough to read and type."""

from __future__ import annotations

import re
from itertools import takewhile

SHORT_ID_CHARACTERS = 8
"""The characters of an id's end that people read. Ids begin with the time, which the jobs of one
call share; eight of their last characters are at least 32 random bits, which no two of a tree's
jobs share."""

_MADE_ID = re.compile(r"[0-9a-z]{26}")
"""The form of an id that fanout made: a ULID, or the digest of a child. A person's own id is not
shortened."""


def one_line(text: str, max_characters: int | None = None) -> str:
    """Return the text with every run of white space as one space, cut to a length.

    Args:
        text: Any text.
        max_characters: The length of the result at most, an ellipsis included; no limit when None.
    """
    line = " ".join(text.split())
    if max_characters is None or len(line) <= max_characters:
        return line
    return line[: max(0, max_characters - 1)] + "…"


def error_text(said: object, max_characters: int) -> str:
    """Return what an exception says, cut to a length; empty if it cannot say it.

    A class of a program's own may fail at that, and a message may be as long as a document.

    Args:
        said: The exception, or its message.
        max_characters: The length of the result at most.
    """
    try:
        return str(said)[:max_characters]
    except Exception:  # noqa: BLE001 - whatever a program's class raises
        return ""


def common_prefix(left: str, right: str) -> int:
    """Return how many characters at their beginnings two texts share."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 file` or `1,204 files`.

    Args:
        number: How many there are.
        noun: What one is called.
        plural: What several are called, unless it is the noun with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def short_id(job_id: str) -> str:
    """Return the form of a job's id for people; every command accepts it."""
    return job_id[-SHORT_ID_CHARACTERS:] if _MADE_ID.fullmatch(job_id) else job_id
