"""The files that an agent definition brings along: memory and skills beside its yaml.

A path in `memory` or `skills` that starts with `/` is one of the agent's own files, such as a
repository's `/workspace/AGENTS.md`. Any other is beside the definition and travels with it:
wherever the agent runs, it appears under the same relative path in one folder, outside of the
workspace and of its changes.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "definition"
"""Where the files appear: in the home of a sandbox, and at the top of a coordinator's files."""

MAX_FILES = 500
"""Of one definition: each is a write into every sandbox of the agent."""

MAX_BYTES = 16 * 1024**2
"""Of one definition: a sandbox's home is an eighth of its memory, 128 MiB by default."""

_LEFT_OUT = {".git", "__pycache__"}


class UnusableOwnFile(ValueError):
    """A path beside a definition cannot be used; the text names it and says why."""


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A file that a definition brings along."""

    path: str
    """Relative to the definition's folder."""
    data: bytes
    executable: bool


def is_own(source: str) -> bool:
    """Whether a source is beside the definition."""
    return not source.startswith("/")


def placed(sources: Sequence[str], folder: str) -> tuple[str, ...]:
    """The paths by which an agent knows its sources when its own files appear in `folder`."""
    return tuple(
        posixpath.normpath(posixpath.join(folder, source)) if is_own(source) else source
        for source in sources
    )


class OwnFiles:
    """Gathers the files of one definition from the folder that it is in."""

    def __init__(self, beside: Path) -> None:
        self._beside = beside
        self._found: dict[str, OwnFile] = {}
        self._left_bytes = MAX_BYTES

    @property
    def files(self) -> tuple[OwnFile, ...]:
        """What has been added, each file once."""
        return tuple(self._found.values())

    def add_file(self, source: str) -> None:
        """Add one file; UnusableOwnFile when it is missing, leads out of the folder, or is too large."""
        if not _inside(self._beside, source).is_file():
            raise UnusableOwnFile(f"there is no file {source} beside the definition")
        self._add(source)

    def add_folder(self, source: str) -> None:
        """Add all files below a folder; UnusableOwnFile as for one file."""
        if not _inside(self._beside, source).is_dir():
            raise UnusableOwnFile(f"there is no folder {source} beside the definition")
        self._add(source)

    def _add(self, source: str) -> None:
        try:
            for path in _files_of(_inside(self._beside, source)):
                name = path.relative_to(self._beside).as_posix()
                status = _inside(self._beside, name).stat()
                if not stat.S_ISREG(status.st_mode):
                    raise UnusableOwnFile(f"{name} is no file, or a link to a folder")
                if name not in self._found:
                    self._take(name, path, executable=bool(status.st_mode & stat.S_IXUSR))
        except OSError as error:
            raise UnusableOwnFile(f"{source} cannot be read: {error.strerror}") from error

    def _take(self, name: str, path: Path, *, executable: bool) -> None:
        with path.open("rb") as file:
            data = file.read(self._left_bytes + 1)
        self._left_bytes -= len(data)
        if self._left_bytes < 0 or len(self._found) >= MAX_FILES:
            raise UnusableOwnFile(
                f"with {name} it is too much: {MAX_FILES} files, {MAX_BYTES} bytes is all a definition brings"
            )
        self._found[name] = OwnFile(path=name, data=data, executable=executable)


def _files_of(path: Path) -> Iterator[Path]:
    """The file itself, or all files below a folder.

    A link to a folder counts as a file, and is refused.
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


def _inside(beside: Path, source: str) -> Path:
    """The place of a source, which neither by `..` nor by a link is outside of the definition's folder."""
    path = beside / posixpath.normpath(source)
    try:
        leads_out = not path.resolve(strict=True).is_relative_to(beside.resolve())
    except FileNotFoundError:
        raise UnusableOwnFile(f"there is no {source} beside the definition") from None
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links; NUL in the name
        raise UnusableOwnFile(f"{source!r} cannot be read") from error
    if leads_out or ".." in Path(source).parts:
        raise UnusableOwnFile(f"{source} leads out of the definition's folder")
    return path
