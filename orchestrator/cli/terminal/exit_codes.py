"""The exit codes, and the failures that only the command line knows.

0 done · 1 the work failed · 2 usage · 3 a service is unreachable · 4 not allowed · 5 timed out ·
130 interrupted; jobs on workers continue
"""

from __future__ import annotations

import os
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    WORK_FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


class UsageProblem(Exception):
    """The command line is wrong; the message says what to change."""


class WorkFailed(Exception):
    """The command is valid, but its work failed."""


class ServiceUnreachable(Exception):
    """The service of a URL does not answer, or something else answers there."""


class KeyRefused(Exception):
    """The service does not accept the key, or the key may not do this."""


def debugging() -> bool:
    """Whether to print tracebacks and the libraries' log records.

    Reads the environment itself: errors of the settings are reported too.
    """
    return os.environ.get("FANOUT_LOG_LEVEL", "").lower() == "debug"
