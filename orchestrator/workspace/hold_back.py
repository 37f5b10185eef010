"""Holding back the changes that would become code on the host, until a person says otherwise.

`executable_config` knows the names. What is here depends on the folder and on the other changes: a
folder that becomes a bare repository, symlinks, and the files that Git's configuration names.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fanout.orchestrator.executable_config import (
    LINK,
    folders_above,
    is_bare_repository,
    is_git_data,
    link_target,
    may_hold_code,
    plain,
    why_code,
)
from fanout.orchestrator.jobs.changes import ChangedFile, FileChange, FileVersion, MalformedBundle
from fanout.orchestrator.path_text import os_path, path_text
from fanout.orchestrator.workspace.repositories.configuration import Unreadable
from fanout.orchestrator.workspace.repositories.repository import (
    all_settings,
    enclosing_repository,
)
from fanout.orchestrator.workspace.rooted import PathRefused, RootedFolder

BARE_REPOSITORY = "Git takes its folder for a repository and runs what its configuration says"
CONFIGURED = "the configuration of this repository says that Git runs it"

_IS_PATH = re.compile(r"core\.(hookspath|attributesfile)|include\.path|includeif\..*\.path")
_IS_COMMAND = re.compile(
    r"core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy)|alias\..*|pager\..*"
    r"|interactive\.difffilter|diff\.external|sequence\.editor|gpg\.(.*\.)?program"
    r"|(filter|diff|merge|difftool|mergetool)\..*\.(clean|smudge|process|textconv|command|driver"
    r"|cmd|path)|credential\.(.*\.)?helper"
)
"""The names of Git's settings whose values are files with more settings, folders of programs, or
commands."""

Names = Callable[[str], Iterable[str]]
"""Returns the names in a folder of the workspace; none if it does not exist."""


class HoldBack:
    """Says which changes of one merge are held back, and why.

    Args:
        names: Reads the folder that is merged into.
        code: Paths of files and folders in it that are code, beside those that their names tell.
        arriving: The paths that the changes add or write.
    """

    def __init__(
        self, names: Names, code: Iterable[str] = (), arriving: Iterable[str] = ()
    ) -> None:
        self._names = names
        self._code = {_plain_path(path) for path in code}
        self._arriving: defaultdict[str, set[str]] = defaultdict(set)
        for path in arriving:
            for folder, name in zip(folders_above(path), reversed(path.split("/")), strict=True):
                self._arriving[_plain_path(folder)].add(name)
        self._is_repository: dict[str, bool] = {}

    def why(self, path: str) -> str | None:
        """Return why a change at a path is held back; None if it is not."""
        reason = why_code(os_path(path))
        if reason is not None:
            return reason
        if self._code:
            own = [_plain_path(path), *map(_plain_path, folders_above(path))]
            if self._code.intersection(own):
                return CONFIGURED
        if any(self._is_bare(folder) for folder in folders_above(path)):
            return BARE_REPOSITORY
        return None

    def why_file(self, file: ChangedFile, content_of: Callable[[FileVersion], bytes]) -> str | None:
        """Return why a job's change is held back: for either path of a rename, or a link's target.

        Args:
            file: The change.
            content_of: Returns the content of a version of the job's bundle.
        """
        paths = [file.path] if file.from_path is None else [file.path, file.from_path]
        if file.after is not None and file.after.kind == "symlink":
            if may_hold_code(os_path(file.path)):
                return LINK
            with suppress(MalformedBundle):  # the merge reports it
                target = path_text(content_of(file.after))
                if self.why(link_target(file.path, target)) is not None:
                    return LINK
        return next(filter(None, map(self.why, paths)), None)

    def _is_bare(self, folder: str) -> bool:
        """Whether a folder is a bare repository, or becomes one with the arriving files."""
        key = _plain_path(folder)
        if key not in self._is_repository:
            names = {*self._names(folder), *self._arriving[key]}
            self._is_repository[key] = is_bare_repository(names)
        return self._is_repository[key]


def hold_back_in(root: Path, files: Iterable[ChangedFile]) -> HoldBack:
    """Return the rule that says which changes of a job are held back in a folder.

    Args:
        root: The folder.
        files: All changes of the job.
    """
    arriving = [file.path for file in files if file.after is not None]
    return HoldBack(names_below(root), code_of_folder(root), arriving)


def held_back_by_name(files: Sequence[FileChange]) -> dict[str, str]:
    """Return the changed paths that a merge holds back, with the reasons, as far as names tell.

    Args:
        files: The changes of a job.
    """
    rule = HoldBack(
        lambda _: (), arriving=[file.path for file in files if file.change != "deleted"]
    )
    found = {file.path: rule.why(file.path) or rule.why(file.from_path or "") for file in files}
    return {path: reason for path, reason in found.items() if reason is not None}


def names_below(root: Path) -> Names:
    """Return a reader of the names in the folders of a workspace.

    Args:
        root: The workspace.
    """
    folder = RootedFolder(root)

    def names(path: str) -> Iterable[str]:
        with suppress(PathRefused, OSError):
            return folder.names(path) if path else map(path_text, os.listdir(root))  # noqa: PTH208
        return ()

    return names


def code_of_folder(root: Path) -> frozenset[str]:
    """Return the paths below a folder that are code for a reason outside of their names.

    These are the targets of symlinks at its top that have such names (`.vscode -> editor`), and
    what Git's configuration names: hooks, filters, included files.

    Args:
        root: The workspace.
    """
    return frozenset(map(path_text, (*_linked(root), *_configured(root))))


def _linked(root: Path) -> Iterable[str]:
    """Yield the targets of links whose names are in the table, at the top and one below."""
    for folder in (root, *(root / name for name in (".github", ".config", "config"))):
        with suppress(OSError), os.scandir(folder) as listing:
            for item in listing:
                path = Path(item.path)
                if item.is_symlink() and may_hold_code(path.relative_to(root).as_posix()):
                    with suppress(OSError, RuntimeError, ValueError):
                        yield path.resolve().relative_to(root.resolve()).as_posix()


def _configured(root: Path) -> Iterable[str]:
    """Yield the paths below a folder that the settings of its repository name as programs."""
    with suppress(Unreadable, OSError):
        repository = enclosing_repository(root)
        if repository is None:
            return
        starts = [root, repository.work_tree, repository.git_dir, repository.common_dir]
        for name, value in all_settings(repository):
            if _IS_PATH.fullmatch(name):
                yield from _below(root, value, starts)
            elif _IS_COMMAND.fullmatch(name):
                for word in _paths_of_command(value):
                    yield from _below(root, word, starts)


def _below(root: Path, found: str, starts: Sequence[Path]) -> Iterable[str]:
    """Yield a path as seen from several folders, where it is below `root`."""
    for start in starts:
        with suppress(OSError, RuntimeError, ValueError):
            path = (start / Path(found).expanduser()).resolve().relative_to(root.resolve())
            if path.parts and not is_git_data(path.parts[0]):
                yield path.as_posix()


def _paths_of_command(value: str) -> list[str]:
    """Return the words of a command that look like files: a bare name is looked up on PATH."""
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    return [word.lstrip("!") for word in words if "/" in word or "." in word]


def _plain_path(path: str) -> str:
    return "/".join(map(plain, path.split("/")))
