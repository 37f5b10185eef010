"""A repository of 5,000 source files, what a job changes in it, and how Git lists that."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILES = 5000
FILES_IN_FOLDER = 25
EDITED, ADDED, DELETED = 28, 8, 4
IDENTITY = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")

LIST_CHANGES = "git add -A && git diff --cached --binary > /tmp/patch"
"""What a sandbox without an upper layer would run to get a patch."""


@dataclass(frozen=True)
class Edits:
    """One round of forty changes to the tree."""

    written: Mapping[str, bytes]
    deleted: tuple[str, ...]


def write_tree(root: Path) -> None:
    """Write the files, 300 bytes to 8 KB of text each, and commit them; Git's own are packed."""
    source = random.Random(5000)  # noqa: S311 - the same tree in every run
    for number in range(FILES):
        path = root / path_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(source, source.randint(10, 250)))
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "start"), ("gc", "-q")):
        subprocess.run(["git", *IDENTITY, *command], cwd=root, check=True)


def path_of(number: int) -> str:
    folder = number // FILES_IN_FOLDER
    return f"package{folder // 10:02}/part{folder % 10}/module_{number:04}.py"


def edits(number: int) -> Edits:
    """The changes of a round: each edits the same files anew, all over the tree."""
    source = random.Random(number)  # noqa: S311 - the same edits in every run
    paths = [path_of(index * FILES // (EDITED + DELETED)) for index in range(EDITED + DELETED)]
    changed = [*paths[:EDITED], *(f"added/new_{index}.py" for index in range(ADDED))]
    return Edits({path: _text(source, 100).encode() for path in changed}, tuple(paths[EDITED:]))


def _text(source: random.Random, lines: int) -> str:
    return "".join(
        f"value_{source.getrandbits(32):08x} = {source.random()}\n" for _ in range(lines)
    )
