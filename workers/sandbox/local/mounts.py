"""Mounts that only the programs of one thread see (Linux, root).

A thread may leave its process's mount namespace for one of its own, and what it starts inherits
that: no further programs have to be started to mount anything for a command.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from fanout.workers.sandbox.inside.disks import call

_CLONE_NEWNS = 0x00020000
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18


def enter_own_mounts(binds: Mapping[str, Path]) -> None:
    """Give the calling thread its own mount namespace, for its whole life.

    Args:
        binds: The folders that its programs see, by the existing folders in whose places they see
            them.

    Raises:
        OSError: The kernel refuses, or a folder does not exist.
    """
    call("unshare", _CLONE_NEWNS)
    _mount("none", "/", _REC | _PRIVATE)  # or other namespaces would see the mounts
    for place, folder in binds.items():
        _mount(folder, place, _BIND)


def _mount(source: Path | str, target: str, flags: int) -> None:
    call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None)
