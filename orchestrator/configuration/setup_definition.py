"""The set-up of a prepared environment: the key `setup` of a definition, or a repository's file.

The repository's file has the same form, without `credentials`. It is not trusted: what it asks for
is bounded here, and whoever runs it gives it no more than the agent's jobs may have.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from ..jobs.spec import ShellCommand, WireModel
from ..spelling import did_you_mean
from .credentials import CredentialDefinition

REPOSITORY_FILE = ".fanout/environment.yaml"
"""The path of the repository's own set-up, relative to the workspace."""
MAX_FILE_BYTES = 64 * 1024
"""The largest such file: far more than commands need; longer ones belong into a script."""
DEFAULT_SECONDS = 900.0
"""The default time of a set-up: a quarter of an hour is ample for the packages of most projects."""
MAX_SECONDS = 4 * 3600.0
"""The maximum: a compiler is built in less."""
MAX_ENTRIES = 100
"""The most commands, hosts or key files."""
QUOTED_CHARACTERS = 60
"""Of an unknown key in an error."""


def _relative_path(path: str) -> str:
    folders = path.split("/")
    if posixpath.normpath(path) != path or path.startswith("/") or {"..", ".", ".git"} & {*folders}:
        raise ValueError(f"{path[:200]!r} is not a file's path relative to the workspace")
    return path


KeyFile = Annotated[
    str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_relative_path)
]
Host = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class UnusableSetup(ValueError):
    """A repository's file is no set-up; the text is a sentence that says what is wrong with it."""


class RepositorySetup(WireModel):
    """The commands that prepare an environment, and what their result depends on."""

    commands: tuple[ShellCommand, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Run in their order, each in a shell in `/workspace`; the first that fails ends the set-up."""
    network: tuple[Host, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """The hosts that they may reach, as of the key `network`."""
    key_files: tuple[KeyFile, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """The files, relative to the workspace, whose contents decide whether an environment that
    exists is used: lock files above all."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=MAX_SECONDS)
    """The time of all commands together, which is not the job's; None: 15 minutes."""


class SetupDefinition(RepositorySetup):
    """The set-up of an agent's jobs."""

    credentials: tuple[CredentialDefinition, ...] = ()
    """The headers that the worker's proxy adds to requests of these commands to hosts of `network`;
    secrets are only named."""

    @model_validator(mode="after")
    def _reaches_the_hosts_of_its_credentials(self) -> Self:
        for credential in self.credentials:
            if not credential.is_within(self.network):
                raise ValueError(f"credentials: add {credential.host} to network")
        if len({credential.address for credential in self.credentials}) < len(self.credentials):
            raise ValueError("credentials: each host has one entry")
        return self


class _Loader(yaml.SafeLoader):
    """A loader without aliases: a few lines of them stand for more data than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return a node."""
        if self.check_event(yaml.AliasEvent):
            raise UnusableSetup("it uses an alias (*): write the value out.")
        return super().compose_node(parent, index)


def read_repository_setup(content: bytes) -> RepositorySetup:
    """Return the set-up of a repository's file; blocks for a moment.

    Args:
        content: That of the file; not trusted.

    Raises:
        UnusableSetup: It is none.
    """
    try:
        return _validated(content)
    except UnusableSetup as error:
        raise UnusableSetup(f"{REPOSITORY_FILE} of the workspace cannot be used: {error}") from None


def _validated(content: bytes) -> RepositorySetup:
    if len(content) > MAX_FILE_BYTES:
        raise UnusableSetup(f"it has more than {MAX_FILE_BYTES:,} bytes.")
    try:
        data = yaml.load(content.decode(), _Loader)  # noqa: S506 - it is a safe one
    except UnusableSetup:
        raise
    except UnicodeDecodeError:
        raise UnusableSetup("it is not UTF-8.") from None
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise UnusableSetup(f"it is not YAML{line}.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UnusableSetup("it is not YAML.") from None
    if data is None:
        return RepositorySetup()
    if not isinstance(data, dict):
        raise UnusableSetup("it has to be a mapping with commands, network, key_files, …")
    try:
        return RepositorySetup.model_validate(data)
    except ValidationError as error:
        raise UnusableSetup(_problem(error.errors(include_input=False)[0])) from None


def _problem(detail: Any) -> str:
    where = ".".join(str(step)[:QUOTED_CHARACTERS] for step in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = RepositorySetup.model_fields
        question = did_you_mean(where, known)
        return f"it has an unknown key {where!r}.{question} Known are {', '.join(known)}."
    return f"{where or 'it'}: {detail['msg'].removeprefix('Value error, ')}."
