"""The answers of `fanout mcp serve` before the server is imported, which takes seconds.

A client asks for the server's abilities and tools first, and gives up if they take long. They are
the same at every start, so they are kept in `declared.json`, which a test compares with the
server's. All other requests are answered by the server itself; see `stdio.py`.

This module imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...version import VERSION

DECLARED = Path(__file__).with_name("declared.json")
"""Method -> the result for a client of this machine; `make mcp-tools` writes it."""

MAX_LINE_BYTES = 64 * 1024
"""The largest message before the server: a client's introduction has some hundred bytes."""

INITIALIZE, INITIALIZED = "initialize", "notifications/initialized"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The protocol versions whose answers have the same form; for another one the server itself
answers."""


@dataclass
class Handshake:
    """The state of the handshake before the server starts."""

    unanswered: list[bytes] = field(default_factory=list)
    """The messages that the server has to read first, each with the end of its line."""
    answered_id: Any = None
    """The id of the first of them if the client already has its answer: then the server's answer is
    dropped."""


def answer_first_requests(source: int = 0, target: int = 1) -> Handshake | None:
    """Answer a client until it sends a request without a declared answer, such as a tool call.

    Most clients start their servers with every session, and call few of them.

    Returns:
        The state for the server; None if the client has closed its end.

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
    """Read up to the end of a line, or all data at the end of the input or of a long line."""
    line = bytearray()
    while len(line) < MAX_LINE_BYTES and (byte := os.read(source, 1)):
        line += byte
        if byte == b"\n":
            break
    return bytes(line)


def _parsed(line: bytes) -> dict[str, Any]:
    """Return a message; an empty one if the line is not one, which the server answers."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _write(target: int, message: Mapping[str, Any]) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(target, data) :]
