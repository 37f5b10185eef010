"""Git as a person has it, in repositories that tests make."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETTINGS = (
    *("-c", "user.name=test", "-c", "user.email=test@localhost"),
    *("-c", "protocol.file.allow=always", "-c", "safe.directory=*"),
)


def git(folder: Path, *arguments: str) -> str:
    """Run Git in a folder, and return what it prints."""
    argv = ["git", *SETTINGS, *arguments]
    done = subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    return done.stdout.decode(errors="surrogateescape")
