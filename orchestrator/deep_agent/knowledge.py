"""The files that are put into an agent's instruction: where they are, and their faults."""

from __future__ import annotations

import codecs
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from google.adk.agents.readonly_context import ReadonlyContext

from ..logs import Logger
from .backends import matching
from .backends.protocol import Backend
from .backends.state import DictState, state_copy
from .failures import ToolMistake
from .middleware import BackendSource

MISSING = (FileNotFoundError, NotADirectoryError)
"""A backend's errors for a missing source, which is no fault: not every project has one."""

log = Logger(__name__)

Notify = Callable[[str], Awaitable[None]]
"""Is given a sentence for the person who runs an agent, once for each thing to know."""


@dataclass(frozen=True)
class _Reading:
    """The context for a `BackendSource`: a copy of the state of one of ADK's contexts."""

    state: DictState


class Sources:
    """Paths of knowledge on an agent's files; relative ones are below the files' own root.

    Args:
        paths: The paths in order; duplicates count once.

    Raises:
        ValueError: A path is invalid.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self.on("/")

    def on(self, root: str) -> tuple[str, ...]:
        """Return the normalised absolute paths.

        Args:
            root: The root of the agent's own files, which is known when they are found.

        Raises:
            ValueError: A path is invalid.
        """
        try:
            return tuple(dict.fromkeys(_absolute(path, root) for path in self._paths))
        except ToolMistake as mistake:
            raise ValueError(str(mistake)) from None


def _absolute(path: str, root: str) -> str:
    is_relative = (
        bool(path.strip()) and not path.startswith(("/", "~", "\\")) and ":" not in path[:2]
    )
    return matching.checked_path(posixpath.join(root, path) if is_relative else path)


def text_of(data: bytes) -> str:
    """Return the text of a file: UTF-8, or UTF-16 with its mark, as some programs of Windows write.

    What is neither is replaced.
    """
    marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    return data.decode(marks.get(data[:2], "utf-8"), "replace").lstrip("\ufeff")


def files_to_read(backend_of: BackendSource, context: ReadonlyContext) -> Backend:
    """Return the agent's current files, for reading only: changes would be lost."""
    return backend_of(_Reading(state_copy(context.state)))


@dataclass(frozen=True)
class Notice:
    """One thing to know of a file."""

    event: str
    """What happened, for the log."""
    path: str
    fault: str
    """Why; nothing of the file is quoted."""

    def __str__(self) -> str:
        return f"{self.event}: {self.path}: {self.fault}."


class Notices:
    """Notifies of each thing once, and not before every model call.

    Args:
        notify: Gets each notice, besides the log; None for nobody.
    """

    def __init__(self, notify: Notify | None) -> None:
        self._notify = notify
        self._told: set[Notice] = set()

    async def tell(self, notices: Iterable[Notice]) -> None:
        """Tell what is new among all that is to be known now."""
        now = list(dict.fromkeys(notices))
        new = [notice for notice in now if notice not in self._told]
        self._told = set(now)
        for notice in new:
            log.warning(notice.event, path=notice.path, fault=notice.fault)
            if self._notify is not None:
                await self._notify(str(notice))
