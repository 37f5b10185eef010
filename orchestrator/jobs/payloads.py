"""Payloads: the long values in a job's journal, each stored once, under the hash of its content.

The output of a tool occurs in the agent's event, from which the conversation is resumed, and in the
view for people; and an agent may read the same file twice. So an entry of a journal names its long
values, which are stored apart: next to the journal, or as blobs if they are large. Such an entry
has

- `event_outline`: the agent's event without its long values;
- the beginning of each long value in the fields for people: only releases that do not know payloads
  need it;
- `payloads`: by name, where each long value belongs.

A reader gets the original entry, with `event`, if all of its values are available.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from .bounds import MAX_EVENT_BYTES, json_bytes

MIN_PAYLOAD_CHARACTERS = 512
"""A value as long as this is a payload: its name and its places take some 400 bytes."""
MAX_PAYLOADS = 100
"""The most payloads of one entry; their names and places take at most 20 KB. An event with more is
stored as one blob."""
SHOWN_CHARACTERS = 2_000
"""The longest text, argument or result that is shown to people."""
PREVIEW_CHARACTERS = 160
"""The length of a payload's beginning that is shown by releases without payloads."""

PAYLOADS_WIRE = 3
"""The first wire version that reads payloads; older releases do not get jobs whose journal names
one."""
OUTLINE, PAYLOADS = "event_outline", "payloads"
"""The parts of an entry's data that are stored in place of `event`."""
GONE = "[This was removed from the blob store, because it had expired.]"
"""The text that replaces a value that is no longer stored anywhere."""

_Path = tuple[str | int, ...]
_OF_TOOLS = {"function_call": "args", "function_response": "response"}
"""The parts of a message whose fields hold the arguments or results of tools, each with the name of
that field."""
_FREE = frozenset({"args", "response", "state_delta", "arguments", "result"})
"""Fields whose values may be of any kind."""


@dataclass(frozen=True)
class Payload:
    """A long value: a text as it is, any other value as JSON."""

    content: bytes
    is_json: bool

    @classmethod
    def of(cls, value: JsonValue) -> Payload:
        """Return a value as a payload; its texts have to be valid."""
        if isinstance(value, str):
            return cls(value.encode(), is_json=False)
        return cls(json.dumps(value, ensure_ascii=False).encode(), is_json=True)

    @property
    def name(self) -> str:
        """The SHA-256 of the content, which is also the id of the blob with it."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def is_large(self) -> bool:
        """Whether the value is stored as a blob."""
        return len(self.content) > MAX_EVENT_BYTES

    def packed(self) -> bytes:
        """Return the content as Redis holds it."""
        return zlib.compress(self.content)


def take_out(data: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], dict[str, Payload]]:
    """Return an entry's data as it is stored, and its long values by name.

    Data without long values is returned as it is, and so is data with more than `MAX_PAYLOADS`.

    Args:
        data: The data, with valid texts. `event` is the agent's event; `text`, `arguments` and
            `results` are what people are shown, complete.
    """
    taken: dict[str, Any] = dict(data)
    payloads: dict[str, Payload] = {}
    places: dict[str, dict[str, Any]] = {}
    for path in list(_long_fields(data)):
        value = _look_up(data, path)
        payload = Payload.of(value)
        name = payload.name
        if path == ("text",) and "event" in data and name not in payloads:
            taken["text"] = shown(value)  # the texts of several parts, which are stored already
            continue
        payloads[name] = payload
        of_it = places.setdefault(name, {"bytes": len(payload.content), "at": []})
        of_it["at"].append(_pointer(path))
        if payload.is_json:
            of_it["json"] = True
        if path[0] == "event":
            taken = _replace(taken, path, None)  # its name stays where it was among the others
        else:
            length = SHOWN_CHARACTERS if payload.is_large else PREVIEW_CHARACTERS
            taken = _replace(taken, path, shown(value, length))
    if not payloads:
        return taken, {}
    if len(payloads) > MAX_PAYLOADS:
        return dict(data), {}
    if "event" in taken:
        taken[OUTLINE] = taken.pop("event")
    return taken | {PAYLOADS: places}, payloads


def list_payload_names(data: Mapping[str, JsonValue]) -> dict[str, int]:
    """Return the names of an entry's payloads, with the size of each in bytes."""
    return {name: int(each["bytes"]) for name, each in _places(data).items()}


def put_back(
    data: Mapping[str, JsonValue], contents: Mapping[str, bytes | None]
) -> dict[str, JsonValue]:
    """Return an entry's data with the long values whose contents are given.

    What people are shown of a value is not longer than `SHOWN_CHARACTERS`. The data has `event`
    when none is missing, else what it takes to complete it later.

    Args:
        data: The data as it is stored.
        contents: The contents by name; None for one that is no longer stored.
    """
    places = _places(data)
    if not places:
        return dict(data)
    values = {
        name: _value(contents[name], is_json=bool(each.get("json")))
        for name, each in places.items()
        if name in contents
    }
    done: Any = {**data, "event": data.get(OUTLINE)}
    for name, value in values.items():
        for pointer in places[name]["at"]:
            path = _path(done, pointer)
            if path is None:
                continue  # of a form that this release does not know
            if path[0] != "event":
                done = _replace(done, path, shown(value))
            elif value != GONE or path[-2] in _FREE or path[-1] == "text":
                done = _replace(done, path, value)
    is_complete = values.keys() == places.keys()
    left_out = {OUTLINE, PAYLOADS} if is_complete else {"event"}
    return {
        name: value
        for name, value in done.items()
        if name not in left_out and not (name == "event" and value is None)
    }


def unpacked(packed: bytes, size: int) -> bytes:
    """Return the content of a payload as Redis holds it.

    Args:
        packed: What Redis holds.
        size: The size of the content in bytes.

    Raises:
        ValueError: It is not that.
    """
    try:
        content = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError("A payload is damaged.") from error
    if len(content) != size:
        raise ValueError("A payload is damaged.")
    return content


def shorten(readable: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what people are shown of an entry, without payloads: long values are cut."""
    cut: Any = dict(readable)
    for path in list(_long_fields(readable)):
        cut = _replace(cut, path, shown(_look_up(readable, path)))
    return dict(cut)


def shown(value: JsonValue, characters: int = SHOWN_CHARACTERS) -> JsonValue:
    """Return what people are shown of a value: one that is too long becomes a text that is cut."""
    if isinstance(value, str):
        return value if len(value) <= characters else value[:characters] + "…"
    text = json.dumps(value)
    return value if len(text) <= characters else text[:characters] + "…"


def _long_fields(data: Mapping[str, Any]) -> Iterator[_Path]:
    """Yield the places of long values, those of the agent's event first."""
    for path in _fields(data):
        value = _look_up(data, path)
        if isinstance(value, str):
            if len(value) >= MIN_PAYLOAD_CHARACTERS:
                yield path
        elif isinstance(value, (dict, list)) and json_bytes(value) >= MIN_PAYLOAD_CHARACTERS:
            yield path


def _fields(data: Mapping[str, Any]) -> Iterator[_Path]:
    event = data.get("event")
    if isinstance(event, dict):
        parts = (event.get("content") or {}).get("parts") or ()
        for number, part in enumerate(parts):
            yield from _fields_of_part(part, ("event", "content", "parts", number))
        changed = (event.get("actions") or {}).get("state_delta") or {}
        yield from (("event", "actions", "state_delta", name) for name in changed)
    yield ("text",)
    arguments, results = data.get("arguments"), data.get("results")
    if isinstance(arguments, dict):
        yield from (("arguments", name) for name in arguments)
    for number, one in enumerate(results if isinstance(results, list) else ()):
        returned = one.get("result") if isinstance(one, dict) else None
        if isinstance(returned, dict):
            yield from (("results", number, "result", name) for name in returned)


def _fields_of_part(part: Mapping[str, Any], path: _Path) -> Iterator[_Path]:
    for kind, value in part.items():
        if not isinstance(value, dict):
            yield (*path, kind)
            continue
        of_tool = _OF_TOOLS.get(kind)
        for name, field in value.items():
            if name == of_tool and isinstance(field, dict):
                yield from ((*path, kind, name, one) for one in field)
            else:
                yield (*path, kind, name)


def _places(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payloads of an entry by name, as far as this release can read them."""
    stored = data.get(PAYLOADS)
    return {
        name: each
        for name, each in (stored.items() if isinstance(stored, dict) else ())
        if isinstance(each, dict)
        and isinstance(each.get("bytes"), int)
        and isinstance(each.get("at"), list)
    }


def _value(content: bytes | None, *, is_json: bool) -> Any:
    if content is None:
        return GONE
    text = content.decode()
    return json.loads(text) if is_json else text


def _pointer(path: _Path) -> str:
    """Return a place as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _path(data: Any, pointer: JsonValue) -> _Path | None:
    """Return a JSON pointer as a place in some data; None when its parents are not there."""
    path: list[str | int] = []
    steps = str(pointer).split("/")[1:]
    for index, step in enumerate(steps):
        name: str | int = step.replace("~1", "/").replace("~0", "~")
        if isinstance(data, list):
            if not step.isdecimal() or int(step) >= len(data):
                return None
            name = int(step)
        elif not isinstance(data, dict) or (index < len(steps) - 1 and name not in data):
            return None
        path.append(name)
        data = data[name] if index < len(steps) - 1 else None
    return tuple(path) if path else None


def _look_up(data: Any, path: _Path) -> Any:
    for step in path:
        data = data.get(step) if isinstance(data, Mapping) else data[step]
    return data


def _replace(data: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of the data with another value at one place; the rest of the data is shared."""
    if not path:
        return value
    copy = list(data) if isinstance(data, list) else dict(data)
    first: Any = path[0]
    copy[first] = _replace(copy[first] if len(path) > 1 else None, path[1:], value)
    return copy
