"""A sandbox that is opened when it is first needed.

A job that only answers needs none. What is known of the files before (`KnownFiles`) is read without
one, because an agent's memory and its skills are read before its model is asked for the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import IO, Literal, Protocol

from fanout.orchestrator.cancellation import cancel_and_wait, uninterrupted
from fanout.orchestrator.deep_agent import Entry, Execution, Hits, OutputSink, Walk, real_path
from fanout.orchestrator.jobs.changes import empty_bundle
from fanout.orchestrator.tracing.spans import span

from .errors import SandboxDied
from .model_meter import ModelMeter
from .protocol import WORKSPACE, Command, Process, Sandbox


class KnownFiles(Protocol):
    """What is known of a sandbox's files before it is opened."""

    async def read(self, path: str) -> bytes | None:
        """Return a file's content; None if only the sandbox can tell.

        Raises:
            FileNotFoundError: the path does not exist.
        """

    async def list(self, path: str) -> Sequence[Entry] | None:
        """Return a directory's entries, sorted by path; None if only the sandbox can tell.

        Raises:
            FileNotFoundError: the path does not exist.
        """


class LazySandbox(Sandbox):
    """A sandbox that the first call which needs it opens, once for all callers.

    Every call that waits for the opening raises its failure, and so does every later one.

    Args:
        opening: opens the sandbox; entered at most once, and left by `close`.
        home: the job's HOME in it.
        known: what is known of its files until then.
        meter: reads what the job's programs use of models; None: nothing does.
    """

    search_root = WORKSPACE

    def __init__(
        self,
        opening: AbstractAsyncContextManager[Sandbox],
        *,
        home: str,
        known: KnownFiles,
        meter: ModelMeter | None = None,
    ) -> None:
        self.meter = meter
        self.kind: Literal["docker", "local"] | None = None
        self.home = home
        self.kept_folder = self.files_id = ""
        self._context = opening
        self._known = known
        self._entered = AsyncExitStack()
        self._opening: asyncio.Task[Sandbox] | None = None
        self._is_closed = False
        self.is_wanted = False
        """Whether something has needed it: it is open, it is being opened, or that has failed."""

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self.kind is not None

    def begin(self) -> None:
        """Begin to open it, unless that was begun before.

        Raises:
            SandboxDied: it is closed.
        """
        if self._is_closed:
            raise SandboxDied("the sandbox is closed")
        if self._opening is None:
            self.is_wanted = True
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieve)

    async def opened(self) -> Sandbox:
        """Return the sandbox; open it first, if nobody has.

        Raises:
            SandboxDied: it is closed.
            JobFailure: it could not be opened.
        """
        self.begin()
        assert self._opening is not None  # noqa: S101 - begun above
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """End its opening, or close the open sandbox with all its processes."""
        self._is_closed = True
        await uninterrupted(self._close())

    async def _close(self) -> None:
        if self._opening is not None:
            await cancel_and_wait(self._opening)
            self._opening = None  # it refers to the step of the agent that began it
        await self._entered.aclose()

    async def _open(self) -> Sandbox:
        sandbox = await self._entered.enter_async_context(self._context)
        self.kind, self.files_id = sandbox.kind, sandbox.files_id
        self.kept_folder = sandbox.kept_folder
        if self.kind == "local":  # its programs use no proxy of ours
            self.meter = None
        return sandbox

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """See `Sandbox.run`."""
        sandbox = await self.opened()
        with span("run command") as traced:
            ended = await sandbox.run(command, on_output)
            traced.note(exit_code=ended.exit_code)
        return ended

    @asynccontextmanager
    async def open_process(self, command: Command) -> AsyncIterator[Process]:
        """See `Sandbox.open_process`."""
        sandbox = await self.opened()
        async with sandbox.open_process(command) as process:
            yield process

    async def real_path(self, path: str) -> str:
        """Return a path with its links resolved, as far as it exists."""
        return await real_path(await self.opened(), path)

    async def stat(self, path: str) -> Entry:
        """See `Backend.stat`."""
        return await (await self.opened()).stat(path)

    async def lstat(self, path: str) -> Entry:
        """See `Sandbox.lstat`."""
        return await (await self.opened()).lstat(path)

    async def list(self, path: str) -> Sequence[Entry]:
        """See `Backend.list`."""
        known = None if self.is_wanted else await self._known.list(path)
        return await (await self.opened()).list(path) if known is None else known

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, *, offset: int = 0
    ) -> bytes:
        """See `Sandbox.read_bytes`."""
        known = None if self.is_wanted else await self._known.read(path)
        if known is None:
            return await (await self.opened()).read_bytes(path, max_bytes, offset=offset)
        return known[offset : None if max_bytes is None else offset + max_bytes]

    async def write_bytes(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Sandbox.write_bytes`."""
        sandbox = await self.opened()
        await sandbox.write_bytes(path, data, create_only=create_only, mode=mode)

    async def delete(self, path: str) -> None:
        """See `Backend.delete`."""
        await (await self.opened()).delete(path)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        """See `Backend.walk`."""
        sandbox = await self.opened()
        return await sandbox.walk(path, max_entries=max_entries, timeout_seconds=timeout_seconds)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        """See `Backend.grep`."""
        sandbox = await self.opened()
        return await sandbox.grep(
            text, path, only=only, max_hits=max_hits, timeout_seconds=timeout_seconds
        )

    async def changes(self) -> IO[bytes]:
        """See `Sandbox.changes`: nothing has changed in a sandbox that nothing has needed."""
        return await (await self.opened()).changes() if self.is_wanted else empty_bundle()

    async def changed_files(self) -> Mapping[str, str]:
        """See `Sandbox.changed_files`."""
        return await (await self.opened()).changed_files() if self.is_wanted else {}


def _retrieve(opening: asyncio.Future[Sandbox]) -> None:
    """Retrieve a failure: asyncio would log one that no caller has waited for."""
    if not opening.cancelled():
        opening.exception()
