"""The place of the configuration: a TOML file with, in the same folder, a `.env` and `agents/`.

It is the file that FANOUT_CONFIG names (`fanout --config FILE` sets it), otherwise
`fanout/config.toml` in the XDG configuration folder. Nothing is read from the working directory,
which may be a workspace: its authors must not configure fanout.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values

from ..process_secrets import inherited_environment
from ..valid_text import not_utf_8

VARIABLE = "FANOUT_CONFIG"
"""The variable that names the file, for this process and for all that it starts."""

SETTINGS_PREFIX = "FANOUT_"

_KEY_ENDS = ("_API_KEY", "_APPLICATION_CREDENTIALS")
"""The endings of the names of variables that hold keys for models' services."""


class UnusableConfiguration(ValueError):
    """The configuration cannot be read; the text names the file and the reason."""


@dataclass(frozen=True)
class ConfigurationFile:
    """The configuration file and the files next to it; each of them may be missing.

    Args:
        path: The TOML file.
    """

    path: Path

    @property
    def env(self) -> Path:
        """Settings and keys of models, written as environment variables."""
        return self.path.parent / ".env"

    @property
    def agents(self) -> Path:
        """The user's agent definitions, unless a setting names another folder."""
        return self.path.parent / "agents"


def configuration_file() -> ConfigurationFile | None:
    """Return the configuration file; None if this user cannot have one.

    Raises:
        UnusableConfiguration: The file that FANOUT_CONFIG names is missing, or one of the files
            cannot be read.
    """
    named, path = os.environ.get(VARIABLE), configuration_path()
    if path is None:
        return None
    if named and not path.exists():
        raise UnusableConfiguration(
            f"There is no configuration file {path}: correct --config or {VARIABLE}."
        )
    found = ConfigurationFile(path)
    for file in (found.path, found.env):
        _check_readable(file)
    return found


def configuration_path() -> Path | None:
    """Return the path of the file, which may not exist; None if this user cannot have one."""
    named = os.environ.get(VARIABLE)
    return absolute(Path(named)) if named else _default_path()


def default_agents() -> Path | None:
    """Return the folder of agents next to the file, whether it exists or not; None as above."""
    path = configuration_path()
    return None if path is None else ConfigurationFile(path).agents


def export_keys(earlier: Mapping[str, str] | None = None) -> dict[str, str]:
    """Set the other variables of the `.env`, such as keys of models, in `os.environ`.

    Models' clients read their keys there; children inherit none of them (`process_secrets`). A
    variable that is set already keeps its value.

    Args:
        earlier: The result of an earlier call; these variables are replaced, or removed.

    Returns:
        The variables that have their value from the file.

    Raises:
        UnusableConfiguration: See `configuration_file`.
    """
    found, before = configuration_file(), earlier or {}
    try:
        values = dotenv_values(found.env, interpolate=False) if found else {}
    except UnicodeDecodeError as error:
        raise UnusableConfiguration(f"{found and found.env}: {not_utf_8(error)}.") from None
    given: dict[str, str] = {}
    for name, value in values.items():
        is_ours = os.environ.get(name) in {None, value, before.get(name)}
        if value and is_ours and not name.upper().startswith(SETTINGS_PREFIX):
            os.environ[name] = given[name] = value
            if name not in inherited_environment():
                os.unsetenv(name)  # `os.environ` keeps it
    for name in before.keys() - given.keys():
        if os.environ.get(name) == before[name]:
            del os.environ[name]
    return given


def key_names() -> tuple[str, ...]:
    """Return the names of the variables of this process that are keys of models."""
    return tuple(sorted(name for name in os.environ if name.endswith(_KEY_ENDS)))


def secret_variables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the variables that set secrets of these names."""
    return tuple(sorted(f"{SETTINGS_PREFIX}SECRETS__{name}" for name in names))


def absolute(path: Path) -> Path:
    """Return a path without `..` and without links to folders; the file may be a link."""
    path = path.expanduser()
    return path.parent.resolve() / path.name


def _default_path() -> Path | None:
    """Return the path in the user's XDG folder, which must be absolute by its standard."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no user of this id
        home = Path()
    for folder in (Path(os.environ.get("XDG_CONFIG_HOME", "")), home / ".config"):
        if folder.is_absolute():
            return folder / "fanout" / "config.toml"
    return None


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise UnusableConfiguration(f"{file} cannot be read: {error.strerror}.") from error
