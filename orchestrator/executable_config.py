"""Which files of a workspace become code on the host without a command.

A file of the table in `executable_config.toml` is executed, or names what is executed, when a
person merely enters the folder, opens it in an editor or an agent, or uses Git in it; when a push
starts a build with the project's secrets; or when another tool reads its configuration from the
current folder, also one of fanout's. So a job's change of such a file is landed only when a person
permits it.

The table does not have files that a person runs on purpose and can read before: `Makefile`,
`package.json`, `conftest.py`, `setup.py`, scripts, the code itself; and prose for agents
(`AGENTS.md`), which is text and no command. A person who runs a job's code without reading it is
not protected by this table.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import cache
from pathlib import Path

SHORT_NAME = "it is the short name of another file on a file system of Windows"
LINK = "it is a symlink that makes code of a file, or leads to one that is code"

STARTED_LOCALLY = frozenset({"shell", "editor", "agent", "git_hook"})
"""The groups whose files start programs of the folder on this machine."""


@dataclass(frozen=True)
class Code:
    """A name of the table: the reason why files with that name are code."""

    group: str
    reason: str


class _Table:
    """The names of `executable_config.toml`, as sequences of steps in lower case."""

    def __init__(self) -> None:
        self.exact: dict[tuple[str, ...], Code] = {}
        globs: defaultdict[int, list[tuple[tuple[str, ...], Code]]] = defaultdict(list)
        for group, table in tomllib.loads(_FILE.read_text()).items():
            code = Code(group, table["reason"])
            for name in (name for entry in table["entries"] for name in entry["names"].split()):
                steps = tuple(name.split("/"))
                if "*" in name:
                    globs[len(steps)].append((steps, code))
                else:
                    self.exact[steps] = code
        every = [*self.exact, *(steps for some in globs.values() for steps, _ in some)]
        self.first_steps = frozenset(steps[0] for steps in every if len(steps) > 1)
        self.longest = max(map(len, every))
        self._globs = dict(globs)
        self._any_glob = re.compile(
            "|".join(translate(steps[-1]) for some in globs.values() for steps, _ in some)
        )
        """The patterns of last steps as one expression: most names match none, and are tested only
        once."""

    def find(self, steps: tuple[str, ...]) -> Code | None:
        """Return the entry of names that follow each other; None if there is none."""
        found = self.exact.get(steps)
        if found is not None or not self._any_glob.match(steps[-1]):
            return found
        candidates = self._globs.get(len(steps), ())
        return next((code for globs, code in candidates if _matches(steps, globs)), None)


_FILE = Path(__file__).with_suffix(".toml")


@cache
def _table() -> _Table:
    return _Table()


_IGNORED_BY_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF],
)
"""Code points that a Mac's file system ignores in names, so that `.g\\u200cit` is `.git` there."""

_SEPARATOR = re.compile(r"[/\\]")
"""A file's name with a backslash is a path on Windows."""

_SHORT_NAME = re.compile(r"[^.~]{1,6}~\d+(\.[^.]{0,3})?")
"""A name in the short form of Windows: `VSCODE~1` is `.vscode` there."""

_SHORT_NAME_CODE = Code("short_name", SHORT_NAME)


def plain(name: str) -> str:
    """Return a file's name in the form in which all file systems compare it.

    Case, the forms of Unicode, code points that a Mac ignores, and parts that Windows drops (a
    stream's name, dots and spaces at the end) make no difference.
    """
    if name.isascii():
        return name.lower().partition(":")[0].rstrip(" .")
    shown = unicodedata.normalize("NFKC", name.translate(_IGNORED_BY_HFS)).casefold()
    return unicodedata.normalize("NFKC", shown).partition(":")[0].rstrip(" .")


_QUIET = re.compile(
    r"\.(git(ignore|keep)|keep|(docker|eslint|prettier|npm)ignore|editorconfig|mailmap|coveragerc"
    r"|(python|node|ruby)-version|nvmrc|env\.(example|sample|template)|github)"
)  # the code of `.github` is in the table
"""Hidden names that no program executes."""


def is_unknown_hidden(path: str) -> bool:
    """Return whether a path has a hidden name that is not known here.

    Tools keep their configuration under such names, and new tools come faster than this table.
    """
    names = (plain(name) for name in _SEPARATOR.split(path))
    return any(name.startswith(".") and not _QUIET.fullmatch(name) for name in names)


def is_git_data(name: str) -> bool:
    """Return whether a name is `.git` on some file system, or begins a path into it on Windows."""
    return any(plain(part) in {".git", "git~1"} for part in name.split("\\"))


def why_code(path: str) -> str | None:
    """Return why a path, relative to the workspace, becomes code; None if it does not."""
    code = find_code(path)
    return None if code is None else code.reason


def find_code(path: str) -> Code | None:
    """Return the entry that makes a path in the workspace code; None if there is none."""
    table = _table()
    names = tuple(map(plain, _SEPARATOR.split(path)))
    for start in range(len(names)):
        if _SHORT_NAME.fullmatch(names[start]):
            return _SHORT_NAME_CODE
        for length in range(1, table.longest + 1):
            steps = names[start : start + length]
            if len(steps) == length and (code := table.find(steps)):
                return code
    return None


def find_code_entry(names: tuple[str, ...]) -> Code | None:
    """Return the entry that makes the last of consecutive names code; the names are `plain`.

    For a path in a folder that is code, the folder is found and not the path.
    """
    table = _table()
    lengths = range(1, min(len(names), table.longest) + 1)
    return next(filter(None, (table.find(names[-length:]) for length in lengths)), None)


def may_hold_code(path: str) -> bool:
    """Return whether a symlink at a path would make code of files that it leads to.

    The last name is in the table, or begins one of its entries: `.github -> ci` makes code of
    `ci/workflows`.
    """
    return plain(path.rpartition("/")[2]) in _table().first_steps or find_code(path) is not None


def _matches(steps: tuple[str, ...], globs: tuple[str, ...]) -> bool:
    return all(map(fnmatchcase, steps, globs))


def link_target(path: str, target: str) -> str:
    """Return the path, relative to the workspace, at which a symlink's target is."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def is_bare_repository(names: Iterable[str]) -> bool:
    """Return whether Git treats a folder with these names as a repository and obeys its `config`.

    A `commondir` file means that objects and refs are elsewhere.
    """
    found = {plain(name) for name in names}
    return "head" in found and ({"objects", "refs"} <= found or "commondir" in found)


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that a path is in, from its own to the workspace, which is empty."""
    names = path.split("/")
    for count in reversed(range(len(names))):
        yield "/".join(names[:count])
