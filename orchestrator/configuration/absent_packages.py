"""Imports of libraries as if an optional package were not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Let libraries find that optional packages are not installed, except those in use already.

    Afterwards they can be imported as before; libraries that were imported meanwhile work without
    them.

    Args:
        packages: Their names in an import.
    """
    hidden = [package for package in packages if package not in sys.modules]
    for package in hidden:
        sys.modules[package] = None  # type: ignore[assignment] # Python's way to forbid an import
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]
