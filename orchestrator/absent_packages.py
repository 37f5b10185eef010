"""Imports of libraries without a package that they would only use if it were there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(package: str) -> Iterator[None]:
    """Let libraries find that an optional package is not installed, unless it is in use already.

    Afterwards it can be imported as before; what was imported meanwhile goes on without it.

    Args:
        package: Its name in an import.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # Python's way to forbid an import
    try:
        yield
    finally:
        del sys.modules[package]
