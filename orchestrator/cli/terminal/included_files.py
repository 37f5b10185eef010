"""Files that stay at home because they seem to be secret, and those that a person includes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.jobs.changes import SkippedFile
from fanout.orchestrator.path_text import os_path, path_text
from fanout.orchestrator.workspace.rooted import PathRefused, check_path

SHOWN_FILES = 20
"""More lines would hide what else a command says."""

IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="PATH",
        help="A file of the workspace that jobs get although Git ignores it or it seems to be "
        "secret; repeat for several.",
    ),
]


def included_files(paths: Sequence[str], workspace: Path) -> frozenset[str]:
    """Return the paths of files that a person includes, relative to the workspace.

    Args:
        paths: As the person wrote them: relative to the workspace, or absolute.
        workspace: The workspace's absolute path.

    Raises:
        UsageProblem: One is not a file of the workspace.
    """
    return frozenset(_included(path, workspace) for path in paths)


def _included(text: str, workspace: Path) -> str:
    path = Path(text).expanduser()
    if not (workspace / path).exists():  # as a list of what was left at home shows it
        path = Path(os_path(text)).expanduser()
    try:
        inner = (path.relative_to(workspace) if path.is_absolute() else path).as_posix()
        check_path(path_text(inner))
        is_file = (workspace / inner).is_file()
    except (ValueError, PathRefused):
        is_file = False
    if not is_file:
        raise UsageProblem(f"--include {text!r} is not a file in {workspace}: name one.")
    return inner


def print_left_at_home(files: Sequence[SkippedFile]) -> None:
    """Say on stderr which files jobs do not get because they seem to be secret."""
    for file in files[:SHOWN_FILES]:
        output.notice(f"left at home: {output.one_line(file.path)} ({file.reason.rstrip('.')})")
    if len(files) > SHOWN_FILES:
        output.notice(f"left at home: … and {len(files) - SHOWN_FILES} more")
    if files:
        output.notice("A job gets such a file with --include PATH.")


def left_at_home_document(files: Sequence[SkippedFile]) -> list[dict[str, Any]]:
    """Return the files for a JSON document."""
    return [file.model_dump(mode="json") for file in files]
