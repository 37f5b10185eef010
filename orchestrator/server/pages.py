"""Cursors: the position in a list, as an opaque text."""

from __future__ import annotations

import base64
import binascii

from .problems import Problem

MAX_LIMIT = 500
"""The most jobs of one page: about a megabyte."""
DEFAULT_LIMIT = 50
MAX_DIGITS = 18
"""The most digits of a position: the positions of Redis are exact up to 2^53."""


def make_cursor(position: int | str | None) -> str | None:
    """Return the cursor of a position; None at the end of the list."""
    return None if position is None else base64.urlsafe_b64encode(str(position).encode()).decode()


def read_cursor(cursor: str | None) -> int | None:
    """Return the position of a cursor; None without one.

    Raises:
        Problem: It is not a cursor of this service.
    """
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise Problem(400, "The cursor is invalid: use next_cursor of the previous page.")
    return int(text)
