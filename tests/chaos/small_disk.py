"""A disk small enough to be filled: a tmpfs of the run's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_FILLER = ".filler"
_PAGE_BYTES = 4096


class SmallDisk:
    """A mounted folder of a set size; mounting needs root."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._folder = folder
        self._size_bytes = size_bytes

    def mount(self) -> None:
        self._folder.mkdir(parents=True)
        options = f"size={self._size_bytes},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self._folder], check=True)

    def fill(self) -> None:
        """Leave no page free, whatever else is written meanwhile."""
        with (self._folder / _FILLER).open("ab") as filler:
            piece = self._size_bytes
            while piece >= _PAGE_BYTES:
                try:
                    os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, piece)
                except OSError:
                    piece //= 2

    def free(self) -> None:
        (self._folder / _FILLER).unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self._folder], check=False)
