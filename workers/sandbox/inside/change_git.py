"""What git computes about changes: ignored paths, renames, line counts.

Standard library only.

Git runs on a private repository that holds the changed files alone, never on a repository of the
job, whose hooks and settings are hostile, and it reads no settings of the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_RENAME_CANDIDATES = 400
"""Above so many files on either side, only files with equal content count as renamed (git's own
limit)."""
_COPY_BYTES = 1 << 20
"""Copied at once: large enough to be quick, small beside a process."""
_UNQUOTED = re.compile(rb'[\x00-\x1f"\\]')
_DIFF = [
    "diff-tree", "-r", f"-l{_RENAME_CANDIDATES}", "-M50%", "--no-ext-diff", "--no-textconv",
    "--root", "--numstat", "-z",
]  # fmt: skip


class GitFailed(RuntimeError):
    """The git program is missing, or failed."""


@dataclass(frozen=True)
class GitFile:
    """One file of a side, as input for git."""

    path: str
    mode: str
    """`100644`, `100755` or `120000`."""
    content: bytes | Path
    """Itself, or the file that holds it."""


@dataclass(frozen=True)
class PathDiff:
    """Git's data about one path of the result (of the snapshot, when the path was deleted)."""

    from_path: str | None
    """The former path of a renamed file."""
    lines_added: int
    lines_removed: int
    binary: bool


class PrivateGit:
    """A repository in a scratch folder. Every method raises GitFailed when git fails."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._home = scratch / "git"
        self._elsewhere = scratch / "empty"
        for folder in ("git/objects", "git/refs", "git/info", "empty"):
            (scratch / folder).mkdir(parents=True)
        (self._home / "HEAD").write_text("ref: refs/heads/none\n")
        (self._home / "config").write_text(
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        )

    def ignored(self, paths: Sequence[str], rules: dict[str, bytes], exclude: bytes) -> set[str]:
        """Return the paths that ignore rules exclude.

        Args:
            paths: relative paths; a directory's ends with `/`.
            rules: the content of each `.gitignore`, by the relative path of its folder (`""`: the
                root).
            exclude: the content of `.git/info/exclude`.

        Raises:
            GitFailed: git is missing or failed.
        """
        if not paths or not (rules or exclude):
            return set()
        tree = self._scratch / "rules"
        for folder, content in {"": b"", **rules}.items():
            (tree / folder).mkdir(parents=True, exist_ok=True)
            (tree / folder / ".gitignore").write_bytes(content)
        (self._home / "info" / "exclude").write_bytes(exclude)
        for path in paths:
            if path.endswith("/"):
                (tree / path).mkdir(parents=True, exist_ok=True)
        arguments = ["check-ignore", "--no-index", "-z", "--stdin"]
        with self._start(arguments, tree, {"GIT_WORK_TREE": str(tree)}, subprocess.PIPE) as process:
            # with "./" before it, no path is taken for a pattern
            answer, _ = process.communicate(
                b"".join(b"./%s\0" % os.fsencode(path) for path in paths)
            )
        if process.returncode not in (0, 1):
            raise GitFailed(f"git check-ignore ended with {process.returncode}")
        return {os.fsdecode(path[2:]) for path in answer.split(b"\0") if path}

    def compare(self, before: Iterable[GitFile], after: Iterable[GitFile]) -> dict[str, PathDiff]:
        """Return git's data about each path that differs between two sets of files.

        Args:
            before: the files of the snapshot.
            after: the files of the result.

        Raises:
            GitFailed: git is missing or failed.
        """
        self._import(before, after)
        sides = ("refs/heads/before^{tree}", "refs/heads/after^{tree}")
        with self._start([*_DIFF, *sides], self._elsewhere, {}, subprocess.PIPE) as process:
            counts, _ = process.communicate()
        if process.returncode:
            raise GitFailed(f"git diff-tree ended with {process.returncode}")
        return dict(_path_diffs(counts))

    def _import(self, before: Iterable[GitFile], after: Iterable[GitFile]) -> None:
        arguments = ["fast-import", "--quiet", "--done", "--depth=0", "--big-file-threshold=512k"]
        with self._start(arguments, self._elsewhere, {}, subprocess.DEVNULL) as process:
            stream = process.stdin
            assert stream is not None  # noqa: S101 - requested above
            try:
                for name, files in (("before", before), ("after", after)):
                    stream.write(
                        b"commit refs/heads/%s\ncommitter f <f> 0 +0000\ndata 0\n" % name.encode()
                    )
                    for file in files:
                        _write_file(stream, file)
                stream.write(b"done\n")
                stream.close()
            except BrokenPipeError:
                pass  # its exit code is checked below
        if process.returncode:
            raise GitFailed(f"git fast-import ended with {process.returncode}")

    def _start(
        self, arguments: Sequence[str], folder: Path, more: dict[str, str], output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._elsewhere),
            "LC_ALL": "C",
            "GIT_DIR": str(self._home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            **more,
        }
        settings = (
            "core.compression=0",
            "core.protectNTFS=false",
            "core.protectHFS=false",
            "core.fsmonitor=false",
            "core.fsync=none",  # all of it is thrown away
            "fastimport.unpackLimit=1",  # one pack instead of hundreds of loose objects
        )
        options = [option for setting in settings for option in ("-c", setting)]
        try:
            return subprocess.Popen(  # noqa: S603 - git, with our own arguments
                ["git", *options, *arguments],  # noqa: S607 - where the machine has it
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise GitFailed("git could not be started") from error


def _write_file(stream: IO[bytes], file: GitFile) -> None:
    """Write one file for `git fast-import`."""
    name = _UNQUOTED.sub(lambda found: b"\\%03o" % found[0][0], os.fsencode(file.path))
    content = file.content
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    stream.write(b'M %s inline "%s"\ndata %d\n' % (file.mode.encode(), name, size))
    if isinstance(content, bytes):
        stream.write(content)
    else:
        with content.open("rb") as source:
            shutil.copyfileobj(source, stream, _COPY_BYTES)
    stream.write(b"\n")


def _path_diffs(counts: bytes) -> Iterator[tuple[str, PathDiff]]:
    """Parse the output of `--numstat -z`: `added TAB removed TAB path NUL`.

    A rename has both its paths after a NUL.
    """
    fields = iter(counts.split(b"\0"))
    for field in fields:
        if not field:
            continue
        added, removed, raw = field.split(b"\t", 2)
        from_path = None if raw else os.fsdecode(next(fields))
        path = os.fsdecode(raw or next(fields))
        binary = added == b"-"
        lines = (0, 0) if binary else (int(added), int(removed))
        yield path, PathDiff(from_path, *lines, binary)
