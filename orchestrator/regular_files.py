"""Reading a whole file whose name others may have chosen: a regular file of bounded size.

A name may lead to a pipe, whose reader waits for ever, to a device, which has no end or does
something when it is opened, or to what the kernel shows below `/proc`.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import cache
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""The flags with which a pipe in the file's place is opened without a wait, and no terminal becomes
the controlling one."""
_KERNEL_FOLDERS = ("/proc", "/sys")


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file; a link leads to the file that it names.

    Args:
        path: The file.
        max_bytes: The largest size.

    Raises:
        OSError: It is not a regular file of at most that size, or cannot be read; `strerror` says
            why, without its content.
    """
    check_regular_file(os.stat(path), max_bytes)  # noqa: PTH116 - a device is not even opened
    descriptor = os.open(path, _FLAGS)
    with os.fdopen(descriptor, "rb") as file:
        check_regular_file(os.fstat(descriptor), max_bytes)  # the opened file may be another one
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def check_regular_file(status: os.stat_result, max_bytes: int) -> None:
    """Refuse everything but a regular file with at most that many bytes.

    Raises:
        OSError: As `read_regular_file`.
    """
    if not stat.S_ISREG(status.st_mode) or status.st_dev in _kernel_devices():
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_size > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes")


@cache
def _kernel_devices() -> frozenset[int]:
    """Return the devices of the file systems whose files are the kernel's."""
    root = os.stat("/").st_dev  # noqa: PTH116 - for the sake of its number
    found = {os.stat(folder).st_dev for folder in _KERNEL_FOLDERS if Path(folder).is_dir()}  # noqa: PTH116
    return frozenset(found - {root})
