"""A Git configuration as data: nothing in it is carried out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ...git.process import GitFailed, run_git
from ...regular_files import read_regular_file

_MAX_RULES_BYTES = 1024**2
"""The largest configuration or file of ignore rules: no person writes a longer one."""

_EXCLUDES_FILE = b"excludesfile"
"""The setting of the excludes file in each configuration that has it, in any case of letters."""

_MAX_INCLUDED = 32
"""Files of settings that are read: a person has a handful."""

_MAX_PARSED = 32
"""The most configurations whose settings are kept in memory: those of a few repositories and of a
person. Each merge into a folder needs them, and a process of Git takes longer than merging a file.
"""


class RepositoryUnreadable(Exception):
    """A repository's data cannot be read; the text says why."""


def read_settings(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Return the names and values of all settings that apply, or may apply, in a repository.

    They are read as data from its configuration, the person's and the machine's, and from the files
    that these include, under whatever condition. A file that cannot be read is left out.

    Args:
        files: The repository's configuration.
    """
    pending, seen = [*files, *personal_configurations()], set[Path]()
    settings: list[tuple[str, str]] = []
    while pending and len(seen) < _MAX_INCLUDED:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        with suppress(RepositoryUnreadable):
            found = _pairs(read_data(path))
            settings += found
            pending += [
                path.parent / os.path.expanduser(value)  # noqa: PTH111 - an unknown home stays
                for name, value in found
                if value and name.startswith(("include.", "includeif.")) and name.endswith(".path")
            ]
    return settings


def parse_configuration(content: bytes) -> dict[str, str]:
    """Return a configuration's values by name; of several values of one name the last one.

    Nothing in it is carried out, and no file that it includes is read.

    Args:
        content: The configuration.

    Raises:
        RepositoryUnreadable: It is not a configuration.
    """
    return dict(_pairs(content))


@lru_cache(_MAX_PARSED)
def _pairs(content: bytes) -> tuple[tuple[str, str], ...]:
    if not content.strip():  # Git takes a while to start
        return ()
    try:
        _, listed = run_git(
            ["config", "--file", "-", "--no-includes", "--null", "--list"],
            folder=Path("/"),
            stdin=content,
        )
    except GitFailed as error:
        raise RepositoryUnreadable(str(error)) from error
    pairs = (os.fsdecode(entry).partition("\n") for entry in listed.split(b"\0") if entry)
    return tuple((name, value) for name, _, value in pairs)


def excludes_file(settings: Mapping[str, str]) -> Path:
    """Return the file of the ignore rules that a person has for all repositories."""
    value = settings.get("core.excludesfile")
    for path in personal_configurations():
        content = b"" if value else read_data(path)
        if _EXCLUDES_FILE in content.lower():  # Git takes a while to start
            value = parse_configuration(content).get("core.excludesfile")
    return Path(os.path.expanduser(value)) if value else personal_folder() / "ignore"  # noqa: PTH111 - as above


def read_data(path: Path, max_bytes: int = _MAX_RULES_BYTES) -> bytes:
    """Return a file's content; nothing if it does not exist.

    Args:
        path: The file.
        max_bytes: The largest size.

    Raises:
        RepositoryUnreadable: It is not a file, cannot be read, or is too long.
    """
    try:
        return read_regular_file(path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except ValueError as error:
        raise RepositoryUnreadable(f"{path} cannot be read") from error
    except OSError as error:
        raise RepositoryUnreadable(f"{path} cannot be read: {error.strerror}") from error


def personal_configurations() -> tuple[Path, ...]:
    """Return the files of a person's and the machine's Git configuration, the nearest first."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - a home that is unknown is no failure
    return (home / ".gitconfig", personal_folder() / "config", Path("/etc/gitconfig"))


def personal_folder() -> Path:
    """Return the folder in which Git looks for a person's files without being configured."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - as above
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
