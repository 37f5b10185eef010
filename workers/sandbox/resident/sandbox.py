"""A sandbox whose operations a resident carries out."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar

from fanout.orchestrator.deep_agent import Entry, Execution, Hits, OutputSink, Walk
from fanout.orchestrator.path_text import os_path
from fanout.orchestrator.portable.commands import GRACE_SECONDS

from ..inside import commands as resident_commands
from ..inside import frames
from ..inside.files import MAX_ANSWER_BYTES
from ..protocol import WORKSPACE, Command, Sandbox
from .client import ResidentClient, upload
from .replies import (
    PARSED_ON_LOOP_BYTES,
    duration,
    flag,
    integer,
    left_running,
    output_file,
    parse_entries,
    parse_hits,
)

T = TypeVar("T")

STOP_SECONDS = GRACE_SECONDS + 2.0
"""How long a cancelled caller waits until its command is dead."""

_MOST_BYTES = 1 << 62
"""The largest output of a command: it is counted, not kept."""
_LARGEST_LIST = 2 * MAX_ANSWER_BYTES
"""The longest list: the resident stops after the entry that exceeds its limit."""


class ResidentSandbox(Sandbox):
    """The commands and file operations of a `Sandbox`, carried out by a resident.

    The resident takes and returns the paths of the operating system, not path texts.

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
            "keep_output": command.keep_output,
            "stream": on_output is not None,
            **more,
        }
        stdin = command.stdin
        if len(stdin) > frames.CHUNK_BYTES:
            folder = "/tmp"  # noqa: S108 - the sandbox's own
            arguments["upload"], stdin = await upload(self._client, stdin, folder), b""
        kept = min(command.max_output_bytes, resident_commands.MAX_OUTPUT_BYTES)
        result, data = await self._client.request(
            "run",
            arguments,
            stdin,
            on_output,
            max_reply_bytes=2 * max(0, kept),
            timeout_seconds=command.timeout_seconds + GRACE_SECONDS + 30.0,
            stop_seconds=STOP_SECONDS,
        )
        with self._client.parsing():
            output_bytes = integer(result, "output_bytes", 0, len(data))
            return Execution(
                exit_code=integer(result, "exit_code", -255, 255),
                output=data[:output_bytes],
                error_output=data[output_bytes:],
                total_bytes=integer(result, "total_bytes", 0, _MOST_BYTES),
                head_bytes=integer(result, "head_bytes", 0, output_bytes),
                line_ends=integer(result, "line_ends", 0, _MOST_BYTES),
                output_file=output_file(result),
                timed_out=flag(result, "timed_out"),
                out_of_memory=flag(result, "out_of_memory"),
                notice=self.disk_notice() if flag(result, "disk_is_full") else "",
                left_running=left_running(result),
                seconds=duration(result, "seconds"),
            )

    def disk_notice(self) -> str:
        """Return the sentence about a full disk; empty where the disk is no limit of the job's."""
        return ""

    async def _request_path(
        self,
        path: str,
        operation: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        max_reply_bytes: int = frames.CHUNK_BYTES,
    ) -> tuple[dict[str, Any], bytes]:
        """Request an operation on a path; an OSError names the path as it was given."""
        arguments = {"path": os_path(path), **arguments}
        try:
            return await self._client.request(
                operation, arguments, payload, max_reply_bytes=max_reply_bytes
            )
        except OSError as error:
            if error.filename is not None:
                error.filename = path
            raise

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, *, offset: int = 0
    ) -> bytes:
        """See `Sandbox.read_bytes`."""
        parts: list[bytes] = []
        wanted = max_bytes
        while True:
            size = frames.CHUNK_BYTES if wanted is None else min(wanted, frames.CHUNK_BYTES)
            arguments = {"offset": offset, "max_bytes": size}
            _, data = await self._request_path(
                path, "read", arguments, max_reply_bytes=max(0, size)
            )
            parts.append(data)
            offset += len(data)
            wanted = None if wanted is None else wanted - len(data)
            if len(data) < frames.CHUNK_BYTES or wanted == 0:
                return b"".join(parts)

    async def write_bytes(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Sandbox.write_bytes`."""
        arguments: dict[str, Any] = {"create_only": create_only, "mode": mode}
        if len(data) > frames.CHUNK_BYTES:
            folder = str(PurePosixPath(os_path(path)).parent)
            arguments["upload"], data = await upload(self._client, data, folder), b""
        await self._request_path(path, "write", arguments, data)

    async def delete(self, path: str) -> None:
        """See `Backend.delete`."""
        await self._request_path(path, "delete", {})

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
        _, data = await self._request_path(path, "stat", {})
        entries = await self._parsed(data, partial(parse_entries, most=1))
        if not entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entries[0]

    async def list(self, path: str) -> tuple[Entry, ...]:
        """See `Backend.list`."""
        _, data = await self._request_path(path, "list", {}, max_reply_bytes=_LARGEST_LIST)
        return await self._parsed(data, parse_entries)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        """See `Backend.walk`."""
        arguments = {"max_entries": max_entries, "timeout_seconds": float(timeout_seconds)}
        result, data = await self._request_path(
            path, "walk", arguments, max_reply_bytes=_LARGEST_LIST
        )
        entries = await self._parsed(data, partial(parse_entries, most=max_entries))
        with self._client.parsing():
            complete = flag(result, "complete")
        return Walk(entries=tuple(sorted(entries, key=lambda entry: entry.path)), complete=complete)

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
            "only": None if only is None else [*map(os_path, only)],
            "max_hits": max_hits,
            "timeout_seconds": float(timeout_seconds),
        }
        result, data = await self._request_path(
            path, "grep", arguments, max_reply_bytes=_LARGEST_LIST
        )
        hits, unsearched = await self._parsed(data, partial(parse_hits, most=max_hits))
        with self._client.parsing():
            return Hits(
                hits=hits,
                complete=flag(result, "complete"),
                unsearched=integer(result, "unsearched", len(unsearched), _MOST_BYTES),
                unsearched_paths=unsearched,
            )

    async def _parsed(self, data: bytes, parse: Callable[[bytes], T]) -> T:
        """Parse a payload; a large one in a thread."""
        with self._client.parsing():
            if len(data) > PARSED_ON_LOOP_BYTES:
                return await asyncio.to_thread(parse, data)
            return parse(data)
