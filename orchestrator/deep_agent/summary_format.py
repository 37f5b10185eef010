"""How a summary is recognized in a conversation: by its first sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.genai import types

from fanout.orchestrator.deep_agent import prompts

_SUMMED_UP = re.compile(re.escape(prompts.SUMMARY_BEGINS).replace(r"\{replies\}", r"(\d+)"))


def summary_text(content: types.Content | None) -> str:
    """Return the summary in a content; empty if it is not a summary."""
    parts = (content.parts if content else None) or []
    found = next((found for part in parts if (found := _SUMMED_UP.match(part.text or ""))), None)
    return found.string[found.end() :].strip() if found else ""


def summed_up_replies(content: types.Content) -> int:
    """Return how many replies of the model a summary replaces; 0 for any other content."""
    found = (_SUMMED_UP.match(part.text or "") for part in content.parts or [])
    return next((int(match[1]) for match in found if match), 0)


def above_summary(content: types.Content) -> Sequence[types.Part]:
    """Return the parts above a summary, which hold the task; all parts of any other content."""
    parts = content.parts or []
    ends = (index for index, part in enumerate(parts) if _SUMMED_UP.match(part.text or ""))
    return parts[: next(ends, len(parts))]
