"""Entries in the files of MCP clients: nothing else in them changes, or the file does not."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NEW_FILE_MODE = 0o600
"""Of a file that did not exist: it may get keys of other servers."""
DEFAULT_INDENT = 2


class NotMergeable(Exception):
    """The file cannot be changed without losing something; the text says what."""


def json_with(
    text: str, section: str, name: str, entry: dict[str, Any], inputs: Sequence[dict[str, Any]] = ()
) -> str:
    """Return a JSON document with an entry.

    Args:
        text: The document; empty for a new one.
        section: The key of the servers.
        name: The name of the server; an entry with this name is replaced.
        entry: Its entry.
        inputs: What the list `inputs` has too, found by `id`.

    Raises:
        NotMergeable: It is no plain JSON, for example because it has comments.
    """
    document = _parsed_json(text)
    servers = document.setdefault(section, {})
    asked = document.setdefault("inputs", []) if inputs else []
    if not isinstance(servers, dict) or not isinstance(asked, list):
        raise NotMergeable(f"its {section!r} or 'inputs' has another form than documented")
    known = {one.get("id") for one in asked if isinstance(one, dict)}
    unknown = [one for one in inputs if one["id"] not in known]
    if servers.get(name) == entry and not unknown:
        return text
    servers[name] = entry
    asked += unknown
    written = json.dumps(document, ensure_ascii=False, indent=_indent_of(text))
    try:
        written.encode()
    except UnicodeEncodeError:  # half of a pair of escapes
        raise NotMergeable("it has texts that are no Unicode") from None
    return written + "\n"


def _parsed_json(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        document = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_float=_exact_float,
            parse_constant=_exact_float,
        )
    except (ValueError, RecursionError) as error:
        raise NotMergeable("it has comments, or is not valid JSON") from error
    if not isinstance(document, dict):
        raise NotMergeable("it is no JSON object")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise NotMergeable("a key occurs in it twice")
    return dict(pairs)


def _exact_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotMergeable("a number in it is too large")
    return number


def _indent_of(text: str) -> str | int:
    """Return the white space of the first line that has some at its beginning."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else DEFAULT_INDENT


def toml_with(text: str, section: str, name: str, entry: dict[str, Any]) -> str:
    """Return a TOML document with an entry; all other lines stay as they are.

    Args:
        text: The document; empty for a new one.
        section: The key of the servers.
        name: The name of the server; a table with this name is replaced.
        entry: Its entry: texts and lists of texts.

    Raises:
        NotMergeable: It is invalid, or has the entry in another form than a table.
    """
    before = _parsed_toml(text)
    header = f"[{section}.{name}]"
    kept = re.sub(
        rf"^{re.escape(header)}[^\n]*\n(?:(?!\[)[^\n]*(?:\n|$))*", "", text, flags=re.MULTILINE
    )
    lines = [f"{key} = {_toml_value(value)}" for key, value in entry.items()]
    parts = [kept.rstrip("\n"), "\n".join([header, *lines])]
    written = "\n\n".join(part for part in parts if part) + "\n"
    before.setdefault(section, {})[name] = entry
    try:
        is_same = tomllib.loads(written) == before
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        raise NotMergeable(f"it has {section}.{name} in a form that cannot be replaced")
    return written


def _parsed_toml(text: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotMergeable("it is not valid TOML") from error
    if not isinstance(document.get("mcp_servers", {}), dict):
        raise NotMergeable("its mcp_servers is no table")
    return document


def _toml_value(value: str | list[str]) -> str:
    """Return a value as TOML: its basic strings have the escapes of JSON."""
    return json.dumps(value)


def read(path: Path) -> str:
    """Return a file's text; empty when it does not exist.

    Raises:
        NotMergeable: It is no text.
        OSError: It cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise NotMergeable("it is not UTF-8") from error


def replace(path: Path, expected: str, text: str) -> None:
    """Replace a file at once, with its permissions; a link stays a link.

    Args:
        path: The file.
        expected: What it contained when it was read.
        text: What it is to contain.

    Raises:
        NotMergeable: Another program has changed it meanwhile.
        OSError: It cannot be written.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, NEW_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if read(target) != expected:
            raise NotMergeable("another program has just changed it: end it and try again")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
