"""The server on stdin and stdout, after a handshake that was held without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO, cast

import anyio
from anyio import AsyncFile
from mcp.server.stdio import stdio_server
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from ...valid_text import clean_json
from .handshake import Handshake
from .server import FanoutServer

Message = SessionMessage | Exception


async def serve_stdio(server: FanoutServer, said: Handshake) -> None:
    """Serve until the client has closed its end.

    Args:
        server: The server.
        said: The client's earlier messages, and the answered ones.
    """
    to_server, incoming = create_context_streams[Message](0)
    outgoing, from_server = create_context_streams[SessionMessage](0)
    lines = cast("AsyncFile[str]", AsyncFile(cast("Any", _ValidLines(_claim_stdin()))))
    async with (
        stdio_server(stdin=lines) as (client_reads, client_writes),
        anyio.create_task_group() as group,
    ):

        async def read() -> None:
            async with to_server:
                for line in said.unanswered:
                    await to_server.send(_message(line))
                async for message in client_reads:
                    await to_server.send(message)

        async def write() -> None:
            is_answered = said.answered_id is not None
            async with client_writes:
                async for message in from_server:
                    if is_answered and _answers(message, said.answered_id):
                        is_answered = False
                    else:
                        await client_writes.send(message)

        group.start_soon(read)
        group.start_soon(write)
        lowlevel = server._lowlevel_server  # noqa: SLF001 - as the SDK does, with other streams
        await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options())


def _message(line: bytes) -> Message:
    try:
        return SessionMessage(
            jsonrpc_message_adapter.validate_json(clean_json(line), by_name=False)
        )
    except ValueError as error:
        return error


def _answers(message: SessionMessage, request: object) -> bool:
    answer = message.message
    return isinstance(answer, (JSONRPCResponse, JSONRPCError)) and answer.id == request


class _ValidLines:
    """Lines of JSON in which U+FFFD replaces invalid characters.

    The SDK drops a message with an escaped half of a surrogate pair, and its client waits for an
    answer for ever. Over HTTP, `ValidBodies` does the same.
    """

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines

    def readline(self) -> str:
        """Return the next line; an empty text at the end."""
        return clean_json(self._lines.readline()).decode("utf-8", "replace")


def _claim_stdin() -> BinaryIO:
    """Return stdin, and replace it by an empty one for the rest of this process."""
    claimed = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return open(claimed, "rb", closefd=False)  # a thread may still read when the server ends
