"""What a job's programs use of models: read from the answers of hosts with credentials.

Three services' formats are read, whole or as events: Anthropic's messages, Gemini's
generateContent, OpenAI's chat completions and responses, with whatever else reports its `usage`
like these. The answers are passed on as they come: a reader gets each part after it was sent, keeps
a bounded end of it, and never fails. An answer of which it can read nothing counts as a request.

What an answer reports grows while it is streamed, so the largest number of each kind counts; text
that a model was made to write can thus not lower it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fanout.orchestrator import deep_agent

if TYPE_CHECKING:
    from fanout.orchestrator.deep_agent import ModelUsage

Price = Callable[[str, "ModelUsage"], float | None]
"""Returns what an answer of a model cost in US dollars; None if its price is unknown."""

MAX_PARSED_BYTES = 256 << 10
"""The longest event, or whole answer, that is parsed: it takes some milliseconds."""
TAIL_BYTES = 16 << 10
"""How much is kept of the end of a longer one, where services put the usage."""
MOST_TOKENS = 10**9
"""More than any answer has; a larger number is not true."""
MAX_MODEL_CHARACTERS = 100
"""The longest name of a model that is kept: the longest that there are have half as many."""

_ANSWERS = re.compile(
    r"(/chat/completions|/completions|/responses|/messages|:(stream)?generateContent)$",
    re.IGNORECASE,
)
"""The ends of the paths at which models answer."""
_USAGE = re.compile(rb'(?<!\\)"(?:usage|usageMetadata)"\s*:\s*(?=\{)')
_SUCCESS = range(200, 300)


class ModelMeter:
    """The sum over all answers of one attempt."""

    def __init__(self, price: Price | None = None) -> None:
        """Begin at nothing.

        Args:
            price: of an answer; without it no cost is known.
        """
        self._price = price
        self._used = deep_agent.ModelUsage()
        self.unread = 0
        """The answers that said nothing of tokens, or in another format."""
        self.unpriced = ""
        """A model of unknown price; empty for none."""

    def total(self) -> ModelUsage:
        """Return what was used so far: all requests, and what their answers told."""
        return self._used

    def reading(self, method: str, path: str) -> AnswerReader:
        """Return the reader of the answer to a request.

        Args:
            method: the request's.
            path: the request's, without its query.
        """
        return AnswerReader(self, is_of_model=method == "POST" and bool(_ANSWERS.search(path)))

    def add(self, used: ModelUsage | None, model: str) -> None:
        """Add an answer.

        Args:
            used: its tokens; None: they are not known.
            model: the model's name as the answer has it; empty for none.
        """
        if used is None:
            self.unread += 1
            self._used = self._used.plus(deep_agent.ModelUsage(model_calls=1))
            return
        cost = self._price(model, used) if self._price is not None and model else None
        if cost is None:
            self.unpriced = model or "(without a name)"
        self._used = self._used.plus(replace(used, model_calls=1, cost_usd=cost))


class AnswerReader:
    """Reads one answer while it is passed on."""

    def __init__(self, meter: ModelMeter, *, is_of_model: bool) -> None:
        self._meter = meter
        self._is_of_model = is_of_model
        self._is_read = self._has_events = False
        self._line = _BoundedEnd()
        self._counts: dict[str, int] = {}
        self._model = ""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head of the answer.

        Args:
            status: its status.
            headers: by lower-case names.
        """
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._has_events = kind == "text/event-stream"
        is_plain = headers.get("content-encoding", "identity").strip().lower() == "identity"
        is_success = status in _SUCCESS
        self._is_of_model = is_success and (self._is_of_model or self._has_events)
        self._is_read = is_success and is_plain and (self._has_events or kind.endswith("json"))

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        if not self._is_read:
            return
        if not self._has_events:
            self._line.add(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._line.add(line)
            self._take_event()
        self._line.add(rest)

    def end(self) -> None:
        """Add the answer to the meter, also one that was cut off."""
        if self._is_read:
            self._take_event() if self._has_events else self._take(self._line)
        if self._counts:
            self._meter.add(_usage(self._counts), self._model)
        elif self._is_of_model:
            self._meter.add(None, "")
        self._is_read = self._is_of_model = False
        self._counts = {}

    def _take_event(self) -> None:
        self._take(self._line, b"data:")
        self._line = _BoundedEnd()

    def _take(self, text: _BoundedEnd, prefix: bytes = b"") -> None:
        if not text.begins_with(prefix):
            return
        for reported in _reported(text, prefix):
            self._model = reported.model or self._model
            for name, count in reported.counts():
                self._counts[name] = max(self._counts.get(name, 0), count)


class _BoundedEnd:
    """Bytes that are kept whole up to a length, and their end beyond it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_whole = True
        self._beginning = b""

    def add(self, part: bytes) -> None:
        """Add bytes."""
        if len(self._beginning) < len(b"data:"):
            self._beginning += part[: len(b"data:") - len(self._beginning)]
        self.data += part
        if len(self.data) > MAX_PARSED_BYTES or (not self.is_whole and len(self.data) > TAIL_BYTES):
            self.is_whole = False
            del self.data[:-TAIL_BYTES]

    def begins_with(self, prefix: bytes) -> bool:
        """Return whether all that was added begins so."""
        return self._beginning.startswith(prefix)


class _Reported:
    """A usage that an answer reports, and the name of its model."""

    def __init__(self, usage: Mapping[str, Any], model: Any) -> None:
        self._usage = usage
        self.model = model[:MAX_MODEL_CHARACTERS] if isinstance(model, str) else ""

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield the numbers of tokens by our names of them."""
        for name, path in _NAMES:
            value: Any = self._usage
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS:
                yield name, value


_NAMES = (
    ("read", ("input_tokens",)),  # Anthropic: without those of its cache; OpenAI's responses: all
    ("cache_written", ("cache_creation_input_tokens",)),
    ("cache_read", ("cache_read_input_tokens",)),
    ("written", ("output_tokens",)),
    ("cached", ("input_tokens_details", "cached_tokens")),
    ("read", ("prompt_tokens",)),  # OpenAI's chat completions
    ("written", ("completion_tokens",)),
    ("cached", ("prompt_tokens_details", "cached_tokens")),
    ("read", ("promptTokenCount",)),  # Gemini
    ("read_by_tools", ("toolUsePromptTokenCount",)),
    ("written", ("candidatesTokenCount",)),
    ("thought", ("thoughtsTokenCount",)),
    ("cached", ("cachedContentTokenCount",)),
)
"""Our name of a number of tokens, and the names of the services."""


def _usage(counts: Mapping[str, int]) -> ModelUsage:
    get = counts.get
    cache_read = get("cache_read", 0)
    return deep_agent.ModelUsage(
        input_tokens=get("read", 0)
        + get("cache_written", 0)
        + cache_read
        + get("read_by_tools", 0),
        output_tokens=get("written", 0) + get("thought", 0),
        cached_tokens=cache_read + get("cached", 0),
    )


def _reported(text: _BoundedEnd, prefix: bytes) -> Iterator[_Reported]:
    """Yield each usage in an event or a whole answer."""
    if not text.is_whole:
        yield from _at_end(bytes(text.data))
        return
    if b'"usage' not in text.data:
        return
    try:
        value = json.loads(text.data[len(prefix) :])
    except (ValueError, RecursionError):
        return
    for one in value if isinstance(value, list) else (value,):  # Gemini's stream without events
        if isinstance(one, Mapping):
            yield from _of_object(one)


def _of_object(value: Mapping[str, Any]) -> Iterator[_Reported]:
    """Yield the usage of an answer, and of the one in it: `message` or `response`."""
    inner = (value.get(name) for name in ("message", "response"))
    for one in (value, *(one for one in inner if isinstance(one, Mapping))):
        usage = one.get("usageMetadata", one.get("usage"))
        if isinstance(usage, Mapping):
            yield _Reported(usage, one.get("modelVersion", one.get("model")))


def _at_end(tail: bytes) -> Iterator[_Reported]:
    """Yield each usage in the end of a long answer."""
    for match in _USAGE.finditer(tail):
        try:
            text = tail[match.end() :].decode(errors="replace")
            usage, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(usage, Mapping):
            yield _Reported(usage, None)
