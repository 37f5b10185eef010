"""Which shell runs the commands of agents on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def find_shell(path: str) -> tuple[str, ...]:
    """Return the beginning of the command line with which a shell runs a command: bash, or sh.

    No file of a user or of the system is read before the command. It blocks. Containers run a copy
    of this function in `workers/sandbox/inside/commands.py`.

    Args:
        path: The folders in which programs are found, as in PATH.
    """
    for folder in ("/bin", *path.split(":")):
        program = f"{folder}/bash"
        if folder.startswith("/") and Path(program).is_file() and os.access(program, os.X_OK):
            return (program, "--noprofile", "--norc", "-c")
    return ("/bin/sh", "-c")
