"""How many descriptors this process may have: every connection, file and pipe is one."""

from __future__ import annotations

import contextlib
import resource

MAX_DESCRIPTORS = 1024 * 1024
"""What Linux permits at most unless `fs.nr_open` is raised; macOS refuses `unlimited`."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process to its hard limit, and return the soft one.

    The soft limit is often 1,024, for programs that use `select`; fanout does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # macOS has its own lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft
