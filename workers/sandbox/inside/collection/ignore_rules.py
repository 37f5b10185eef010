"""Tells whether git needs to be asked about ignore rules. Standard library only.

Git alone knows what they mean. But a rule can only apply to a path with a name that fits the last
name of the rule, and most rules of a repository fit nothing that a job has made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

_SIMPLE = re.compile(r"(?:[^][\\]|\[[\w.$~-]+\])+")
"""Git and Python agree about such patterns."""
_WILD = re.compile(r"\[[^]]*\]|[*?]")
_MAX_COMPARED = 100_000
"""Pairs of a rule and a name: some 20 ms; git is as quick with more."""


def may_ignore(rules: Iterable[bytes], paths: Iterable[str]) -> bool:
    """Return whether rules may exclude a path; False is certain.

    Args:
        rules: the contents of ignore files.
        paths: relative paths; a directory's may end with `/`.
    """
    names = {name for path in paths for name in path.split("/") if name}
    lines = {os.fsdecode(line.rstrip(b" \r")) for content in rules for line in content.split(b"\n")}
    patterns = {line.rstrip("/").split("/")[-1] for line in lines if line and line[0] not in "#!"}
    if len(patterns) * len(names) > _MAX_COMPARED:
        return True
    return any(_may_fit(pattern, names) for pattern in patterns)


def _may_fit(pattern: str, names: Collection[str]) -> bool:
    if not _SIMPLE.fullmatch(pattern):
        return True
    pieces = _WILD.split(pattern)
    if len(pieces) == 1:
        return pattern in names
    likely = [name for name in names if all(piece in name for piece in pieces)]
    return any(fnmatchcase(name, pattern) for name in likely)
