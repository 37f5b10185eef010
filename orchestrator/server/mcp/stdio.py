"""The server on stdin and stdout, after a handshake that was held without it."""

from __future__ import annotations

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from fanout.orchestrator.server.mcp.handshake import Handshake
from fanout.orchestrator.server.mcp.server import FanoutServer

Message = SessionMessage | Exception


async def serve_stdio(server: FanoutServer, said: Handshake) -> None:
    """Serve until the client has closed its end.

    Args:
        server: The server.
        said: What the client has said before, and what it has had answers to.
    """
    to_server, incoming = create_context_streams[Message](0)
    outgoing, from_server = create_context_streams[SessionMessage](0)
    async with stdio_server() as (client_reads, client_writes), anyio.create_task_group() as group:

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
        lowlevel = server._lowlevel_server  # noqa: SLF001 - as `run_stdio_async`, with other streams
        await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options())


def _message(line: bytes) -> Message:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def _answers(message: SessionMessage, request: object) -> bool:
    answer = message.message
    return isinstance(answer, (JSONRPCResponse, JSONRPCError)) and answer.id == request
