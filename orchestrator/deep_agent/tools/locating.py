"""The file that a path of the model means, and what to say of a path that is wrong."""

from __future__ import annotations

import asyncio
import difflib
import errno
import posixpath
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ..backends import matching
from ..backends.protocol import AccessRefused, Backend
from ..failures import ToolMistake

MAX_HINTS = 3
"""Paths that a hint names: more is a search, for which there is glob."""

MAX_COMPARED_FILES = 5_000
"""Files whose names are compared with a missing one: a hint may not cost what a search costs."""

HINT_SECONDS = 0.5
"""How long the walk for a hint may take."""

LEAST_SIMILARITY = 0.75
"""The least similarity of names, in `difflib`'s measure: a typing error, not another file."""

_MESSAGES = {
    errno.EROFS: "Permission denied, the file system is read-only",
    errno.ENOSPC: "No space is left, delete what is not needed",
    errno.EDQUOT: "No space is left, delete what is not needed",
    errno.ELOOP: "The path leads in circles",
    errno.EINVAL: "Not a regular file",
    errno.ENXIO: "Not a regular file",
    errno.ENAMETOOLONG: "The path is too long",
}
"""Messages for errors of paths that have no exception class."""


class Locator:
    """Resolves the model's paths on a backend, and explains the errors that they cause.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def resolved(self, path: str) -> str:
        """Return the normalised absolute path; a relative one is below the search root.

        Raises:
            ToolMistake: The tools do not accept the path.
        """
        return matching.checked_path(path, self._backend.search_root)

    def search_bases(self, path: str) -> Sequence[str]:
        """Return where to search: `/` means all files of the agent, not the whole container.

        Raises:
            ToolMistake: The tools do not accept the path.
        """
        path = self.resolved(path)
        return matching.search_roots(self._backend) if path == "/" else [path]

    @asynccontextmanager
    async def errors(self, path: str) -> AsyncIterator[None]:
        """Translate errors that a wrong path causes into a ToolMistake; others are unchanged.

        Args:
            path: The resolved path.

        Raises:
            ToolMistake: The path is wrong.
        """
        try:
            yield
        except FileNotFoundError:
            hint = await self._near_names(path)
            raise ToolMistake(f"Error: file not found: {path}{hint}") from None
        except IsADirectoryError:
            raise ToolMistake(f"{path} is a directory, not a file.") from None
        except NotADirectoryError:
            raise ToolMistake(
                f"{path} is not a directory, or one of its parents is a file."
            ) from None
        except FileExistsError:
            raise ToolMistake(f"Something else is already at {path}.") from None
        except AccessRefused as refusal:
            raise ToolMistake(str(refusal)) from None
        except PermissionError as error:
            hint = await self._place_of_files(path)
            reason = _MESSAGES.get(error.errno or 0, "Permission denied")
            raise ToolMistake(f"{reason}: {path}{hint}") from None
        except OSError as error:
            if error.errno not in _MESSAGES:
                raise
            raise ToolMistake(f"{_MESSAGES[error.errno]}: {path}") from None

    async def _place_of_files(self, path: str) -> str:
        """Return where the files are, if the path leads elsewhere and to nothing."""
        root = self._backend.search_root
        top = f"/{path.split('/')[1]}"
        if top == "/" or root == "/" or root.startswith(top) or await self._exists(top):
            return ""
        return f". Your files are under {root}."

    async def _near_names(self, path: str) -> str:
        """Return a hint with existing paths that may be meant; empty without any."""
        root = self._backend.search_root
        if root != "/" and not path.startswith(root + "/") and await self._exists(root + path):
            return f". Did you mean {root + path}?"
        try:
            walk = await self._backend.walk(
                root, max_entries=MAX_COMPARED_FILES, timeout_seconds=HINT_SECONDS
            )
        except (OSError, ToolMistake):
            return ""
        existing = [entry.path for entry in walk.entries if entry.path != path]  # a link to nothing
        near = await asyncio.to_thread(_nearest, path, existing, root)
        return f". Did you mean {' or '.join(near)}?" if near else ""

    async def _exists(self, path: str) -> bool:
        try:
            await self._backend.stat(path)
        except (OSError, ToolMistake):
            return False
        return True


def _nearest(path: str, existing: Sequence[str], root: str) -> list[str]:
    """Return the paths with the same name as a missing one, else with a similar one."""
    below = {*existing, *(parent for each in existing for parent in _parents(each, root))}
    by_name: dict[str, list[str]] = {}
    for each in below:
        by_name.setdefault(posixpath.basename(each).casefold(), []).append(each)
    wanted = posixpath.basename(path).casefold()
    names = (
        [wanted]
        if wanted in by_name
        else difflib.get_close_matches(wanted, sorted(by_name), MAX_HINTS, LEAST_SIMILARITY)
    )
    found = [each for name in names for each in sorted(by_name[name])]
    similarity = difflib.SequenceMatcher(b=path)

    def unlikeness(candidate: str) -> float:
        similarity.set_seq1(candidate)
        return -similarity.quick_ratio()

    return sorted(found, key=unlikeness)[:MAX_HINTS]


def _parents(path: str, root: str) -> list[str]:
    """Return the directories between a root and a path below it."""
    parents = []
    while (path := posixpath.dirname(path)) not in {"/", root}:
        parents.append(path)
    return parents
