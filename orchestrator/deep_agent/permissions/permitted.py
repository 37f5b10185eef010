"""A backend that keeps an agent's rules, under all of its tools.

What may not be read does not appear in listings and searches. A link is judged by its own path and
by where it leads. A search that would look into a file which needs a question asks it first:
without the file its answer would be wrong.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fanout.orchestrator.deep_agent.backends.matching import real_path, search_roots
from fanout.orchestrator.deep_agent.backends.protocol import (
    AccessRefused,
    Backend,
    Entry,
    Execution,
    Hits,
    OutputSink,
    Shell,
    Walk,
)
from fanout.orchestrator.deep_agent.failures import ApprovalRequired
from fanout.orchestrator.deep_agent.permissions.rules import Access, Operation, Permissions

MAX_WALKED = 100_000
"""The files that a walk or a search looks at, those included that the agent may not see."""

MAX_DELETED = 10_000
"""The files of a directory that is deleted: each has to be checked before the first is gone."""


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
        complete = walk.complete and len(entries) <= max_entries
        return Walk(entries=tuple(entries[:max_entries]), complete=complete)

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
