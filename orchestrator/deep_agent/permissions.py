"""Rules for files and commands: allow, deny or ask; by path, by operation, by predicate.

A backend keeps the rules, under all of the agent's tools. What may not be read does not appear in
listings and searches. A link is judged by its own path and by where it leads. A search that would
look into a file which needs a question asks it first: without the file its answer would be wrong. A
command is not covered by rules for paths, so an agent with both needs a rule for `execute` as well.

A tool finds out what it touches while it runs. What needs a question raises; the call becomes a
request, and runs again, whole, when a person has approved exactly this call.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self
from weakref import WeakSet

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import BaseModel, ConfigDict, Field, model_validator
from wcmatch import glob

from ..approvals import Decision, fingerprint
from ..path_text import path_glob
from .approval import (
    PendingApproval,
    find_response,
    read_answer,
    replacing_result,
    request_approval,
)
from .backends.matching import real_path, search_roots
from .backends.protocol import (
    AccessRefused,
    Backend,
    Entry,
    Execution,
    Hits,
    OutputSink,
    Shell,
    Walk,
)
from .failures import ApprovalRequired
from .middleware import Middleware
from .prompts import RULES_AND_SHELL
from .tool import CheckedTool

Operation = Literal["read", "write", "execute"]
"""Deleting is writing; names in listings and lines of searches are reading."""

Mode = Literal["allow", "deny", "ask"]

_STRICTER: dict[Mode, int] = {"allow": 0, "ask": 1, "deny": 2}
_FLAGS = glob.GLOBSTAR | glob.BRACE | glob.DOTGLOB | glob.FORCEUNIX
EVERYTHING = ("/**",)

MAX_WALKED = 100_000
"""The files that a walk or a search looks at, those included that the agent may not see."""

MAX_DELETED = 10_000
"""The files of a directory that is deleted: each has to be checked before the first is gone."""

_DECISIONS: tuple[Decision, ...] = ("approve", "reject")


@dataclass(frozen=True)
class Access:
    """What an agent is about to do."""

    operation: Operation
    path: str = ""
    """Absolute, without `.` and `..`; empty for `execute`."""
    command: str = ""
    """The command of `execute`."""


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


@dataclass(frozen=True)
class Consent:
    """What a person has said about the call that uses a backend."""

    given: bool = False
    """They approved exactly this call."""
    possible: bool = False
    """They can be asked; otherwise what needs a question is refused."""


class PermittedBackend:
    """Another backend's files, as far as rules allow. Create it with `permitted`.

    Args:
        backend: The files.
        permissions: The rules.
        consent: What a person has said.
    """

    def __init__(self, backend: Backend, permissions: Permissions, consent: Consent) -> None:
        self._backend = backend
        self._permissions = permissions
        self._consent = consent

    @property
    def search_root(self) -> str:
        """The search root of the files."""
        return self._backend.search_root

    @property
    def other_roots(self) -> Sequence[str]:
        """See `paths.search_roots`."""
        return search_roots(self._backend)[1:]

    async def real_path(self, path: str) -> str:
        """Return a path with its links resolved."""
        return await real_path(self._backend, path)

    async def stat(self, path: str) -> Entry:
        await self._check("read", path)
        return await self._backend.stat(path)

    async def list(self, path: str) -> Sequence[Entry]:
        real = await self._check("read", path)
        entries = await self._backend.list(path)
        return [entry for entry in entries if self._shows(entry.path, path, real)]

    async def read_bytes(self, path: str, max_bytes: int, *, offset: int = 0) -> bytes:
        await self._check("read", path)
        return await self._backend.read_bytes(path, max_bytes, offset=offset)

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        await self._check("write", path)
        await self._backend.write_bytes(path, data, create_only=create_only)

    async def delete(self, path: str) -> None:
        parent = await real_path(self._backend, posixpath.dirname(path))
        itself = posixpath.join(parent, posixpath.basename(path))  # a link is removed, not followed
        self._judge("write", path, itself)
        await self._check_below(path, itself)
        await self._backend.delete(path)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        real = await self._check("read", path)
        walk = await self._backend.walk(
            path, max_entries=max(max_entries, MAX_WALKED), timeout_seconds=timeout_seconds
        )
        entries = [entry for entry in walk.entries if self._shows(entry.path, path, real)]
        return walk.first(entries, max_entries)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        real = await self._check("read", path)
        complete = True
        if only is None and (await self._backend.stat(path)).kind == "directory":
            walk = await self.walk(path, max_entries=MAX_WALKED, timeout_seconds=timeout_seconds)
            only, complete = [entry.path for entry in walk.entries], walk.complete
        if only is not None:
            only = [name for name in only if self._shows(name, path, real)]
            for name in only:
                self._judge("read", name, _moved(name, path, real))
        found = await self._backend.grep(
            text, path, only=only, max_hits=max_hits, timeout_seconds=timeout_seconds
        )
        return replace(found, complete=found.complete and complete)

    async def _check(self, operation: Operation, path: str) -> str:
        """Refuse an access or ask for it; return the path with its links resolved."""
        self._judge(operation, path)
        real = await real_path(self._backend, path)
        self._judge(operation, path, real)
        return real

    def _judge(self, operation: Operation, path: str, real: str | None = None) -> None:
        """Refuse what one of a path's names is not allowed, or ask for it.

        Raises:
            AccessRefused: A rule denies it.
            ApprovalRequired: A person has to be asked.
        """
        for name in {path, real or path}:
            self._decide(Access(operation, name), f"{operation} {path}")

    def _decide(self, access: Access, what: str) -> None:
        mode = self._permissions.mode(access)
        if mode == "deny":
            raise AccessRefused(
                f"A rule does not let you {what}. Do without it; do not look for another way."
            )
        if mode == "ask" and not self._consent.given:
            if self._consent.possible:
                raise ApprovalRequired(f"A rule wants a person to be asked: {what}.")
            raise AccessRefused(f"A rule does not let you {what} without asking a person.")

    def _shows(self, name: str, path: str, real: str) -> bool:
        names = {name, _moved(name, path, real)}
        return all(self._permissions.mode(Access("read", each)) != "deny" for each in names)

    async def _check_below(self, path: str, real: str) -> None:
        """Check everything in a directory that is to be deleted.

        What the agent may not read it may not delete with its directory either.
        """
        waiting, checked = [path], 0
        while waiting:
            try:
                entries = await self._backend.list(waiting.pop())
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                checked += 1
                if checked > MAX_DELETED:
                    raise AccessRefused(
                        f"{path} holds more than {MAX_DELETED} files, too many to check against "
                        "the rules: delete parts of it."
                    )
                moved = _moved(entry.path, path, real)
                self._judge("write", entry.path, moved)
                self._judge("read", entry.path, moved)
                if entry.kind == "directory":
                    waiting.append(entry.path)


class PermittedShell(PermittedBackend):
    """The same with the backend's shell."""

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        self._decide(Access("execute", command=command), "execute this command")
        shell = self._backend
        if not isinstance(shell, Shell):
            raise TypeError("the backend has no shell")
        return await shell.execute(command, timeout_seconds, max_output_bytes, on_output)


def permitted(backend: Backend, permissions: Permissions, consent: Consent) -> Backend:
    """Return a backend's files as far as rules allow, with its shell if one may be used.

    Without a word about commands there is no shell where rules guard files.
    """
    if not permissions.lists:
        return backend
    unsaid = permissions.guard_files and not permissions.name_commands
    has_shell = isinstance(backend, Shell) and not unsaid and not permissions.allow_no_command
    return (PermittedShell if has_shell else PermittedBackend)(backend, permissions, consent)


def _moved(name: str, path: str, real: str) -> str:
    """Return a path below another one as it is below the other's real path."""
    top = path.rstrip("/")
    return real.rstrip("/") + name[len(top) :] if name.startswith(top + "/") else real


class PermissionGate(Middleware):
    """The permissions of one agent.

    Args:
        lists: Its own rules and those of the agents that delegated to it, a list for each.
    """

    def __init__(self, lists: Sequence[Sequence[Permission]]) -> None:
        self.permissions = Permissions(lists)
        self._approved: WeakSet[Any] = WeakSet()

    def check_shell(self) -> None:
        """Refuse rules for files together with a shell that they do not mention.

        Raises:
            ValueError: There is no rule for execute.
        """
        if self.permissions.guard_files and not self.permissions.name_commands:
            raise ValueError(
                "These permissions do not keep a shell from files: a command reads and writes what "
                "it likes. Add a rule for it: Permission(mode='deny', operations=['execute']) takes "
                "the shell away, 'ask' lets a person see each command, and 'allow' says that you "
                "accept it."
            )

    def files(self, backend: Backend, context: Any) -> Backend:
        """Return an agent's files for a context of ADK, as far as the rules allow."""
        possible = bool(getattr(context, "function_call_id", None))
        consent = Consent(given=possible and context in self._approved, possible=possible)
        return permitted(backend, self.permissions, consent)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Say that commands are not a way around the rules."""
        del context
        has_shell = "execute" in tools and not self.permissions.allow_no_command
        return RULES_AND_SHELL if has_shell and self.permissions.guard_files else ""

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Carry out the answer to an earlier request of this call."""
        is_answered = tool_context.tool_confirmation is not None
        if not self.permissions.lists or not is_answered or not isinstance(tool, CheckedTool):
            return None
        pending = _pending(tool, args, tool_context)
        response = find_response(pending, tool_context.session.events)
        if response is None:
            return None
        answer = read_answer(response, pending)
        if isinstance(answer, str):
            return None  # not for this gate; what needs a question raises again
        if answer.decision == "approve":
            self._approved.add(tool_context)
        return replacing_result(answer)

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """Ask a person when a tool has met what needs it."""
        if not isinstance(error, ApprovalRequired):
            return None
        return request_approval(tool_context, _pending(tool, args, tool_context), str(error))


def _pending(tool: BaseTool, args: dict[str, Any], context: ToolContext) -> PendingApproval:
    return PendingApproval(
        confirmation_id="",
        call_id=str(context.function_call_id),
        tool=tool.name,
        arguments=args,
        decisions=_DECISIONS,
        sha256=fingerprint(tool.name, args),
        agent=context.agent_name,
    )
