"""The files that one child works on, and what becomes of its changes.

A child with a shell works on an overlay of the folder; its commands run in a copy, which is made
when the first of them runs. Before each command the copy gets the overlay's changes, and after each
the overlay gets those of the command, so file tools and commands see the same files. The copy is
made twice: commands change one, the other is what a changed file is compared with. Hard links would
not do, because a command may change a file in place.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from pydantic import JsonValue

from ...git.process import GitFailed, run_git
from ...git.text_merge import is_text
from ...path_text import os_path, path_text
from ..backends import processes
from ..backends.local_shell import OUTPUT_ROOT, LocalShellBackend
from ..backends.overlay import OverlayBackend, StagedFile
from ..backends.protocol import Backend, Execution, OutputSink
from .apply_changes import (
    AppliedChanges,
    PathLock,
    apply_changes,
)

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

MAX_WATCHED_FILES = 200_000
"""The most files in a folder on which a child works directly: comparing them takes a second."""

MAX_NAMED = 5
"""The most paths that are named of those that are not merged: enough to recognize them."""


def fits(root: Path) -> bool:
    """Return whether a folder is small enough to be copied for each sub-agent."""
    size = 0
    for number, (_, status) in enumerate(_entries(root, skip_git=False)):
        size += status.st_size
        if number >= MAX_COPIED_FILES or size > MAX_COPIED_BYTES:
            return False
    return True


def mark_files(root: Path, max_files: int) -> Marks | None:
    """Return the marks of all files of a folder but those of Git; None if there are too many."""
    found = {}
    for path, status in _entries(root):
        found[path] = _mark(status)
        if len(found) > max_files:
            return None
    return found


@dataclass
class CopyChanges:
    """What commands changed since it was last asked for."""

    files: list[StagedFile] = field(default_factory=list)
    """The files by their paths relative to the folder."""
    marks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The marks of the existing files, as they were read."""
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
        self._base_content = self._folder / "before"
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
                self.path, self._base_content, symlinks=True, ignore=shutil.ignore_patterns(".git")
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

    def changes(self) -> CopyChanges:
        """Return what commands changed since the last call of `put` or `seen` for each file."""
        now = dict(_entries(self.path))
        changed = [path for path, status in now.items() if self._marks.get(path) != _mark(status)]
        ignored = self._ignored(
            [path for path in changed if not (self._base_content / path).exists()]
        )
        found = CopyChanges(marks={path: _mark(now[path]) for path in changed})
        for path in changed:
            status = now[path]
            if path in ignored or not stat.S_ISREG(status.st_mode):
                found.left_out.append(path)
            else:
                found.files.append(self._staged(path, status))
        for path in self._marks.keys() - now.keys():
            found.files.append(StagedFile(path, _content(self._base_content / path), None))
        found.files.sort(key=lambda file: file.path)
        found.removed_folders = self._removed_folders()
        return found

    def seen(self, path: str, changes: CopyChanges) -> None:
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
        before = self._base_content / path
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
            for folder, names, _ in os.walk(self._base_content)
            for name in (os.path.relpath(Path(folder) / each, self._base_content) for each in names)
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


class ChildFiles(Protocol):
    """The files of one child."""

    @property
    def backend(self) -> Backend:
        """What the child's tools work on."""

    @property
    def note(self) -> str | None:
        """What its parent has to know about the files if it succeeds."""

    @property
    def note_on_failure(self) -> str | None:
        """What its parent has to know about the files if it fails."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the child may work; what is temporary is removed after it."""

    def dump(self) -> JsonValue:
        """Return the changes so far as JSON, for `load` in another process."""

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Go on with the changes that `dump` returned."""

    async def finish(self) -> AppliedChanges:
        """Put the changes into the parent's files, and return what was changed.

        Raises:
            ToolMistake: They are too many; none was put there.
        """

    async def left_behind(self) -> AppliedChanges:
        """Return what a child that failed has changed in its parent's files."""


class StagedFiles:
    """Changes that are merged into the parent's files when the child has succeeded.

    Args:
        files: The parent's files.
        lock: Held while one of them is compared and written.
    """

    note: str | None = None
    note_on_failure: str | None = "None of its changes to files were kept."

    def __init__(self, files: Backend, lock: PathLock) -> None:
        self._files = files
        self._lock = lock
        self._overlay = OverlayBackend(files)

    @property
    def backend(self) -> Backend:
        """See `ChildFiles.backend`."""
        return self._overlay

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `ChildFiles.opened`."""
        yield

    def dump(self) -> JsonValue:
        """See `ChildFiles.dump`."""
        return self._overlay.dump()

    def load(self, dumped: Mapping[str, Any]) -> None:
        """See `ChildFiles.load`."""
        self._overlay.load(dumped)

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        return await apply_changes(self._overlay, self._files, self._lock)

    async def left_behind(self) -> AppliedChanges:
        """See `ChildFiles.left_behind`."""
        return AppliedChanges()


class OwnFiles(StagedFiles):
    """For an agent that was made elsewhere: its tools have files of their own."""

    note = "It works with tools of its own: what they changed is not listed here."
    note_on_failure = note


class StagedShellFiles(StagedFiles):
    """As `StagedFiles`, for a child with a shell: its commands run in a copy.

    Args:
        files: The parent's files.
        lock: Held while one of them is compared and written.
    """

    def __init__(self, files: LocalShellBackend, lock: PathLock) -> None:
        super().__init__(files, lock)
        self._overlay: ShellOverlay = ShellOverlay(files)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `ChildFiles.opened`."""
        try:
            yield
        finally:
            await self._overlay.close()

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        await self._overlay.take_over()  # what ran in the background has gone on
        done = await super().finish()
        if left := sorted(self._overlay.left_out):
            more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
            self.note = (
                "Ignored files and links that its commands made were not taken over: "
                f"{', '.join(left[:MAX_NAMED])}{more}."
            )
        return done


class DirectFiles:
    """The parent's own files, for a child with a shell where no copy can be made.

    One such child works at a time, because its commands would overwrite what others do.

    Args:
        files: The parent's files.
        turn: Held while the child works.
    """

    note = "It worked directly on your files."
    note_on_failure = (
        "It worked directly on your files: what it changed before it failed is still there."
    )

    def __init__(self, files: Backend, turn: asyncio.Semaphore) -> None:
        self._files = files
        self._turn = turn
        self._base_content: Marks | None = None

    @property
    def backend(self) -> Backend:
        """See `ChildFiles.backend`."""
        return self._files

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `ChildFiles.opened`."""
        async with self._turn:
            self._base_content = await self._marks()
            yield

    def dump(self) -> JsonValue:
        """See `ChildFiles.dump`; what was changed before a question is not listed after it."""
        return {}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """See `ChildFiles.load`."""

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        return await self.left_behind()

    async def left_behind(self) -> AppliedChanges:
        """See `ChildFiles.left_behind`."""
        before, now = self._base_content, await self._marks()
        if before is None or now is None:
            self.note = "It worked directly on your files; what it changed is not listed here."
            return AppliedChanges()
        root = Path(os_path(self._files.search_root))
        changed = sorted(
            path for path in before.keys() | now.keys() if before.get(path) != now.get(path)
        )
        return AppliedChanges(
            [
                StagedFile(
                    str(root / path),
                    b"" if path in before else None,
                    b"" if path in now else None,
                )
                for path in changed
            ]
        )

    async def _marks(self) -> Marks | None:
        if not isinstance(self._files, LocalShellBackend):
            return None
        root = Path(os_path(self._files.search_root))
        return await asyncio.to_thread(mark_files, root, MAX_WATCHED_FILES)


class ShellOverlay(OverlayBackend):
    """The files of a `LocalShellBackend` with changes on top, and its shell in a copy of them.

    In commands the path of the folder is replaced by that of the copy, and in their output the
    other way round: files have one path for the agent. A command that finds the folder otherwise,
    such as by a path in a script, works on the folder itself, for this is no sandbox.

    Args:
        base: The files below.
    """

    def __init__(self, base: LocalShellBackend) -> None:
        super().__init__(base)
        self._shell = base
        self._root = Path(base.search_root)
        self._marker = f"{uuid4().hex}-"
        self._copy: FolderCopy | None = None
        self._put: dict[str, StagedFile] = {}
        """The changes that the copy has."""
        self._syncing = asyncio.Lock()
        self.left_out: set[str] = set()
        """Paths that commands made and that are not taken over."""

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """See `Shell.execute`.

        Raises:
            ToolMistake: The changes exceed what an overlay may hold.
            OSError: The folder cannot be copied.
        """
        async with self._syncing:
            copy = await self._current_copy()
        here, there = str(copy.path), str(self._root)

        async def shown(data: bytes) -> None:
            if on_output is not None:
                await on_output(data.replace(os.fsencode(here), os.fsencode(there)))

        done = await self._shell.execute_in_folder(
            copy.path,
            _replaced(command, there, here),
            timeout_seconds,
            max_output_bytes,
            shown if on_output else None,
            marker=self._marker,
        )
        await self.take_over()
        return _replace_output_path(done, os.fsencode(here), os.fsencode(there))

    async def take_over(self) -> None:
        """Stage what commands changed since the last call.

        Raises:
            ToolMistake: The changes exceed what an overlay may hold.
        """
        async with self._syncing:
            if self._copy is None:
                return
            changes = await asyncio.to_thread(self._copy.changes)
            self._stage_all(self._copy, changes)

    async def close(self) -> None:
        """Delete the copy, and stop what commands left running in it."""
        if self._copy is not None:
            try:
                await processes.stop_leftovers(self._marker)
            finally:
                await asyncio.to_thread(self._copy.remove)

    def _stage_all(self, copy: FolderCopy, changes: CopyChanges) -> None:
        for file in changes.files:
            path = self._text(file.path)
            self.put(replace(file, path=path))
            self._put[path] = self._staged[path]
            copy.seen(file.path, changes)
        self.left_out = set(map(self._text, changes.left_out))
        self._removed.update(map(self._text, changes.removed_folders))

    def _text(self, path: str) -> str:
        """Return the path text of a path in the copy, as the agent names it."""
        return path_text(str(self._root / path))

    async def _current_copy(self) -> FolderCopy:
        """Return the copy with all changes of the overlay."""
        if self._copy is None:
            self._copy = await asyncio.to_thread(FolderCopy, self._root)
            await asyncio.to_thread(self._copy.make)
        for file in self.changes:
            if self._put.get(file.path) is not file:
                below, _, relative = os_path(file.path).partition(f"{self._root}/")
                if not below:
                    await asyncio.to_thread(self._copy.put, relative, file.after)
                self._put[file.path] = file
        return self._copy


def _replaced(text: str, old: str, new: str) -> str:
    """Replace a folder's path, but not that of another folder whose name begins like it."""
    return re.sub(re.escape(old) + r"(?![\w.-])", lambda _: new, text)


def _replace_output_path(done: Execution, old: bytes, new: bytes) -> Execution:
    """Return the outcome with one path in its output replaced by another."""
    head = done.output[: done.head_bytes].replace(old, new)
    tail = done.output[done.head_bytes :].replace(old, new)
    output = head + tail
    return replace(
        done,
        output=output,
        error_output=done.error_output.replace(old, new),
        head_bytes=len(head),
        total_bytes=done.total_bytes + len(output) - len(done.output),
    )
