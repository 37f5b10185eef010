"""How the kernel mounts a job's overlay. Standard library only: see `steward`.

With `RENAMING`, a folder of what the job started from can be renamed: the kernel marks the upper
layer's folder with the path that it had (`trusted.overlay.redirect`). Only a process with the right
to mount can set or read such marks. With `PLAIN` the marks are `user.overlay.*`, and the kernel
refuses to rename such a folder: the job, which can set them, could name any path.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import uuid
from pathlib import Path

from fanout.workers.sandbox.inside import disks

PLAIN = "userxattr"
RENAMING = "redirect_dir=on,metacopy=off"
"""Without `metacopy` a file in the upper layer has its content."""
TRUSTED_MARKS, USER_MARKS = "trusted.overlay.", "user.overlay."
"""How the names of the marks begin."""


def why_no_renaming(folder: Path) -> str | None:
    """Mount an overlay in a folder and rename one of its folders.

    Returns:
        Why that does not work; None when it does.
    """
    probe = folder / f"renaming-{uuid.uuid4().hex}"
    lower, upper, work, merged = (probe / name for name in ("lower", "upper", "work", "merged"))
    try:
        for each in (lower / "before", upper, work, merged):
            each.mkdir(parents=True)
        options = f"lowerdir={lower},upperdir={upper},workdir={work},{RENAMING}"
        flags = ctypes.c_ulong(0)
        disks.call("mount", b"overlay", os.fsencode(merged), b"overlay", flags, options.encode())
        try:
            (merged / "before").rename(merged / "after")
        finally:
            disks.detach(merged)
        os.getxattr(upper / "after", f"{TRUSTED_MARKS}redirect")
    except OSError as error:
        return f"the kernel refuses it ({error.strerror})"
    except disks.DiskFailed as error:
        return str(error)
    finally:
        subprocess.run(["rm", "-rf", "--", str(probe)], check=False)  # noqa: S603, S607 - ours
    return None
