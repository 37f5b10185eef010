"""What of a folder jobs do not get, and the files that a person includes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.jobs.changes import SkippedFile
from fanout.orchestrator.path_text import os_path, path_text
from fanout.orchestrator.workspace.rooted import PathRefused, check_path
from fanout.orchestrator.workspace.workspace import Workspace

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
    if not (workspace / path).exists():  # as a list of what was not sent shows it
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


@dataclass(frozen=True)
class Shortfall:
    """What jobs do not get of the folders that they start from."""

    left_at_home: tuple[SkippedFile, ...] = ()
    """Files that seem to be secret."""
    left_out: tuple[SkippedFile, ...] = ()
    """Files that cannot be copied."""
    limits: tuple[str, ...] = ()
    """What Git cannot do with the files, a sentence each."""

    @classmethod
    def of(cls, workspaces: Iterable[Workspace]) -> Self:
        """Return what the last snapshots of different folders lack."""
        each = list(workspaces)
        return cls(
            tuple(file for workspace in each for file in workspace.left_at_home),
            tuple(file for workspace in each for file in workspace.skipped),
            tuple(limit for workspace in each for limit in workspace.limits),
        )

    def print(self) -> None:
        """Say it on stderr."""
        _print_files("not sent", self.left_at_home)
        if self.left_at_home:
            output.notice("A job gets such a file with --include PATH.")
        _print_files("left out", self.left_out)
        for limit in self.limits[:SHOWN_FILES]:
            output.notice(output.one_line(limit))

    def document(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {
            "left_at_home": [file.model_dump(mode="json") for file in self.left_at_home],
            "left_out": [file.model_dump(mode="json") for file in self.left_out],
            "limits": list(self.limits),
        }


def _print_files(what: str, files: Sequence[SkippedFile]) -> None:
    for file in files[:SHOWN_FILES]:
        output.notice(f"{what}: {output.one_line(file.path)} ({file.reason.rstrip('.')})")
    if len(files) > SHOWN_FILES:
        output.notice(f"{what}: … and {len(files) - SHOWN_FILES} more")
