"""The lines of a command's stderr that say what it waits for, of which a busy machine has more."""

from __future__ import annotations

import re

WAIT = re.compile(r"Still \S.*\n?")
"""A whole line, as `waiting` and the live view print it in a pipe."""


def without_waits(stderr: str) -> str:
    """Return a command's stderr without these lines."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not WAIT.fullmatch(line))
