"""Private folders for a short time, which are removed even if their process is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from ...private_files import make_private_folder
from ..rooted import opened


class PrivatePlaces:
    """Folders below a private one; creating one removes those that dead processes left.

    A folder is locked while it is used, and the kernel ends a lock with its process.

    Args:
        root: The folder that they are in; created when it is first needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def new(self) -> Iterator[Path]:
        """Make a folder that exists during a context; blocks.

        Raises:
            OSError: It cannot be created.
        """
        make_private_folder(self._root)
        place = self._root / uuid4().hex
        with self._alone():
            self._remove_abandoned()
            place.mkdir(mode=0o700)
            lock = _open(place)
            fcntl.flock(lock, fcntl.LOCK_EX)
        with opened(lock):
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        for place in self._root.iterdir():
            with suppress(OSError), opened(_open(place)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent others from taking a folder that is not locked yet for an abandoned one."""
        with opened(_open(self._root)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
