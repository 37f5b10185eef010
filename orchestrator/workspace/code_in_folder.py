"""The files of a folder that are code for another reason than their names.

A symlink gives a file another name, Git's configuration names programs, and a file that a person
allowed to run (an `.envrc`, a hook, an editor's task) calls other files of the folder. What a
program calls with a name that it computes, or imports, is not found.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..executable_config import (
    STARTED_LOCALLY,
    find_code,
    find_code_entry,
    folders_above,
    is_git_data,
    may_hold_code,
    plain,
    why_code,
)
from ..path_text import path_text
from .repositories.configuration import RepositoryUnreadable
from .repositories.repository import (
    all_settings,
    enclosing_repository,
)

CONFIGURED = "the configuration of this repository says that Git runs it"

MAX_READ_BYTES = 256 * 1024
"""The largest file that is searched for the names of others; people write such files by hand."""
MAX_SEARCHED_FILES = 500
"""The most configurations and called files that are searched, so that a folder of generated hooks
does not delay a merge."""
MAX_WORDS = 2_000
"""The most words of one file that may name files: each costs up to two dozen disk accesses."""

_IS_PATH = re.compile(
    r"core\.(hookspath|attributesfile|excludesfile)|include\.path|includeif\..*\.path"
)
_IS_COMMAND = re.compile(
    r"core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy)|alias\..*|pager\..*"
    r"|interactive\.difffilter|diff\.external|sequence\.editor|gpg\.(.*\.)?program"
    r"|(filter|diff|merge|difftool|mergetool)\..*\.(clean|smudge|process|textconv|command|driver"
    r"|cmd|path)|credential\.(.*\.)?helper"
)
"""The names of Git's settings whose values are files with more settings, folders of programs, or
commands."""

_WORD = re.compile(r"""[^\s"'`=:;,()\[\]{}<>|&$\\]+""")
_READS_ANY_FILE = re.compile(
    r"""(?:^|[\s;&|"'(])(?:source|source_env|source_env_if_exists|dotenv|dotenv_if_exists|\.)\s+"""
    r"""["']?([^\s"';&|)]+)"""
)
"""The commands of shells and of direnv that run or obey a file, whatever its name."""
_NIX = re.compile(r"\buse[_ ](?:flake|nix)\b")
_NIX_FILES = ("flake.nix", "flake.lock", "shell.nix", "default.nix")
"""The files that direnv's `use flake` and `use nix` evaluate."""
_SCRIPTS = re.compile(
    r"\.([bckz]?sh|bash|fish|ps1|bat|cmd|pyw?|rb|p[lm]|[cm]?[jt]s|lua|php|nix|exs|r|el|vim|awk|tcl"
    r"|groovy|kts)"
)
"""The suffixes of files that an interpreter runs."""
_GENERATED = frozenset({".venv", ".direnv", ".devenv", ".devbox", ".flox", ".hermit"})
"""Folders of installed dependencies: thousands of files, which nobody writes by hand."""
_MAX_STEPS = 8
"""The most leading path parts to skip in a word that may begin with a variable: `$PWD/tools/env.sh`
is found as `tools/env.sh`."""


@dataclass(frozen=True)
class CodeInFolder:
    """The code in a folder that names do not show; paths are plain and relative to it."""

    reasons: dict[str, str] = field(default_factory=dict)
    """Files and folders, and why each is code."""
    aliases: tuple[tuple[str, str], ...] = ()
    """A file or folder, and the path of a symlink that leads to it."""

    def why(self, path: str) -> str | None:
        """Return why a path is code; None if it is not."""
        if not (self.reasons or self.aliases):
            return None
        own = plain_path(path)
        for above in (own, *folders_above(own)):
            if above in self.reasons:
                return self.reasons[above]
        for target, link in self.aliases:
            if own == target or own.startswith(f"{target}/"):
                reason = why_code(link + own.removeprefix(target))
                if reason is not None:
                    return reason
        return None


def plain_path(path: str) -> str:
    """Return a path as all file systems that may hold it compare it."""
    return "/".join(map(plain, path.split("/")))


def code_in_folder(root: Path) -> CodeInFolder:
    """Find code by symlinks, Git's configuration and allowed configurations; blocks.

    A result that took long to find is reused for ten times as long, because hundreds of jobs are
    merged one after the other.

    Args:
        root: The workspace.
    """
    global _last  # noqa: PLW0603 - the only cache, of one folder
    root, now = root.resolve(), time.monotonic()
    last = _last
    if last is not None and last[0] == root and now < last[1]:
        return last[2]
    found = _search(root)
    took = time.monotonic() - now
    _last = (root, now + 11 * took, found) if took > _QUICK_SECONDS else None
    return found


_QUICK_SECONDS = 0.05
"""The time in which a folder of ten thousand files is searched. A result found sooner is not
reused."""
_last: tuple[Path, float, CodeInFolder] | None = None
"""The last folder that took longer, the end of its result's validity, and the result."""


def _search(root: Path) -> CodeInFolder:
    aliases: list[tuple[str, str]] = []
    starters: list[str] = []
    for path, is_link in _named(root):
        if is_link:
            with suppress(OSError, RuntimeError, ValueError):
                target = (root / path).resolve().relative_to(root).as_posix()
                aliases.append((plain_path(path_text(target)), path_text(path)))
        else:
            starters.append(path)
    reasons = {
        plain_path(path_text(path)): f"used by {path_text(starter)}: {why_code(starter)}"
        for path, starter in _called(root, starters)
    }
    reasons |= {plain_path(path_text(path)): CONFIGURED for path in _configured(root)}
    return CodeInFolder(reasons, tuple(aliases))


def _named(root: Path) -> Iterator[tuple[str, bool]]:
    """Yield symlinks that may make code of their targets, and files that start programs.

    Each comes with whether it is a link. Links are not followed.
    """
    waiting: list[tuple[str, tuple[str, ...], bool]] = [("", (), False)]
    while waiting:
        folder, names, is_starter = waiting.pop()
        with suppress(OSError), os.scandir(root / folder) as listing:
            for item in listing:
                path = f"{folder}/{item.name}" if folder else item.name
                own = (*names, plain(item.name))
                if is_git_data(item.name):
                    continue
                if item.is_symlink():
                    if may_hold_code(path):
                        yield path, True
                    continue
                code = None if is_starter else find_code_entry(own)
                starts = is_starter or (
                    code is not None and code.group in STARTED_LOCALLY and own[-1] not in _GENERATED
                )
                if item.is_dir():
                    waiting.append((path, own, starts))
                elif starts and item.is_file():
                    yield path, False


def _called(root: Path, starters: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that are called, each with the configuration that starts the calls."""
    by_depth = sorted(starters, key=lambda path: (path.count("/"), path))
    waiting = [(path, path) for path in by_depth[:MAX_SEARCHED_FILES]]
    seen = set(starters)
    while waiting and len(seen) < 2 * MAX_SEARCHED_FILES:
        path, starter = waiting.pop(0)
        for called in _find_named_files(root, path):
            if called not in seen and find_code(called) is None:
                seen.add(called)
                waiting.append((called, starter))
                yield called, starter


def _find_named_files(root: Path, path: str) -> set[str]:
    """Return the files of the folder, including future ones, that a text runs or obeys."""
    try:
        with (root / path).open("rb") as file:
            text = file.read(MAX_READ_BYTES).decode(errors="replace")
    except OSError:
        return set()
    starts = (root, *list((root / path).parents)[:2])
    any_file = {word for word in _READS_ANY_FILE.findall(text) if not word.startswith("-")}
    if _NIX.search(text):
        any_file.update(_NIX_FILES)
    programs = {word for word in _WORD.findall(text) if "/" in word or "." in word}
    found = {place for word in any_file for place in _places(root, starts, word)}
    for word in sorted(programs)[:MAX_WORDS]:
        found.update(one for one in _places(root, starts, word) if _is_program(root / one))
    return found


def _places(root: Path, starts: Sequence[Path], word: str) -> list[str]:
    """Return the file that a word names, also without the variables that it begins with.

    If there is no file, the result is all paths at which the file may be created.
    """
    steps = [step for step in re.split(r"[/\\]+", word) if step not in {"", "."}]
    absent: list[str] = []
    for first in range(min(len(steps), _MAX_STEPS)):
        for start in starts:
            with suppress(OSError, RuntimeError, ValueError):
                place = start.joinpath(*steps[first:]).resolve()
                inner = place.relative_to(root).as_posix()
                if is_git_data(inner.partition("/")[0]):
                    continue
                if place.is_file():
                    return [inner]
                if not place.exists():
                    absent.append(inner)
    return absent


def _is_program(path: Path) -> bool:
    if _SCRIPTS.fullmatch(path.suffix.lower()):
        return True
    with suppress(OSError):
        return bool(path.stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH))
    return False


def _configured(root: Path) -> Iterable[str]:
    """Yield the paths below a folder that the settings of its repository name as programs."""
    with suppress(RepositoryUnreadable, OSError):
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
