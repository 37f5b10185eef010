"""The commands' texts about landing changes: held back ones, branches, and kept conflicts.

Changes that become code on this machine are held back until a person permits them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ...landing.branch import BranchReport
from ...shortening import count
from ...workspace.merge_report import MergeReport
from . import output
from .questions import confirm

OPTION = "--include-executable-config"
OPTION_HELP = (
    "Also merge files that this machine may run without asking, such as .envrc, .vscode and "
    ".github/workflows; without it they are held back, and asked about at a terminal."
)
SHOWN_PATHS = 10
"""The most paths in a question: it has to be read before it is answered."""


def branch_lines(report: BranchReport, workspace: Path | None) -> list[str]:
    """Return the lines about a branch, with the next commands.

    Args:
        report: The landing.
        workspace: The folder whose repository has the branch.
    """
    name = shlex.quote(report.branch)
    git = "git" if workspace is None else f"git -C {shlex.quote(str(workspace))}"
    see = f"To see it: {git} diff HEAD...{name} · to merge it: {git} merge {name}"
    if report.outcome == "nothing":
        return [f"Nothing could be committed, so there is no branch {report.branch}."]
    if report.outcome == "before":
        return [f"It was committed to branch {report.branch} before.", see]
    return [f"Branch {report.branch} has {count(len(report.commits), 'new commit')}.", see]


def branch_document(report: BranchReport | None) -> dict[str, Any]:
    """Return a branch as keys of a JSON document."""
    if report is None:
        return {"branch": None, "commits": []}
    return {"branch": report.branch, "commits": [vars(one) for one in report.commits]}


def kept_note(kept: Path | None) -> str:
    """Return the place of both sides of conflicts, as an addition to a command."""
    return f" · both sides are in {kept}" if kept else ""


class HeldBackChange(Protocol):
    """A change that was held back."""

    @property
    def path(self) -> str:
        """The path of the file."""

    @property
    def reason(self) -> str:
        """The reason why it is code."""


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
    """Return the lines about merged files with hidden names that are in no table."""
    if not paths:
        return []
    shown = ", ".join(output.one_line(path) for path in paths[:SHOWN_PATHS])
    more = f" and {len(paths) - SHOWN_PATHS} more" if len(paths) > SHOWN_PATHS else ""
    return [f"hidden    {shown}{more}: a tool may obey it; read it before you work in the folder."]


def unlanded_lines(report: MergeReport) -> list[str]:
    """Return a line for each change that did not land, all but those that conflict."""
    left = [
        f"{kind:<8}  {output.one_line(one.path)}: {output.one_line(one.reason)}"
        for kind in ("refused", "failed", "skipped")
        for one in getattr(report, kind)
    ]
    return [*left, *hidden_lines(report.unknown_hidden), *lines(report.held_back)]


def lines(held_back: Sequence[HeldBackChange]) -> list[str]:
    """Return a line for each held back change."""
    return [f"held back {output.one_line(held.path)}: {held.reason}" for held in held_back]
