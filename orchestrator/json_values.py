"""Any value of a program as JSON: what a tool returned, whatever it is."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from .valid_text import clean_text, unused_key

MAX_DEPTH = 100
"""Levels of lists and objects: what a Struct of Protocol Buffers may have, in which Gemini takes
results."""

MAX_ITEMS = 100_000
"""Items that are taken of an iterator, which may have no end."""

MAX_INTEGER_BITS = 1024
"""Larger integers are texts: readers of JSON take none beyond a double."""


class NotJson(ValueError):
    """A value cannot be JSON; the message says why."""


def json_value(
    value: Any, keeps: Callable[[Any, int], bool] = lambda *_: False, *, depth: int = 0
) -> Any:
    """Return a value as one that JSON, every encoding and every service can hold.

    What is JSON is returned unchanged, not as a copy. Bytes are text if they are UTF-8, and else
    Base64; `NaN` and infinite numbers are texts; keys are texts, with a number if two are equal;
    an object of a class that pydantic does not know is what `str` makes of it.

    Args:
        value: The value.
        keeps: Whether a value, at a depth, is to be left as it is.
        depth: The levels above the value.

    Raises:
        NotJson: It is too deep, contains itself, or cannot be read.
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool) or keeps(value, depth):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INTEGER_BITS else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == MAX_DEPTH:
        raise NotJson(f"it has more than {MAX_DEPTH} levels, or contains itself")
    if isinstance(value, Mapping):
        return _json_object(value, keeps, depth + 1)
    if isinstance(value, Iterator):
        value = _items(value)
    if isinstance(value, list | tuple):
        items = [json_value(item, keeps, depth=depth + 1) for item in value]
        is_same = isinstance(value, list) and all(map(_is, items, value))
        return value if is_same else items
    return json_value(_read(value), keeps, depth=depth + 1)


def _json_object(
    value: Mapping[Any, Any], keeps: Callable[[Any, int], bool], depth: int
) -> Mapping[str, Any]:
    inner = [json_value(each, keeps, depth=depth) for each in value.values()]
    keys = list(map(_key, value))
    if (
        isinstance(value, dict)
        and all(map(_is, keys, value))
        and all(map(_is, inner, value.values()))
    ):
        return value
    taken = {key for key, old in zip(keys, value, strict=True) if key is old}
    read: dict[str, Any] = {}
    for key, old, item in zip(keys, value, inner, strict=True):
        unique = key if key is old else unused_key(key, taken)
        taken.add(unique)
        read[unique] = item
    return read


def _key(key: Any) -> str:
    if isinstance(key, str):
        return clean_text(key)
    value = json_value(key)
    return value if isinstance(value, str) else str(value)


def _items(iterator: Iterator[Any]) -> list[Any]:
    items = list(islice(iterator, MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
        raise NotJson(f"it is an iterator with more than {MAX_ITEMS:,} items")
    return items


def _read(value: Any) -> Any:
    """Return a value of any other type as one of the types of JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    try:
        if isinstance(value, BaseModel):
            return value.model_dump()
        if is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        return to_jsonable_python(value, fallback=str)
    except Exception as error:
        raise NotJson(f"its {type(value).__name__} cannot be read") from error


def _is(new: Any, old: Any) -> bool:
    return new is old
