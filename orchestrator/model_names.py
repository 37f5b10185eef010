r"""The form of a model's name, whoever gives it.

A name is a word for a service, never an address. Clients put it into addresses: LiteLLM asks
`oobabooga/http://HOST` at HOST, others append it to a path. So no name has an address, a path that
leads upwards, a query, an escape, or a character that cannot be seen.
"""

from __future__ import annotations

import re

SCRIPTED = "scripted:"
"""The prefix of a scripted model, which is followed by the path of a file."""

MAX_NAME_CHARACTERS = 512
"""The longest name: the longest real ones, ARNs of Amazon Bedrock, have some 200 characters."""
MAX_PATH_CHARACTERS = 4_096
"""The longest path of a script that Linux allows."""

_AT = r"@(?![\w-]*[.:])"
_WORD = rf"[A-Za-z0-9_~](?:[A-Za-z0-9._:+~=-]|{_AT})*"
_NAME = re.compile(rf"{_WORD}(?:/(?:{_AT})?{_WORD})*")
"""Words of letters, digits and `._:+~=-` between single slashes. `@` is for versions
(`claude-sonnet-4-5@20250929`) and owners (`@cf/…`), and not followed by what may be a host."""

_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def name_fault(name: str) -> str | None:
    """Return a sentence about why a text cannot be a model's name; None if it can.

    The text is not repeated in it: it may be an address with a password, or of any length.

    Args:
        name: One name; the names of a list are checked one by one.
    """
    if name.startswith(SCRIPTED):
        is_path = len(name) <= MAX_PATH_CHARACTERS and not _INVISIBLE.search(name)
        return None if is_path else "The path of a scripted model is too long, or is not text."
    if len(name) > MAX_NAME_CHARACTERS:
        return f"A model's name has at most {MAX_NAME_CHARACTERS} characters, not {len(name)}."
    if ":/" in name or "//" in name or "\\" in name:
        return (
            "A model's name has no address in it: the address of a server is set in the "
            "environment of the workers, for example as OPENAI_BASE_URL for chat/NAME."
        )
    if _NAME.fullmatch(name) and not _has_dots_only(name):
        return None
    return (
        "A model's name consists of letters, digits and . _ : + ~ = - between single slashes, "
        "with @ before a version only."
    )


def _has_dots_only(name: str) -> bool:
    """Return whether a part of a path is `.`, `..` or empty, and so leads elsewhere."""
    return any(not part.strip(".") for part in re.split("[/:]", name) if part)
