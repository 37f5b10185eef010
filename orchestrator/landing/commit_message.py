"""The message of a commit with a job's changes.

An agent wrote the summary, and a person pushes the commit. So the text may not control a terminal,
and nothing in it means something to Git, to a mail that carries a patch, or to a service that hosts
the repository: no trailer, no "Closes #1", no "[skip ci]".
"""

from __future__ import annotations

import re
import textwrap

from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.valid_text import printable

SUBJECT_CHARACTERS = 72
"""Of a commit's first line, as Git's own documentation advises."""

_OBEYED_LINE = re.compile(
    r"""
      [A-Za-z0-9]+(?:-[A-Za-z0-9]+)+\s*:                    # Signed-off-by: and other trailers
    | (?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|implement(?:s|ed)?|refs?|references|issues?|bug|cc
        |link|depends|related|relates|see)\s*:
    | BREAKING\ CHANGE\s*:
    | ---|\+\+\+\ |diff\ |Index:\ |@@\ |>?From\ |\*\*\*\ |\#\ -+\ >8   # patches, mails, scissors
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Begins a line that a program would take for more than text."""

_CLOSES = re.compile(
    r"\b(close[sd]?|closing|fix(?:e[sd]|ing)?|resolve[sd]?|resolving|implement(?:s|ed|ing)?)"
    r"(\s*:?\s+|\s*:\s*)(?=(?:issues?\s+)?(?:[\w./-]*[#!]\d|GH-\d|[A-Z][A-Z0-9]+-\d|https?://))",
    re.IGNORECASE,
)
"""Words that close an issue of a hosting service or of a tracker, before its number."""

_SKIPS = re.compile(
    r"\[((?:skip|no)[ -](?:ci|actions|build)|(?:ci|actions|build)[ -]skip|skip[ -]\w+ci)\]"
    r"|\*\*\*(NO_CI)\*\*\*",
    re.IGNORECASE,
)
"""Keeps a build service from checking the commit."""


def commit_message(record: JobRecord, summary: str) -> str:
    """Return a commit's message: a job's summary, and trailers that say which job it was.

    Args:
        record: The job.
        summary: What its agent says about the changes; its lines that programs would obey are
            quoted with `>`.
    """
    text = printable(summary).strip()
    text = _SKIPS.sub(lambda found: f"({found[1] or found[2]})", text)
    text = _CLOSES.sub(r"\1 - ", text)
    lines = text.split("\n")
    first = lines[0].lstrip("# \t").strip() or f"Job {record.id}"
    subject = textwrap.shorten(_quoted(first), SUBJECT_CHARACTERS, placeholder=" …")
    if len(subject) > SUBJECT_CHARACTERS or subject == "…":
        subject = f"{first[: SUBJECT_CHARACTERS - 1]}…"
    rest = lines if subject != first else lines[1:]
    body = "\n".join(map(_quoted, rest)).strip()
    trailers = f"Fanout-Job: {record.id}\nFanout-Tree: {record.root_id}"
    return "\n\n".join(filter(None, (subject, body, trailers)))


def _quoted(line: str) -> str:
    return f"> {line}" if _OBEYED_LINE.match(line.lstrip()) else line
