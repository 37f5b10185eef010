"""What `fanout mcp serve` answers before the server is imported, which takes seconds.

A client asks for the server's abilities and tools first, and gives up if they take long. They are
the same at every start, so they are kept in `declared.json`, which a test compares with the
server's. Whatever else a client asks, the server itself answers; see `stdio.py`.

This module imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fanout.orchestrator.version import VERSION

DECLARED = Path(__file__).with_name("declared.json")
"""Method -> the result for a client of this machine; `make mcp-tools` writes it."""

MAX_LINE_BYTES = 64 * 1024
"""Of a message before the server: a client's introduction has some hundred bytes."""

INITIALIZE, INITIALIZED = "initialize", "notifications/initialized"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, whose answers have the same form; to a client with another one the server
answers itself."""


@dataclass
class Handshake:
    """What has been said before the server begins."""

    unanswered: list[bytes] = field(default_factory=list)
    """The messages that the server has to read first, each with the end of its line."""
    answered_id: Any = None
    """The id of the first of them, if the client has its answer: the server's is dropped."""


def answer_first_requests(source: int = 0, target: int = 1) -> Handshake | None:
    """Answer a client until it asks for something that is not declared, such as to call a tool.

    Most clients start their servers with every session, and call few of them.

    Returns:
        What the server goes on from; None if the client has closed its end.

    Args:
        source: The descriptor that the client writes to. No byte is read beyond the last message.
        target: The descriptor that the client reads from.
    """
    said = Handshake()
    declared: Mapping[str, Any] = json.loads(DECLARED.read_text("utf-8"))
    while line := _read_line(source):
        message = _parsed(line)
        method, request = message.get("method"), message.get("id")
        result = _result(declared, method, message)
        if method == INITIALIZED:
            said.unanswered.append(line)
            continue
        if result is None or type(request) not in (int, str):  # JSON-RPC has no other ids
            said.unanswered.append(line)
            return said
        if method == INITIALIZE:
            said.unanswered.append(line)
            said.answered_id = request
        _write(target, {"jsonrpc": "2.0", "id": request, "result": result})
    return None


def _result(declared: Mapping[str, Any], method: Any, message: Mapping[str, Any]) -> Any:
    """Return the declared result of a request; None if there is none."""
    parameters = message.get("params") or {}
    if not isinstance(method, str) or method not in declared or not isinstance(parameters, dict):
        return None
    if method != INITIALIZE:
        return None if parameters.keys() - {"_meta"} else declared[method]
    version = parameters.get("protocolVersion")
    if version not in VERSIONS:
        return None
    server = {**declared[method]["serverInfo"], "version": VERSION}
    return {**declared[method], "protocolVersion": version, "serverInfo": server}


def _read_line(source: int) -> bytes:
    """Read up to the end of a line; all that there is at the end of the input, or of a long one."""
    line = bytearray()
    while len(line) < MAX_LINE_BYTES and (byte := os.read(source, 1)):
        line += byte
        if byte == b"\n":
            break
    return bytes(line)


def _parsed(line: bytes) -> dict[str, Any]:
    """Return a message; an empty one if the line is none, which the server answers."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _write(target: int, message: Mapping[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(target, data) :]
