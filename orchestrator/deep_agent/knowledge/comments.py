"""HTML comments in Markdown, which a person who reads the page does not see."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict

from fanout.orchestrator.deep_agent.markdown import markdown_blocks

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_MARK = re.compile(r"\\[\\`<]|`+|<!--")
"""What a code span or a comment begins with, and the escapes that keep them from beginning."""


def without_comments(text: str) -> str:
    """Return a Markdown text without its HTML comments.

    What is in code stays, and so does a comment that is not closed in its paragraph or block: a
    person sees both. It may take a second for a large text, so call it in a thread.
    """
    if "<!--" not in text:
        return text
    lines = _LINE.findall(text)
    kept: list[str] = []
    done = 0
    for token in markdown_blocks(text):
        if token.type in ("inline", "html_block") and token.map is not None:
            begin, end = token.map
            kept += lines[done:begin]
            block = "".join(lines[begin:end])
            kept.append(_without_comments(block, has_code=token.type == "inline"))
            done = end
    return "".join([*kept, *lines[done:]])


def _without_comments(block: str, *, has_code: bool) -> str:
    """Return a paragraph or an HTML block without comments.

    Args:
        block: Its lines.
        has_code: Whether it may have code spans.
    """
    runs: dict[int, list[int]] = defaultdict(list)
    """The places of runs of backticks, by their length."""
    for run in re.finditer("`+", block) if has_code else ():
        runs[len(run[0])].append(run.start())
    kept: list[str] = []
    place = shown_until = 0
    while mark := _MARK.search(block, place):
        place = mark.end()
        if mark[0] == "<!--":
            # `<!-->` is a whole comment
            end = block.find("-->", mark.start() + 2)
            if end < 0:
                break
            kept.append(block[shown_until : mark.start()])
            place = shown_until = end + 3
        elif mark[0].startswith("`") and has_code:
            ends = runs[len(mark[0])]
            at = bisect_right(ends, mark.start())
            if at < len(ends):
                place = ends[at] + len(mark[0])
    return "".join([*kept, block[shown_until:]])
