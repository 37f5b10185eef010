"""The decisions in a conversation, found by their words: they survive a summarizer that fails."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from google.adk.events import Event

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.messages import is_reply, text_of

MAX_DECISIONS = 10
"""The newest; S1's limit."""

MAX_DECISION_CHARACTERS = 300
"""A long sentence; what is longer is a list or code without full stops."""

_WORDS = re.compile(
    r"\b(decid(e|ed|ing)|decision|will use|(going|go|went) with|cho(ose|osing|se|sen)|select(ed|ing)"
    r"|opt(ed)? for|settled on|agreed|instead of|rather than)\b",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_HEADING = re.compile(r"^#+\s*(.*)$", re.MULTILINE)


def key_decisions(events: Iterable[Event], earlier: str = "") -> tuple[str, ...]:
    """Return the agent's decisions in order, the newest ones if there are many.

    English words tell a decision; a section of decisions in the earlier summary counts as well,
    and without an earlier summary a decision in another language is not found.

    Args:
        events: The conversation's messages.
        earlier: The previous summary; may be empty.
    """
    found = dict.fromkeys(_in_summary(earlier))
    for event in events:
        if is_reply(event):
            for sentence in _SENTENCES.split(text_of(event, "\n")):
                if _WORDS.search(sentence) and (decision := _short(sentence)):
                    found.pop(decision, None)
                    found[decision] = None
    return tuple(found)[-MAX_DECISIONS:]


def decisions_text(decisions: Sequence[str]) -> str:
    """Return the decisions as a section of a summary; empty without one."""
    lines = [f"- {decision}" for decision in decisions]
    return "\n".join([prompts.DECISIONS_HEADING, *lines]) if lines else ""


def _in_summary(summary: str) -> Iterable[str]:
    """Yield the lines of the section of decisions, which the summarizer is told to write."""
    for heading in _HEADING.finditer(summary):
        if heading[1].strip() == prompts.DECISIONS_HEADING.removeprefix("## "):
            section = summary[heading.end() :].partition("\n#")[0]
            lines = (_short(line.lstrip(" -*")) for line in section.splitlines())
            yield from (line for line in lines if line and line.lower().rstrip(".") != "none")


def _short(sentence: str) -> str:
    return sentence.strip()[:MAX_DECISION_CHARACTERS]
