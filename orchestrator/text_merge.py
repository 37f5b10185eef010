"""Three-way merges of text, by Git."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

_PROBE_BYTES = 8_000
"""Git looks this far for a NUL before it calls a file binary."""

_GIT_SAYS_CONFLICT = range(1, 128)
"""`git merge-file` exits with the number of conflicts, at most 127; above is a failure."""

_ENDED, _OPEN = b"\x1e", b"\x1f"
"""What stands for a line's end, and for its lack, when each line is set apart."""


class GitFailed(RuntimeError):
    """Git is not installed, or it failed in a way that is not a conflict."""


def is_text(content: bytes) -> bool:
    """Whether Git would merge this content line by line."""
    return b"\0" not in content[:_PROBE_BYTES]


def merge_text(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """`ours` with what changed from `base` to `theirs`; None when both changed the same lines.

    Changes of neighbouring lines, a conflict to Git, are merged too. Merging into the outcome again
    changes nothing: where lines repeat so that this cannot be known, the answer is None.

    Raises:
        GitFailed: Git is not installed or failed.
    """
    merged = _merged(base, ours, theirs)
    if merged is None or merged == theirs or _is_stable(base, merged, theirs):
        return merged
    return None


def contains_change(base: bytes, ours: bytes, theirs: bytes) -> bool:
    """Whether what changed from `base` to `theirs` is in `ours` already.

    That is so when it can be taken out of `ours`, and putting it in again gives `ours`.
    """
    without = _merged(theirs, ours, base)
    return without is not None and _merged(base, without, theirs) == ours


def _is_stable(base: bytes, merged: bytes, theirs: bytes) -> bool:
    """Whether merging the change again leaves its outcome as it is."""
    return _merged(base, merged, theirs) == merged or contains_change(base, merged, theirs)


def _merged(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    merged = _merge_file(base, ours, theirs)
    return merged if merged is not None else _merge_lines_apart(base, ours, theirs)


def _merge_lines_apart(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge with a line of its own between each two lines, so that only equal lines are neighbours."""
    versions = (base, ours, theirs)
    if any(mark in version for version in versions for mark in (_ENDED, _OPEN)):
        return None
    merged = _merge_file(*(_set_apart(version) for version in versions))
    return None if merged is None else _put_together(merged)


def _set_apart(content: bytes) -> bytes:
    *lines, rest = content.split(b"\n")
    apart = [line + b"\n" + _ENDED + b"\n" for line in lines]
    return b"".join(apart) + (rest + b"\n" + _OPEN + b"\n" if rest else b"")


def _put_together(apart: bytes) -> bytes | None:
    """The lines again; None when the merge tore a line from its end."""
    lines = apart.split(b"\n")[:-1]
    texts, ends = lines[0::2], lines[1::2]
    if len(texts) != len(ends) or any(text in {_ENDED, _OPEN} for text in texts):
        return None
    if any(end != _ENDED for end in ends[:-1]) or (ends and ends[-1] not in {_ENDED, _OPEN}):
        return None
    content = b"\n".join(texts)
    return content + b"\n" if ends and ends[-1] == _ENDED else content


def _merge_file(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    with tempfile.TemporaryDirectory(prefix="fanout-merge-") as folder:
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            Path(folder, name).write_bytes(content)
        try:
            done = subprocess.run(
                ["git", "merge-file", "-p", "-q", "ours", "base", "theirs"],  # noqa: S607 - git is found on PATH
                cwd=folder,
                env=git_environment(),
                capture_output=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise GitFailed("Merging text needs git: install it.") from error
    if done.returncode in _GIT_SAYS_CONFLICT:
        return None
    if done.returncode:
        raise GitFailed(f"git merge-file failed with exit code {done.returncode}.")
    return done.stdout


def git_environment() -> dict[str, str]:
    """An environment in which Git reads no settings but a repository's own, and asks nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
