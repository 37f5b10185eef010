"""A sandbox as a deep agent's backend: its file tools and its shell work on the same files."""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.deep_agent import Entry, Execution, Hit, Hits, Walk
from workers.sandbox.protocol import WORKSPACE, Command, FileEntry, OutputSink, Sandbox


class SandboxBackend:
    """The files and the shell of one sandbox.

    A `SandboxFailure` passes through: it is not the agent's.
    """

    search_root = WORKSPACE

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def stat(self, path: str) -> Entry:
        entry = _entry(await self._sandbox.stat(path))
        return await self._followed(entry) if entry.kind == "symlink" else entry

    async def list(self, path: str) -> Sequence[Entry]:
        return [_entry(entry) for entry in await self._sandbox.list(path)]

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        return await self._sandbox.read(path, max_bytes=max_bytes)

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        await self._sandbox.write(path, data, create_only=create_only)

    async def delete(self, path: str) -> None:
        await self._sandbox.delete(path)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        walked = await self._sandbox.walk(
            path, max_entries=max_entries, timeout_seconds=timeout_seconds
        )
        files = tuple(_entry(entry) for entry in walked.entries if entry.kind != "directory")
        return Walk(entries=files, complete=walked.complete)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        found = await self._sandbox.grep(
            text, path, only=only, max_hits=max_hits, timeout_seconds=timeout_seconds
        )
        hits = tuple(
            Hit(path=hit.path, line_number=hit.line_number, line=hit.line) for hit in found.hits
        )
        return Hits(hits=hits, complete=found.complete)

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        wanted = Command(
            argv=command, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes
        )
        result = await self._sandbox.run(wanted, on_output)
        return Execution(
            output=result.output.decode(errors="replace"),
            exit_code=result.exit_code,
            truncated=result.truncated,
            timed_out=result.timed_out,
            out_of_memory=result.out_of_memory,
        )

    async def _followed(self, link: Entry) -> Entry:
        """What a link leads to, by the sandbox's own eyes.

        A readable file, a directory, or nothing.
        """
        try:
            await self._sandbox.list(link.path)
        except NotADirectoryError:
            data = await self._sandbox.read(link.path, max_bytes=0)
            del data  # only to learn whether it can be read
            return Entry(
                path=link.path,
                kind="file",
                size_bytes=link.size_bytes,
                modified_at=link.modified_at,
            )
        return Entry(path=link.path, kind="directory", modified_at=link.modified_at)


def _entry(entry: FileEntry) -> Entry:
    return Entry(
        path=entry.path, kind=entry.kind, size_bytes=entry.size_bytes, modified_at=entry.modified_at
    )
