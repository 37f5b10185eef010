"""The repository's files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("fanout", "orchestrator", "workers")


def repository_files() -> list[str]:
    """What is in the repository or would be with the next commit; paths relative to it."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=REPOSITORY, check=True, capture_output=True)
    names = done.stdout.decode().split("\0")
    return [name for name in names if name and (REPOSITORY / name).is_file()]


def package_sources() -> Iterator[tuple[str, str]]:
    """Path and text of each Python file of ours."""
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            yield name, path.read_text(encoding="utf-8")
