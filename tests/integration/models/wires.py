"""What four model services say over HTTP, each in its own words: replies, streams, refusals."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

INPUT_TOKENS, OUTPUT_TOKENS = 100, 10
"""What a reply says that it used."""


@dataclass
class Answer:
    """One HTTP answer; the parts of a stream come as one event each."""

    parts: Sequence[dict[str, Any]] = ()
    """As `text` and `call` make them."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str | None = None
    """Sent as it is in place of the parts."""
    finish_reason: str = "STOP"
    """In Gemini's words; the other services say that they are done."""
    input_tokens: int = INPUT_TOKENS
    cached_tokens: int = 0
    """Of the input tokens."""
    is_too_long: bool = False
    """The refusal of a request that does not fit into the context window."""
    breaks_off: bool = False
    """A stream that says after its first piece that the service is overloaded."""
    is_cut: bool = False
    """The reply ends at its length limit, in the middle of its last call."""
    hangs: bool = False
    """Nothing more comes after the first piece; not streamed, nothing at all."""
    has_no_end: bool = False
    """A stream that ends with its last part, without what says that the reply is complete."""
    reason: str | None = None
    """Why the reply ended, in place of each service's own word."""
    media_type: str = "application/json"
    """Of an answer with a `body`, which is never streamed."""


def text(words: str) -> dict[str, Any]:
    return {"text": words}


def call_with(name: str, arguments: str) -> dict[str, Any]:
    """A call whose arguments are this text on the wire, or the JSON in it where they are JSON."""
    return {"functionCall": {"name": name, "args": arguments}}


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


class Wire:
    """One service's language."""

    too_long: ClassVar[dict[str, Any]]
    """A refusal's body."""
    overload: ClassVar[dict[str, Any]]
    """What a stream says that breaks off."""

    def is_stream(self, path: str, request: dict[str, Any]) -> bool:
        del path
        return bool(request.get("stream"))

    def refusal(self, status: int) -> dict[str, Any]:
        return {
            "error": {"type": "some_error", "code": None, "message": "not now"},
            "status": status,
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def streamed(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """The events that are sent."""
        for event in self.events(answer):
            if not (answer.has_no_end and self.ends(event)):
                yield event

    def ends(self, event: dict[str, Any]) -> bool:
        """Whether an event only says that the reply is complete."""
        return event.get("type") in {
            *("response.completed", "response.incomplete"),
            *("message_delta", "message_stop"),
        }

    def sse(self, event: dict[str, Any]) -> str:
        named = f"event: {event['type']}\n" if "type" in event else ""
        return f"{named}data: {json.dumps(event)}\n\n"


class Gemini(Wire):
    overload: ClassVar = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
    too_long: ClassVar = {
        "error": {
            "code": 400,
            "status": "INVALID_ARGUMENT",
            "message": "The input token count (2000000) exceeds the maximum number of tokens allowed (9).",
        }
    }

    def is_stream(self, path: str, request: dict[str, Any]) -> bool:
        del request
        return "streamGenerateContent" in path

    def refusal(self, status: int) -> dict[str, Any]:
        return {"error": {"code": status, "message": "not now", "status": "UNAVAILABLE"}}

    def whole(self, answer: Answer) -> dict[str, Any]:
        return self._chunk(answer, answer.parts, self._end(answer))

    def events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        for part in answer.parts[:-1]:
            yield self._chunk(answer, [part], None)
        yield self._chunk(answer, answer.parts[-1:], self._end(answer))

    def sse(self, event: dict[str, Any]) -> str:
        return f"data: {json.dumps(event)}\r\n\r\n"

    def _end(self, answer: Answer) -> str | None:
        if answer.has_no_end:
            return None
        return answer.reason or ("MAX_TOKENS" if answer.is_cut else answer.finish_reason)

    def _chunk(
        self, answer: Answer, parts: Sequence[dict[str, Any]], finish_reason: str | None
    ) -> dict[str, Any]:
        content = {"role": "model", "parts": list(map(_gemini_part, parts))}
        candidate: dict[str, Any] = {"content": content, "index": 0}
        if finish_reason:
            candidate["finishReason"] = finish_reason
        usage = {
            "promptTokenCount": answer.input_tokens,
            "candidatesTokenCount": OUTPUT_TOKENS,
            "totalTokenCount": answer.input_tokens + OUTPUT_TOKENS,
            "cachedContentTokenCount": answer.cached_tokens,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "gemini-2.5-flash-001",
        }


OPENAI_OVERLOAD = {"type": "server_error", "code": "server_error", "message": "overloaded"}
OPENAI_TOO_LONG = {
    "error": {
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
        "param": "messages",
        "message": "Your input exceeds what this model takes.",
    }
}


def split(answer: Answer) -> tuple[list[str], list[dict[str, Any]]]:
    """The pieces of text and the calls of an answer."""
    pieces = [part["text"] for part in answer.parts if "text" in part]
    return pieces, [part["functionCall"] for part in answer.parts if "functionCall" in part]


def _gemini_part(part: dict[str, Any]) -> dict[str, Any]:
    made = part.get("functionCall")
    return {"functionCall": {**made, "args": _as_json(made["args"])}} if made else part


def _as_json(arguments: Any) -> Any:
    """Arguments where a service has them as JSON, not as a text."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _arguments(answer: Answer, made: dict[str, Any]) -> str:
    whole = made["args"] if isinstance(made["args"], str) else json.dumps(made["args"])
    return whole[: len(whole) // 2] if answer.is_cut else whole


class ChatCompletions(Wire):
    overload: ClassVar = {"error": OPENAI_OVERLOAD}
    too_long: ClassVar = OPENAI_TOO_LONG

    def whole(self, answer: Answer) -> dict[str, Any]:
        pieces, calls = split(answer)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(pieces) or None}
        if calls:
            message["tool_calls"] = [
                self._call(answer, number, made) for number, made in enumerate(calls)
            ]
        return self._frame(
            "chat.completion",
            [{"index": 0, "message": message, "finish_reason": self._end(answer)}],
            answer,
        )

    def events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        pieces, calls = split(answer)
        for piece in pieces:
            yield self._delta({"role": "assistant", "content": piece})
        for number, made in enumerate(calls):
            first = self._call(answer, number, made)
            arguments = _arguments(answer, made)
            first["function"]["arguments"] = ""
            yield self._delta({"tool_calls": [{"index": number, **first}]})
            for half in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
                yield self._delta(
                    {"tool_calls": [{"index": number, "function": {"arguments": half}}]}
                )
        yield self._delta({}, self._end(answer))
        yield self._frame("chat.completion.chunk", [], answer)

    def ends(self, event: dict[str, Any]) -> bool:
        return not event["choices"] or bool(event["choices"][0]["finish_reason"])

    def _end(self, answer: Answer) -> str:
        own = "length" if answer.is_cut else "tool_calls" if split(answer)[1] else "stop"
        return answer.reason or own

    def _call(self, answer: Answer, number: int, made: dict[str, Any]) -> dict[str, Any]:
        function = {"name": made["name"], "arguments": _arguments(answer, made)}
        return {"id": f"call_{number}", "type": "function", "function": function}

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return self._frame(
            "chat.completion.chunk",
            [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
            None,
        )

    def _frame(
        self, kind: str, choices: list[dict[str, Any]], answer: Answer | None
    ) -> dict[str, Any]:
        frame = {
            "id": "c1",
            "object": kind,
            "created": 1,
            "model": "gpt-4o-2024",
            "choices": choices,
        }
        if answer is None:
            return {**frame, "usage": None}
        usage = {
            "prompt_tokens": answer.input_tokens,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": answer.input_tokens + OUTPUT_TOKENS,
            "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": OUTPUT_TOKENS // 2},
        }
        return {**frame, "usage": usage}


class Responses(Wire):
    overload: ClassVar = {
        "type": "response.failed",
        "sequence_number": 99,
        "response": {"id": "r1", "status": "failed", "error": OPENAI_OVERLOAD},
    }
    too_long: ClassVar = OPENAI_TOO_LONG

    def whole(self, answer: Answer) -> dict[str, Any]:
        usage = {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": OUTPUT_TOKENS // 2},
            "total_tokens": answer.input_tokens + OUTPUT_TOKENS,
        }
        return {
            "id": "r1",
            "object": "response",
            "created_at": 1,
            "status": "incomplete" if answer.is_cut or answer.reason else "completed",
            "incomplete_details": {"reason": answer.reason or "max_output_tokens"}
            if answer.is_cut or answer.reason
            else None,
            "model": "gpt-5-2025",
            "output": list(self._items(answer)),
            "usage": usage,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }

    def events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        pieces, _ = split(answer)
        for number, item in enumerate(self._items(answer)):
            place = {"output_index": number, "item_id": item["id"], "sequence_number": number}
            yield {"type": "response.output_item.added", **place, "item": {**item, "content": []}}
            if item["type"] == "message":
                for piece in pieces:
                    yield {
                        "type": "response.output_text.delta",
                        **place,
                        "content_index": 0,
                        "delta": piece,
                    }
            else:
                yield {
                    "type": "response.function_call_arguments.delta",
                    **place,
                    "delta": item["arguments"],
                }
            yield {"type": "response.output_item.done", **place, "item": item}
        end = f"response.{self.whole(answer)['status']}"
        yield {"type": end, "sequence_number": 9, "response": self.whole(answer)}

    def _items(self, answer: Answer) -> Iterator[dict[str, Any]]:
        pieces, calls = split(answer)
        if pieces:
            content = {"type": "output_text", "text": "".join(pieces), "annotations": []}
            yield {
                "id": "m1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        for number, made in enumerate(calls):
            yield {
                "id": f"f{number}",
                "type": "function_call",
                "call_id": f"call_{number}",
                "name": made["name"],
                "arguments": _arguments(answer, made),
                "status": "completed",
            }


class Messages(Wire):
    overload: ClassVar = {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Overloaded"},
    }
    too_long: ClassVar = {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 210000 tokens > 200000 maximum",
        },
    }

    def refusal(self, status: int) -> dict[str, Any]:
        del status
        return {"type": "error", "error": {"type": "some_error", "message": "not now"}}

    def whole(self, answer: Answer) -> dict[str, Any]:
        return {**self._message(answer), "content": list(self._blocks(answer))}

    def events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        yield {"type": "message_start", "message": {**self._message(answer), "stop_reason": None}}
        number_of_call = -1
        for index, block in enumerate(self._blocks(answer)):
            number_of_call += block["type"] == "tool_use"
            if block["type"] == "text":
                yield {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": {**block, "text": ""},
                }
                delta = {"type": "text_delta", "text": block["text"]}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            else:
                yield {
                    "type": "content_block_start",
                    "index": index,
                    "content_block": {**block, "input": {}},
                }
                delta = {
                    "type": "input_json_delta",
                    "partial_json": _arguments(answer, split(answer)[1][number_of_call]),
                }
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        message = self._message(answer)
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": message["usage"]}
        yield {"type": "message_stop"}

    def _blocks(self, answer: Answer) -> Iterator[dict[str, Any]]:
        for number, part in enumerate(answer.parts):
            if "text" in part:
                yield {"type": "text", "text": part["text"]}
            else:
                made = part["functionCall"]
                yield {
                    "type": "tool_use",
                    "id": f"toolu_{number}",
                    "name": made["name"],
                    "input": _as_json(made["args"]),
                }

    def _message(self, answer: Answer) -> dict[str, Any]:
        _, calls = split(answer)
        return {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5-20250929",
            "content": [],
            "stop_reason": answer.reason
            or ("max_tokens" if answer.is_cut else "tool_use" if calls else "end_turn"),
            "stop_sequence": None,
            "usage": {
                "input_tokens": answer.input_tokens - answer.cached_tokens,
                "cache_read_input_tokens": answer.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": OUTPUT_TOKENS,
            },
        }


WIRES: dict[str, Wire] = {
    "/v1beta/models/": Gemini(),
    "/v1/models/": Gemini(),
    "/v1beta1/projects/": Gemini(),
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}
"""By the path that a request begins with."""


def wire_of(path: str) -> Wire:
    return next(wire for begin, wire in WIRES.items() if path.startswith(begin))
