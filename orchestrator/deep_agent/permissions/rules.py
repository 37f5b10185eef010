"""Rules for files and commands: allow, deny or ask; by path, by operation, by predicate."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from wcmatch import glob

from fanout.orchestrator.path_text import path_glob

Operation = Literal["read", "write", "execute"]
"""Deleting is writing; names in listings and lines of searches are reading."""

Mode = Literal["allow", "deny", "ask"]

_STRICTER: dict[Mode, int] = {"allow": 0, "ask": 1, "deny": 2}
_FLAGS = glob.GLOBSTAR | glob.BRACE | glob.DOTGLOB | glob.FORCEUNIX
EVERYTHING = ("/**",)


@dataclass(frozen=True)
class Access:
    """What an agent is about to do."""

    operation: Operation
    path: str = ""
    """Absolute, without `.` and `..`; empty for `execute`."""
    command: str = ""
    """Of `execute`."""


class Permission(BaseModel):
    """One rule. Of a list the first that matches decides; what none matches is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Mode
    paths: tuple[str, ...] = Field(default=EVERYTHING, min_length=1)
    """Globs of absolute paths; one that matches a directory holds for everything in it."""
    operations: tuple[Operation, ...] = Field(default=("read", "write"), min_length=1)
    when: Callable[[Access], bool] | None = None
    """A further condition. It is called often, also for each name of a listing: it has to be quick,
    and the same for the same access."""

    @model_validator(mode="after")
    def _has_possible_paths(self) -> Self:
        for path in self.paths:
            if not path.startswith(("/", "**/")) or {".", ".."} & set(path.split("/")):
                raise ValueError(
                    f"{path!r} is no path of a rule: begin with / or **/, without . and .."
                )
        if self.paths != EVERYTHING and "execute" in self.operations:
            raise ValueError(
                "a rule with paths cannot be for execute, because a command names no path: make "
                "one rule for read and write, and one for execute"
            )
        return self

    def matches(self, access: Access) -> bool:
        """Return whether the rule is about this access."""
        if access.operation not in self.operations:
            return False
        if access.operation != "execute" and not _is_within(access.path, self.paths):
            return False
        return self.when is None or self.when(access)


class Permissions:
    """The rules of an agent and of those that delegated to it: each list can only be stricter.

    Args:
        lists: One list of rules for each of them.
    """

    def __init__(self, lists: Sequence[Sequence[Permission]]) -> None:
        self.lists = tuple(tuple(rules) for rules in lists if rules)

    def mode(self, access: Access) -> Mode:
        """Return what is done about an access: the strictest of what the lists say."""
        found: list[Mode] = ["allow"]
        for rules in self.lists:
            found += [rule.mode for rule in rules if rule.matches(access)][:1]
        return max(found, key=_STRICTER.__getitem__)

    @property
    def guard_files(self) -> bool:
        """Whether some file may not be read or written, or only after a question."""
        return any(
            rule.mode != "allow" and {"read", "write"} & set(rule.operations)
            for rules in self.lists
            for rule in rules
        )

    @property
    def name_commands(self) -> bool:
        """Whether a rule is about commands."""
        return any("execute" in rule.operations for rules in self.lists for rule in rules)

    @property
    def allow_no_command(self) -> bool:
        """Whether every command is denied."""
        first = (
            next((rule for rule in rules if "execute" in rule.operations), None)
            for rules in self.lists
        )
        return any(rule is not None and rule.mode == "deny" and not rule.when for rule in first)


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    expressions, _ = glob.translate([*map(path_glob, patterns)], flags=_FLAGS)
    return tuple(re.compile(expression) for expression in expressions)


@lru_cache(maxsize=4096)
def _is_within(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path, or a directory above it, matches one of the patterns."""
    while True:
        names = (path, path.rstrip("/") + "/")  # `/a/**` is about `/a` too
        if any(each.match(name) for each in _compiled(patterns) for name in names):
            return True
        if path in {"/", ""}:
            return False
        path = posixpath.dirname(path)
