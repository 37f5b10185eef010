"""An agent's answer: Markdown is rendered on a terminal, and left as it is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.orchestrator.cli.terminal.output import payload, printable, stdout_is_terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown


def print_answer(text: str) -> None:
    """Print an agent's answer as the payload; nothing if it is empty.

    Args:
        text: The answer, which may hold anything.
    """
    if not text.strip():
        return
    if not stdout_is_terminal():
        payload(text)
        return
    from rich.console import Console  # noqa: PLC0415 - a pipe needs no rich
    from rich.markdown import Markdown  # noqa: PLC0415 - the same

    # Without hyperlinks an address is text: a link could name one place and lead to another.
    Console().print(_Inert(Markdown(printable(text), hyperlinks=False)))


class _Inert:
    """Rendered Markdown that controls nothing: an entity (`&#x202e;`) becomes a character here."""

    def __init__(self, markdown: Markdown) -> None:
        self._markdown = markdown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment  # noqa: PLC0415 - a pipe needs no rich

        for segment in console.render(self._markdown, options):
            if not segment.control:
                yield Segment(printable(segment.text), segment.style)
