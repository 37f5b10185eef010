"""Files and folders that no other user of the machine can read, whatever the umask.

A folder with the set-group-ID bit (`chmod 2770`) is shared with its group by a person's decision:
files in it belong to the group too. Nothing is ever readable for everybody.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

_OWNERS_FOLDER, _GROUPS_FOLDER = 0o700, 0o2770
_OWNERS_FILE, _GROUPS_FILE = 0o600, 0o660


def make_private_folder(path: Path) -> None:
    """Create a folder and missing parents; an existing one of this user is closed to others.

    Raises:
        OSError: It cannot be created, or is not a folder.
    """
    if not path.parent.exists():
        make_private_folder(path.parent)
    try:
        path.mkdir(mode=_OWNERS_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
        close_folder(path)
    else:
        path.chmod(_GROUPS_FOLDER if _is_shared(path) else _OWNERS_FOLDER)


def close_folder(path: Path) -> None:
    """Remove the rights of everybody, and of a group without a share, from a folder."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        return
    mode = stat.S_IMODE(status.st_mode)
    closed = (mode & (_GROUPS_FOLDER if _is_shared(path) else 0)) | _OWNERS_FOLDER
    if mode != closed:
        path.chmod(closed)


def create_private_file(path: Path) -> IO[bytes]:
    """Create a file and open it for writing.

    Raises:
        OSError: It exists, or cannot be created.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNERS_FILE)
    os.fchmod(descriptor, _GROUPS_FILE if _is_shared(path.parent) else _OWNERS_FILE)
    return os.fdopen(descriptor, "wb")


def open_private_file(path: Path) -> IO[bytes]:
    """Open a file to read it and write to its end; it is created if it is missing.

    Raises:
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _OWNERS_FILE)
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, _OWNERS_FILE)
    return os.fdopen(descriptor, "a+b")


def _is_shared(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_ISGID)
