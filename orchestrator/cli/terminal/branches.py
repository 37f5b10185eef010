"""What commands say about a branch that changes were committed to, and about kept conflicts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from fanout.orchestrator.landing.branch import BranchReport
from fanout.orchestrator.shortening import count


def branch_lines(report: BranchReport, workspace: Path | None) -> list[str]:
    """Return what became of a branch, with the next commands.

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
    """Return where both sides of conflicts lie, to follow a command."""
    return f" · both sides are in {kept}" if kept else ""
