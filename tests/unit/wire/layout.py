"""The layout of Redis: which keys the scripts write, of which kind, and with which fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

from fanout.orchestrator.jobs.store.keys import Keys

KINDS = {
    "HSET": "hash", "HSETNX": "hash", "HINCRBY": "hash", "HINCRBYFLOAT": "hash",
    "SET": "string", "INCR": "string", "INCRBY": "string",
    "ZADD": "sorted set", "SADD": "set", "RPUSH": "list", "LPUSH": "list", "XADD": "stream",
    "PUBLISH": "channel",
}  # fmt: skip
"""Command that adds to a key -> the key's kind."""
APPENDED = {"indexes": "sorted set", "sets": "set"}
"""The lists of `enqueue` in common.lua that collect what several jobs enter -> the keys' kind."""
OTHER_FIELDS = "(any)"
"""Fields that are not written literally, but by the caller's arguments."""

_COMMENT = re.compile(r"--.*")
_CALL = re.compile(r"(?:redis\.call|append)(?=\()")
_KEY = re.compile(r"key\(('\w+'(?:, '\w+')*)")
_LOCAL = re.compile(r"local ([\w, ]+) = (.*key\(.*)")
_LITERAL = re.compile(r"'(\w+)'")


def layout() -> dict[str, Any]:
    """Return the keys by name: their kind, and of hashes the fields.

    The names are those that a script writes literally, without the ids behind them; and those of
    `Keys`, which Python code uses too, with the names of what takes an id's place.
    """
    return {"scripts": _of_scripts(), "keys": dict(sorted(_named()))}


def _of_scripts() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for script in sorted(_scripts()):
        names = _local_keys(script)
        for command, *arguments in _calls(script):
            target, *values = arguments or [""]
            kind = KINDS.get(command) or APPENDED.get(command)
            name = _key_name(target) or names.get(target)
            if kind is None or name is None:
                continue
            entry = found.setdefault(name, {"kinds": set(), "fields": set()})
            entry["kinds"].add(kind)
            if kind == "hash":
                fields = values[::2] if command == "HSET" else values[:1]
                entry["fields"].update(map(_field, fields))
    return {
        name: {part: sorted(values) for part, values in entry.items() if values}
        for name, entry in sorted(found.items())
    }


def _scripts() -> Iterator[str]:
    folder = resources.files("fanout.orchestrator.jobs") / "lua"
    for file in folder.iterdir():
        yield _COMMENT.sub("", file.read_text("utf-8"))


def _calls(script: str) -> Iterator[list[str]]:
    """Yield the arguments of each command, the command first; of `append`, the list's name."""
    for call in _CALL.finditer(script):
        arguments = _arguments(script, call.end() + 1)
        literal = _LITERAL.fullmatch(arguments[0])
        yield [literal[1] if literal else arguments[0], *arguments[1:]]


def _arguments(script: str, start: int) -> list[str]:
    """Return the arguments of a call whose opening parenthesis ends at `start`."""
    depth, at, found = 0, start, []
    for end in range(start, len(script)):
        character = script[end]
        if depth == 0 and character in ",)":
            found.append(" ".join(script[at:end].split()))
            at = end + 1
        if character == ")" and depth == 0:
            break
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(character, 0)
    return found


def _key_name(expression: str) -> str | None:
    match = _KEY.match(expression)
    return ":".join(_LITERAL.findall(match[1])) if match else None


def _local_keys(script: str) -> dict[str, str]:
    """Return the names of the keys in local variables, by variable."""
    found = {}
    for names, values in _LOCAL.findall(script):
        for name, value in zip(names.split(", "), _arguments(f"{values})", 0), strict=False):
            if key := _key_name(value):
                found[name] = key
    return found


def _field(argument: str) -> str:
    literal = _LITERAL.fullmatch(argument)
    return literal[1] if literal else OTHER_FIELDS


def _named() -> Iterator[tuple[str, str]]:
    for name, member in vars(Keys).items():
        if isinstance(member, property):
            yield str(getattr(Keys(), name)), _kind(member.__doc__)
        elif inspect.isfunction(member) and not name.startswith("_"):
            ids = [f"<{each}>" for each in inspect.signature(member).parameters if each != "self"]
            yield str(member(Keys(), *ids)), _kind(member.__doc__)


def _kind(words: str | None) -> str:
    return (words or "").partition(":")[0]
