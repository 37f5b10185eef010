"""A copy of a folder in which commands may run, and what they changed in it. All of it blocks.

The copy is made twice: commands change one, the other is what a changed file is compared with. Hard
links would not do, because a command may change a file in place.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fanout.orchestrator.deep_agent.backends.local_shell import OUTPUT_ROOT
from fanout.orchestrator.deep_agent.backends.overlay import StagedFile
from fanout.orchestrator.git.process import GitFailed, run_git
from fanout.orchestrator.git.text_merge import is_text

MAX_COPIED_FILES = 20_000
"""A tree of sources has fewer; a tree with installed packages has more, and copying it for each
sub-agent would take many seconds."""

MAX_COPIED_BYTES = 256 * 1024**2
"""The size of the folder; two copies of it are made for each sub-agent that runs a command."""

CACHES = b"__pycache__/\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n"
"""What tests and checkers leave behind, in the form of `.gitignore`: two sub-agents that run the
same tests would otherwise conflict in files that nobody wrote."""

Marks = Mapping[str, tuple[int, ...]]
"""What tells a changed file from an unchanged one, by path relative to the folder. The time of the
last change of the inode is among it, which a command cannot set back."""


def fits(root: Path) -> bool:
    """Return whether a folder is small enough to be copied for each sub-agent."""
    size = 0
    for number, (_, status) in enumerate(_entries(root, skip_git=False)):
        size += status.st_size
        if number >= MAX_COPIED_FILES or size > MAX_COPIED_BYTES:
            return False
    return True


def marks_of(root: Path, max_files: int) -> Marks | None:
    """Return the marks of all files of a folder but those of Git; None if there are too many."""
    found = {}
    for path, status in _entries(root):
        found[path] = _mark(status)
        if len(found) > max_files:
            return None
    return found


@dataclass
class Changes:
    """What commands changed since it was last asked for."""

    files: list[StagedFile] = field(default_factory=list)
    """With paths relative to the folder."""
    marks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of the files that exist, as they were read."""
    left_out: list[str] = field(default_factory=list)
    """New files that `.gitignore` excludes, links, and other things that are no files."""
    removed_folders: list[str] = field(default_factory=list)


class FolderCopy:
    """The copy of one folder.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._busy = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="fanout-copy-", dir=OUTPUT_ROOT))
        # The same name as the original's: commands show it, and some use it.
        self.path = self._folder / "files" / (root.name or "root")
        self._before = self._folder / "before"
        self._git = self._folder / "git"
        self._marks: dict[str, tuple[int, ...]] = {}

    def make(self) -> None:
        """Copy the folder.

        Raises:
            OSError: It cannot be copied.
        """
        with self._busy:
            shutil.copytree(self._root, self.path, symlinks=True, ignore=_special_files)
            shutil.copytree(
                self.path, self._before, symlinks=True, ignore=shutil.ignore_patterns(".git")
            )
            for name in ("objects", "refs", "info"):
                (self._git / name).mkdir(parents=True)
            (self._git / "HEAD").write_text("ref: refs/heads/none\n")
            (self._git / "info" / "exclude").write_bytes(CACHES)
            self._marks = {path: _mark(status) for path, status in _entries(self.path)}

    def remove(self) -> None:
        """Delete the copy, as soon as it is made."""
        with self._busy:
            shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, path: str, data: bytes | None) -> None:
        """Write or delete a file; it does not count as a change of a command.

        Args:
            path: Its path relative to the folder.
            data: Its content; None to delete it.

        Raises:
            OSError: The file cannot be written.
        """
        target = self.path / path
        if data is None:
            with suppress(OSError):
                target.unlink()
                target.parent.rmdir()  # an empty folder is not one of the agent's files either
            self._marks.pop(path, None)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self._marks[path] = _mark(target.lstat())

    def changes(self) -> Changes:
        """Return what commands changed since the last call of `put` or `seen` for each file."""
        now = dict(_entries(self.path))
        changed = [path for path, status in now.items() if self._marks.get(path) != _mark(status)]
        ignored = self._ignored([path for path in changed if not (self._before / path).exists()])
        found = Changes(marks={path: _mark(now[path]) for path in changed})
        for path in changed:
            status = now[path]
            if path in ignored or not stat.S_ISREG(status.st_mode):
                found.left_out.append(path)
            else:
                found.files.append(self._staged(path, status))
        for path in self._marks.keys() - now.keys():
            found.files.append(StagedFile(path, _content(self._before / path), None))
        found.files.sort(key=lambda file: file.path)
        found.removed_folders = self._removed_folders()
        return found

    def seen(self, path: str, changes: Changes) -> None:
        """Count the change of a file as taken over."""
        if path in changes.marks:
            self._marks[path] = changes.marks[path]
        else:
            self._marks.pop(path, None)

    def _staged(self, path: str, status: os.stat_result) -> StagedFile:
        data = (self.path / path).read_bytes()
        if is_text(data):  # a command may have written where it ran
            data = data.replace(os.fsencode(self.path), os.fsencode(self._root))
        mode = stat.S_IMODE(status.st_mode)
        before = self._before / path
        with suppress(OSError):
            if mode == stat.S_IMODE(before.stat().st_mode):
                return StagedFile(path, _content(before), data, status.st_mtime)
        is_plain = not mode & stat.S_IXUSR and not before.exists()
        return StagedFile(
            path, _content(before), data, status.st_mtime, mode=None if is_plain else mode
        )

    def _ignored(self, paths: list[str]) -> set[str]:
        """Return those of the new files that ignore rules exclude."""
        if not paths:
            return set()
        with suppress(GitFailed):  # without Git nothing is left out
            _, output = run_git(
                ["check-ignore", "--no-index", "-z", "--stdin"],
                folder=self.path,
                git_dir=self._git,
                work_tree=self.path,
                stdin=b"".join(b"./%s\0" % os.fsencode(path) for path in paths),
                accepted=(0, 1),
            )
            return {os.fsdecode(path[2:]) for path in output.split(b"\0") if path}
        return set()

    def _removed_folders(self) -> list[str]:
        return [
            name
            for folder, names, _ in os.walk(self._before)
            for name in (os.path.relpath(Path(folder) / each, self._before) for each in names)
            if not (self.path / name).exists()
        ]


def _entries(root: Path, *, skip_git: bool = True) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a folder that is not a folder, by relative path."""
    for folder, names, files in os.walk(root):
        if skip_git:
            names[:] = [name for name in names if name != ".git"]
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            path = Path(folder) / name
            with suppress(FileNotFoundError):  # it was removed meanwhile
                yield os.path.relpath(path, root), path.lstat()


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return (
        *(status.st_mtime_ns, status.st_ctime_ns, status.st_size),
        *(status.st_ino, status.st_mode),
    )


def _content(path: Path) -> bytes | None:
    if path.is_symlink() or not path.is_file():
        return None
    return path.read_bytes()


def _special_files(folder: str, names: list[str]) -> set[str]:
    """Return sockets, pipes and devices, which are not copied."""
    special = set()
    for name in names:
        with suppress(FileNotFoundError):
            mode = (Path(folder) / name).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                special.add(name)
    return special
