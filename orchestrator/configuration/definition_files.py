"""The definition files: memory and skills in the folder of an agent definition.

A path in `memory` or `skills` that starts with `/` is one of the agent's files, such as a
repository's `/workspace/AGENTS.md`. Any other path is relative to the definition's folder; the file
is copied with the definition. Wherever the agent runs, it has the same relative path below one
folder, outside of the workspace and of its changes.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..regular_files import read_regular_file

FOLDER = "definition"
"""The folder of the copies: in the home of a sandbox, and at the top of a coordinator's files."""

MAX_FILES = 500
"""The most files of one definition: each is a write into every sandbox of the agent."""

MAX_BYTES = 16 * 1024**2
"""The most bytes of one definition: a sandbox's home is an eighth of its memory, 128 MiB by
default."""

_LEFT_OUT = {".git", "__pycache__"}


class UnusableDefinitionFile(ValueError):
    """A path relative to a definition cannot be used; the text names it and the reason."""


@dataclass(frozen=True, kw_only=True)
class DefinitionFile:
    """A file that is copied with a definition."""

    path: str
    """The path relative to the definition's folder."""
    data: bytes
    executable: bool


def is_relative(source: str) -> bool:
    """Return whether a source is a path relative to the definition's folder."""
    return not source.startswith("/")


def resolved_paths(sources: Sequence[str], folder: str) -> tuple[str, ...]:
    """Return the paths of `memory` or `skills` as the agent uses them.

    Args:
        sources: The paths in the definition.
        folder: The folder of the copied definition files.
    """
    return tuple(
        posixpath.normpath(posixpath.join(folder, source)) if is_relative(source) else source
        for source in sources
    )


class DefinitionFiles:
    """Collects the files of one definition.

    Args:
        folder: The folder that contains the definition.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, DefinitionFile] = {}
        self._left_bytes = MAX_BYTES

    @property
    def files(self) -> tuple[DefinitionFile, ...]:
        """The files added so far, each once."""
        return tuple(self._found.values())

    def add(self, source: str, kind: Literal["file", "folder"]) -> None:
        """Add one file, or all files below a folder.

        Args:
            source: Its path relative to the definition's folder.
            kind: The required kind, for messages.

        Raises:
            UnusableDefinitionFile: The source does not exist, is outside of the folder, or exceeds
                the limits of a definition.
        """
        top = self._inside(source)
        if not (top.is_file() if kind == "file" else top.is_dir()):
            raise UnusableDefinitionFile(f"there is no {kind} {source} next to the definition")
        try:
            for path in _list_files(top):
                name = path.relative_to(self._folder).as_posix()
                status = self._inside(name).stat()
                if not stat.S_ISREG(status.st_mode):
                    raise UnusableDefinitionFile(f"{name} is not a file, or links to a folder")
                if name not in self._found:
                    self._read(name, path, executable=bool(status.st_mode & stat.S_IXUSR))
        except OSError as error:
            raise UnusableDefinitionFile(f"{source} cannot be read: {error.strerror}") from error

    def _read(self, name: str, path: Path, *, executable: bool) -> None:
        size = path.stat().st_size
        if size > self._left_bytes or len(self._found) >= MAX_FILES:
            raise UnusableDefinitionFile(
                f"{name} exceeds the limit of a definition: {MAX_FILES} files, {MAX_BYTES} bytes"
            )
        data = read_regular_file(path, self._left_bytes)
        self._left_bytes -= len(data)
        self._found[name] = DefinitionFile(path=name, data=data, executable=executable)

    def _inside(self, source: str) -> Path:
        """Return the path of a source, which has to be inside of the folder."""
        path = self._folder / posixpath.normpath(source)
        try:
            leads_out = not path.resolve(strict=True).is_relative_to(self._folder.resolve())
        except FileNotFoundError:
            raise UnusableDefinitionFile(f"there is no {source} next to the definition") from None
        except (OSError, RuntimeError, ValueError) as error:  # a circle of links; NUL in the name
            raise UnusableDefinitionFile(f"{source!r} cannot be read") from error
        if leads_out or ".." in Path(source).parts:
            raise UnusableDefinitionFile(f"{source} leads out of the definition's folder")
        return path


def _list_files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or all files below a folder.

    A link to a folder is yielded as a file, for the caller to refuse.
    """
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path, onerror=_raise):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = sorted(set(folders) - set(links) - _LEFT_OUT)
        yield from (Path(folder, name) for name in sorted([*names, *links]))


def _raise(error: OSError) -> None:
    raise error
