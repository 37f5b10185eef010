"""Changes that become code on this machine: what a person is told and asked about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.questions import confirm

OPTION = "--include-executable-config"
OPTION_HELP = (
    "Also merge files that this machine may run without asking, such as .envrc, .vscode and "
    ".github/workflows; without it they are held back, and asked about at a terminal."
)
SHOWN_PATHS = 10
"""In a question: it has to be read before it is answered."""


class HeldBackChange(Protocol):
    """A change that was held back."""

    @property
    def path(self) -> str:
        """The path of the file."""

    @property
    def reason(self) -> str:
        """What makes it code."""


def may_land(held_back: Sequence[HeldBackChange], *, ask: bool = True) -> bool:
    """Ask a person at a terminal whether held back changes may land; no is the default.

    Args:
        held_back: The changes; nothing is asked if there are none.
        ask: False answers no without asking.
    """
    at_terminal = output.stdin_is_terminal() and output.stderr_is_terminal()
    if not (held_back and ask and at_terminal):
        return False
    for line in lines(held_back[:SHOWN_PATHS]):
        output.notice(line)
    more = len(held_back) - SHOWN_PATHS
    if more > 0:
        output.notice(f"… and {more} more")
    count = "this change" if len(held_back) == 1 else f"these {len(held_back):,} changes"
    return confirm(f"Merge {count} too?")


def hidden_lines(paths: Sequence[str]) -> list[str]:
    """Return what a person is told of merged files with hidden names that are in no table."""
    if not paths:
        return []
    shown = ", ".join(output.one_line(path) for path in paths[:SHOWN_PATHS])
    more = f" and {len(paths) - SHOWN_PATHS} more" if len(paths) > SHOWN_PATHS else ""
    return [f"hidden    {shown}{more}: a tool may obey it; read it before you work in the folder."]


def lines(held_back: Sequence[HeldBackChange]) -> list[str]:
    """Return a line for each held back change."""
    return [f"held back {output.one_line(held.path)}: {held.reason}" for held in held_back]
