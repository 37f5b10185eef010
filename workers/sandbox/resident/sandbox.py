"""A sandbox whose operations a resident carries out."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from orchestrator.deep_agent import Entry, EntryKind, Execution, Hit, Hits, OutputSink, Walk
from workers.sandbox.inside import commands as resident_commands
from workers.sandbox.inside import frames
from workers.sandbox.protocol import WORKSPACE, Command, Sandbox
from workers.sandbox.resident.client import ResidentClient

STOP_SECONDS = resident_commands.GRACE_SECONDS + 2.0
"""How long a cancelled caller waits until its command is dead."""

_KINDS: dict[bytes, EntryKind] = {b"f": "file", b"d": "directory", b"l": "symlink", b"o": "other"}


class ResidentSandbox(Sandbox):
    """The commands and file operations of a `Sandbox`, carried out by a resident.

    Providers add `open_process` and `changes`.
    """

    search_root = WORKSPACE

    def __init__(self, client: ResidentClient) -> None:
        self._client = client

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """See `Sandbox.run`. At most `inside.commands.MAX_OUTPUT_BYTES` are kept."""
        return await self._run(command, on_output)

    async def _run_live(self, command: Command, tunnel: int, on_errors: OutputSink) -> Execution:
        """Run a command without a time limit, its input and output on the tunnel of that number."""
        endless = dataclasses.replace(
            command, stdin=b"", timeout_seconds=math.inf, merge_stderr=False
        )
        return await self._run(endless, on_errors, tunnel=tunnel)

    async def _run(self, command: Command, on_output: OutputSink | None, **more: int) -> Execution:
        arguments: dict[str, Any] = {
            "argv": command.argv if isinstance(command.argv, str) else list(command.argv),
            "cwd": command.cwd,
            "env": dict(command.env),
            "timeout_seconds": float(command.timeout_seconds),
            "max_output_bytes": command.max_output_bytes,
            "merge_stderr": command.merge_stderr,
            "stream": on_output is not None,
            **more,
        }
        stdin = command.stdin
        if len(stdin) > frames.CHUNK_BYTES:
            folder = "/tmp"  # noqa: S108 - the sandbox's own
            arguments["upload"], stdin = await self._client.upload(stdin, folder), b""
        result, data = await self._client.request(
            "run",
            arguments,
            stdin,
            on_output,
            timeout_seconds=command.timeout_seconds + resident_commands.GRACE_SECONDS + 30.0,
            stop_seconds=STOP_SECONDS,
        )
        return Execution(
            exit_code=int(result["exit_code"]),
            output=data[: result["output_bytes"]],
            error_output=data[result["output_bytes"] :],
            total_bytes=int(result["total_bytes"]),
            timed_out=bool(result["timed_out"]),
            out_of_memory=bool(result["out_of_memory"]),
            seconds=float(result["seconds"]),
        )

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, *, offset: int = 0
    ) -> bytes:
        """See `Sandbox.read_bytes`."""
        parts: list[bytes] = []
        wanted = max_bytes
        while True:
            size = frames.CHUNK_BYTES if wanted is None else min(wanted, frames.CHUNK_BYTES)
            arguments = {"path": path, "offset": offset, "max_bytes": size}
            _, data = await self._client.request("read", arguments)
            parts.append(data)
            offset += len(data)
            wanted = None if wanted is None else wanted - len(data)
            if len(data) < frames.CHUNK_BYTES or wanted == 0:
                return b"".join(parts)

    async def write_bytes(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Sandbox.write_bytes`."""
        arguments: dict[str, Any] = {"path": path, "create_only": create_only, "mode": mode}
        if len(data) > frames.CHUNK_BYTES:
            folder = str(PurePosixPath(path).parent)
            arguments["upload"], data = await self._client.upload(data, folder), b""
        await self._client.request("write", arguments, data)

    async def delete(self, path: str) -> None:
        """See `Backend.delete`."""
        await self._client.request("delete", {"path": path})

    async def stat(self, path: str) -> Entry:
        """See `Backend.stat`."""
        entry = await self.lstat(path)
        if entry.kind != "symlink":
            return entry
        try:
            await self.list(path)
        except NotADirectoryError:
            await self.read_bytes(path, 0)  # raises when it is not a readable file
            return dataclasses.replace(entry, kind="file")
        return dataclasses.replace(entry, kind="directory")

    async def lstat(self, path: str) -> Entry:
        """See `Sandbox.lstat`."""
        _, data = await self._client.request("stat", {"path": path})
        return _entries(data)[0]

    async def list(self, path: str) -> tuple[Entry, ...]:
        """See `Backend.list`."""
        _, data = await self._client.request("list", {"path": path})
        return _entries(data)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        """See `Backend.walk`."""
        arguments = {
            "path": path,
            "max_entries": max_entries,
            "timeout_seconds": float(timeout_seconds),
        }
        result, data = await self._client.request("walk", arguments)
        entries = tuple(sorted(_entries(data), key=lambda entry: entry.path))
        return Walk(entries=entries, complete=bool(result["complete"]))

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
        arguments = {
            "text": text,
            "path": path,
            "only": None if only is None else list(only),
            "max_hits": max_hits,
            "timeout_seconds": float(timeout_seconds),
        }
        result, data = await self._client.request("grep", arguments)
        records = frames.decode(data)
        hits = tuple(
            Hit(path=path, line_number=number, line=line) for path, number, line in records
        )
        return Hits(hits=hits, complete=bool(result["complete"]))


def _entries(data: bytes) -> tuple[Entry, ...]:
    """Parse the records of `files.entry_record`."""
    entries = []
    for record in data.split(b"\0") if data else ():
        kind, size, modified, mode, path = record.split(b" ", 4)
        entries.append(
            Entry(
                path=os.fsdecode(path),
                kind=_KINDS[kind],
                size_bytes=int(size),
                modified_at=float(modified),
                mode=int(mode, 8),
            )
        )
    return tuple(entries)
