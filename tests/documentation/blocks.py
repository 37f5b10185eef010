"""The fenced blocks of the pages that people read, and what is written in front of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from tests.architecture.sources import REPOSITORY

NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->\s*$")
DIRECTIVE = re.compile(r"\{([\w-]+)\}\s*(\w*)")
OPTION = re.compile(r":([\w-]+): (.*)\n")
RUN = {"sh", "python"}
CHECKED = {"yaml", "toml", "json", "ini"}
SHOWN = {"text"}
"""Pictures and output."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    caption: str = ""
    """The name of the file that it is the content of."""
    not_run: str = ""
    """Why it cannot run."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


@cache
def pages() -> tuple[Path, ...]:
    """All pages that are written by hand."""
    written = (one for one in (REPOSITORY / "docs").glob("*.md") if one.name != "README.md")
    return (
        *(REPOSITORY / name for name in ("README.md", "SECURITY.md", "GLOSSARY.md")),
        *sorted(written),
    )


@cache
def blocks() -> tuple[Block, ...]:
    """All blocks of all pages; Sphinx's own directives are none."""
    return tuple(block for page in pages() for block in blocks_of(page))


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    found = []
    reason = ""
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and (block := _block(page, token, reason)):
            found.append(block)
        match = NOT_RUN.match(token.content) if token.type == "html_block" else None
        reason = match[1] if match else ""
    return tuple(found)


def _block(page: Path, token, reason: str) -> Block | None:
    info, text, caption = token.info.strip(), token.content, ""
    if directive := DIRECTIVE.match(info):
        if directive[1] != "code-block":
            return None
        info = directive[2]
        while option := OPTION.match(text):
            caption = option[2] if option[1] == "caption" else caption
            text = text[option.end() :]
    return Block(page, token.map[0] + 1, info, text, caption, reason)


def code_spans(page: Path) -> list[str]:
    """What stands as code in the sentences and tables of a page."""
    return [
        child.content
        for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
        for child in token.children or ()
        if child.type == "code_inline"
    ]
