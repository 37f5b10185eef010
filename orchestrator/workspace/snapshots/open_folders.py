"""The folders of a tree that is read in order: each is opened from the open ones above it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from fanout.orchestrator.workspace.rooted import step_into

_MAX_OPEN = 64
"""Folders above one another that stay open: real trees are less deep, and a process may have 1,024
files."""


class OpenFolders:
    """The last folder that was opened below a root, and those above it. No symlink is followed.

    Args:
        root: The root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: list[tuple[str, int]] = []
        """Prefix of the paths in it, and descriptor; the deepest last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.pop()[1])

    def opened(self, path: str) -> int:
        """Return the descriptor of a folder, which stays open until the next call.

        Raises:
            PathRefused: The path goes through a symlink.
            OSError: As `os.open` does.
        """
        wanted = f"{path}/" if path else ""
        while self._open and not wanted.startswith(self._open[-1][0]):
            os.close(self._open.pop()[1])
        if not self._open:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._open.append(("", os.open(self._root, flags)))
        prefix, descriptor = self._open[-1]
        for name in wanted[len(prefix) :].split("/")[:-1]:
            below, prefix = step_into(descriptor, name), f"{prefix}{name}/"
            if len(self._open) == _MAX_OPEN:
                os.close(self._open.pop()[1])
            self._open.append((prefix, below))
            descriptor = below
        return descriptor
