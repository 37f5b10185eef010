"""What runs commands, how they are ended, and how their processes are known."""

# ruff: noqa: PTH113 - importing pathlib would cost every start 5 ms

from __future__ import annotations

import os

GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL: a program may remove its lock and temporary files."""

ABANDONED_GRACE_SECONDS = 0.3
"""The same when nobody waits for the command any more: its job was cancelled or exceeded its
deadline, and must end within two seconds."""

DRAIN_SECONDS = 0.075
"""How long to wait for an ended command's processes: for the rest of the output that they hold
open, and for those that are about to end or to become another program."""

GIVE_UP_SECONDS = 5.0
"""How long after SIGKILL a command is reported although the kernel has not removed it."""

MAX_NAMED_PROCESSES = 8
"""The most processes in the background that a result names; the others are counted."""

MAX_COMMAND_LINE = 200
"""Characters of a process's command line: enough to recognize it."""

COMMAND_MARKER = "FANOUT_COMMAND"
"""The variable by which a command's processes are found in any session."""


def find_shell(path: str) -> tuple[str, ...]:
    """Return the beginning of the command line with which a shell runs a command: bash, or sh.

    No file of a user or of the system is read before the command. It blocks.

    Args:
        path: The folders in which programs are found, as in PATH.
    """
    for folder in ("/bin", *path.split(":")):
        program = f"{folder}/bash"
        if folder.startswith("/") and os.path.isfile(program) and os.access(program, os.X_OK):
            return (program, "--noprofile", "--norc", "-c")
    return ("/bin/sh", "-c")
