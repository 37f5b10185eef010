"""The blocks of a Markdown text, by the rules of CommonMark."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def markdown_blocks(text: str) -> list[Token]:
    """Return the tokens of a text's blocks; nothing looks into their lines.

    A million characters take five seconds, so call it in a thread.
    """
    return _parser().parse(text)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - few texts need it

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser
