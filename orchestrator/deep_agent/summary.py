"""The part of an agent's last message that its parent reads."""

from __future__ import annotations

import re

_HEADING = re.compile(r"^##[ \t]+Summary[ \t]*:?[ \t]*$", re.IGNORECASE | re.MULTILINE)
_CUT = "\n… (cut)"


def summary_of(message: str, max_characters: int) -> str:
    """Return the text under the last `## Summary` heading, else the whole message.

    Args:
        message: The agent's last message.
        max_characters: The length of the result at most.
    """
    headings = list(_HEADING.finditer(message))
    text = message[headings[-1].end() :].strip() if headings else ""
    text = text or message.strip()
    if len(text) <= max_characters:
        return text
    return text[: max_characters - len(_CUT)].rstrip() + _CUT
