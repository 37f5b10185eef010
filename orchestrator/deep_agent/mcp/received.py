"""What a server sends, made into messages that the SDK accepts.

The SDK rejects a message as a whole: one tool with an odd schema would cost all tools, one unknown
block the whole result, and a line that is not JSON the time until its call is given up. Here what
can be read is kept, and what cannot be read is an error of the one call that it answers.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import mcp_types
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, PARSE_ERROR, REQUEST_TIMEOUT
from pydantic import TypeAdapter, ValidationError

from fanout.orchestrator.deep_agent.mcp.schemas import (
    arguments_schema,
    cut,
    type_name,
    without_faults,
)
from fanout.orchestrator.valid_text import clean

LARGE_BYTES = 256 * 1024
"""A larger message is read in a thread: it would block all other agents for milliseconds."""

MAX_STARTS = 10
"""Places in a line that is not JSON at which a message is looked for; each costs the whole line."""

MAX_DEPTH = 100
"""Of lists and objects in a message: ten times those of a large schema. Whatever reads a deeper one
would need more of Python's stack than there is."""

UNREADABLE = "the server's answer is not valid JSON-RPC"

Message = dict[str, Any]
"""A message of JSON-RPC."""

RequestId = int | str

_BLOCKS: TypeAdapter[Any] = TypeAdapter(mcp_types.ContentBlock)

_ID = re.compile(r'"id"\s*:\s*"?(-?\d+)')
_START = re.compile(r'\{\s*"(?:jsonrpc|id|result|error)"')


class Received:
    """Reads what a server sends in one session."""

    def __init__(self) -> None:
        self._open: dict[RequestId, str] = {}
        """The methods of the requests without a response."""
        self.output_schemas: dict[str, Mapping[str, Any]] = {}
        """What tools promise of their structured results, by their names. The SDK gets no such
        schema, because it rejects a result that does not match."""
        self.listed: set[str] = set()
        """The names of the tools that can be used."""
        self.left_out: dict[str, str] = {}
        """The tools that cannot be used, by their names, and why."""

    def note_sent(self, message: Mapping[str, Any]) -> None:
        """Note a message to the server: what a response may be depends on its request."""
        if message.get("method") == "notifications/cancelled":
            self._open.pop(message["params"]["requestId"], None)
        elif "method" in message and "id" in message:
            self._open[message["id"]] = message["method"]

    async def messages(self, data: bytes, answers: RequestId | None = None) -> list[Message] | None:
        """Return the requests and responses in a line or a body; None for something else.

        That is, for example, a line of a log. Notifications are left out: nobody here needs them,
        and the SDK logs what is in an invalid one.

        Args:
            data: The line or the body.
            answers: The request that it answers, if the transport says so.
        """
        if len(data) > LARGE_BYTES:
            return await asyncio.to_thread(self._messages, data, answers)
        return self._messages(data, answers)

    def _messages(self, data: bytes, answers: RequestId | None) -> list[Message] | None:
        text = data.decode(errors="replace").strip().removeprefix("\ufeff")
        values = [clean(value) for value in _values(text) if not _is_deep(value)] if text else []
        found = [message for value in values if (message := self._message(value, answers))]
        if any("method" not in message for message in found):
            answers = None
        elif answers is None and not values and '"jsonrpc"' in text:
            match = _ID.search(text)
            answers = self._open_request(int(match[1]) if match else None)
        if answers is not None:
            found.append(self._error(answers, PARSE_ERROR, UNREADABLE))
        return [message for message in found if "id" in message] if found else None

    def _message(self, value: Any, answers: RequestId | None) -> Message | None:
        if not isinstance(value, dict):
            return None
        if "method" in value:
            return _request(value)
        if "jsonrpc" in value or isinstance(value.get("result", value.get("error")), dict):
            request = self._open_request(value.get("id")) if answers is None else answers
            return None if request is None else self._response(request, value)
        return None

    def _open_request(self, given: Any) -> RequestId | None:
        """Return the request that a response names, or the only open one if it names none."""
        if isinstance(given, str) and given not in self._open and given.isdecimal():
            given = int(given)
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            return next((request for request in self._open if request == given), None)
        return next(iter(self._open)) if len(self._open) == 1 else None

    def _response(self, request: RequestId, value: Mapping[str, Any]) -> Message:
        error = value.get("error")
        if error or "result" not in value:
            return self._error(request, *_error_data(error))
        try:
            result = self._result(self._open.get(request), value["result"])
        except ValueError as fault:
            return self._error(request, INTERNAL_ERROR, f"the server's result is invalid: {fault}")
        self._open.pop(request, None)
        return {"jsonrpc": "2.0", "id": request, "result": result}

    def _error(self, request: RequestId, code: int, message: str, data: Any = None) -> Message:
        # The SDK uses two codes for what happens on this side.
        if self._open.pop(request, None) == "tools/call" and code in _CODES_OF_THE_SDK:
            code = INTERNAL_ERROR
        error = {"code": code, "message": message, "data": data}
        return {"jsonrpc": "2.0", "id": request, "error": error}

    def _result(self, method: str | None, result: Any) -> dict[str, Any]:
        """Return a result in the form of its method.

        Raises:
            ValueError: It is none; the message says why.
        """
        if not isinstance(result, dict):
            raise ValueError(f"it is {type_name(result)}, not an object")  # noqa: TRY004 - bad data
        match method:
            case "initialize":
                return _greeting(result)
            case "tools/list":
                return self._listing(result)
            case "tools/call":
                return _call_result(result)
        return result

    def _listing(self, result: Mapping[str, Any]) -> dict[str, Any]:
        listed = result.get("tools") or []
        if not isinstance(listed, list):
            raise ValueError(f"its tools are {type_name(listed)}, not a list")  # noqa: TRY004 - bad data
        tools = [self._tool(raw, number) for number, raw in enumerate(listed, start=1)]
        cursor = result.get("nextCursor")
        more = {"nextCursor": cursor} if cursor and isinstance(cursor, str) else {}
        rest = {key: value for key, value in result.items() if key not in {"_meta", "nextCursor"}}
        return {**rest, "tools": [tool for tool in tools if tool], **more}

    def _tool(self, raw: Any, number: int) -> dict[str, Any] | None:
        """Return a tool with what is used of it; None for one that cannot be used."""
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not name.strip():
            self.left_out[f"number {number}"] = "it has no name"
            return None
        try:
            schema = arguments_schema(raw.get("inputSchema"))
        except ValueError as fault:
            self.left_out[name] = str(fault)
            return None
        self.listed.add(name)
        if isinstance(raw.get("outputSchema"), dict):
            with suppress(ValueError, RecursionError):
                self.output_schemas[name] = without_faults(raw["outputSchema"])
        hints = raw.get("annotations")
        only_reads = isinstance(hints, dict) and hints.get("readOnlyHint") is True
        texts = {key: raw[key] for key in ("title", "description") if isinstance(raw.get(key), str)}
        return {
            **texts,
            "name": name,
            "inputSchema": schema,
            "annotations": {"readOnlyHint": only_reads},
        }


_CODES_OF_THE_SDK = {CONNECTION_CLOSED, REQUEST_TIMEOUT}


def _request(value: Mapping[str, Any]) -> Message | None:
    """Return a request or a notification of the server."""
    method, params, request = value["method"], value.get("params"), value.get("id")
    if not isinstance(method, str):
        return None
    message: Message = {"jsonrpc": "2.0", "method": method}
    if isinstance(params, dict):
        message["params"] = params
    if isinstance(request, int | str) and not isinstance(request, bool):
        message["id"] = request
    return message


def _error_data(error: Any) -> tuple[int, str, Any]:
    """Return a server's error as its code, its message and its data."""
    if not error:
        return INTERNAL_ERROR, "the server's answer has neither a result nor an error", None
    if not isinstance(error, dict):
        return INTERNAL_ERROR, error if isinstance(error, str) else json.dumps(error), None
    code, message = error.get("code"), error.get("message")
    if not isinstance(message, str) or not message.strip():
        return INTERNAL_ERROR, json.dumps(error), None
    return (code if type(code) is int else INTERNAL_ERROR), message, error.get("data")


def _greeting(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the first request with what is used of it."""
    return {
        "protocolVersion": result.get("protocolVersion"),
        "capabilities": {},
        "serverInfo": {"name": "server", "version": ""},
    }


def _call_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a tool.

    Raises:
        ValueError: It has no content; the message quotes it.
    """
    if result.get("resultType") not in (None, "complete"):
        return dict(result)  # it asks for something, which the SDK refuses
    content, structured = result.get("content"), result.get("structuredContent")
    if content is None and structured is None:
        raise ValueError(f"it has no content: {cut(json.dumps(result))}")
    blocks = [content] if isinstance(content, str | dict) else content or []
    if not isinstance(blocks, list):
        raise ValueError(f"its content is {type_name(content)}, not a list")  # noqa: TRY004 - bad data
    cleaned = {key: result[key] for key in ("resultType",) if key in result}
    if structured is not None:
        # Older versions of MCP have objects only.
        is_allowed = isinstance(structured, dict) or "resultType" in result
        cleaned["structuredContent"] = structured if is_allowed else {"result": structured}
    is_error = str(result.get("isError")).lower() == "true"
    return {**cleaned, "content": [_block(block) for block in blocks], "isError": is_error}


def _block(block: Any) -> dict[str, Any]:
    """Return a block of a result; one that MCP does not know as a text that names it."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, dict):
        return {"type": "text", "text": f"[{type_name(block)}: not shown]"}
    known = {key: value for key, value in block.items() if key not in {"annotations", "_meta"}}
    try:
        _BLOCKS.validate_python(known, by_name=False)
    except ValidationError:
        text = block.get("text")
        named = f"[{cut(str(block.get('type')), 100)}, of an unknown form: not shown]"
        return {"type": "text", "text": text if isinstance(text, str) else named}
    return known


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text: one, those of a list, or responses after something else."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        yield from _embedded(text)
    else:
        yield from value if isinstance(value, list) else [value]


def _is_deep(value: Any) -> bool:
    """Return whether a value has more levels than a message may have."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _embedded(text: str) -> Iterator[Any]:
    """Yield the responses in a line that begins or ends with something else.

    A request may be our own, which the server writes to a log.
    """
    end = 0
    for start in islice(_START.finditer(text), MAX_STARTS):
        if start.start() < end:
            continue
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        if "method" not in value:
            yield value


def _finite(number: str) -> float | None:
    return value if math.isfinite(value := float(number)) else None


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)
"""Reads NaN and infinities, which JSON does not have, as null."""
