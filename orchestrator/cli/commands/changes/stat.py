"""Changed files with lines added and removed: `fanout diff --stat`, and the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.grid import padded
from fanout.orchestrator.jobs.changes import ChangeKind, FileChange
from fanout.orchestrator.workspace.hold_back import held_back_by_name


def print_stat(
    files: Sequence[FileChange],
    write: Callable[[str], None] = output.payload,
    most: int | None = None,
    omitted: int = 0,
) -> None:
    """Print the changed files with lines added and removed, the totals, and what is held back.

    Args:
        files: The files.
        write: Prints a line.
        most: Of the files; the others are counted only.
        omitted: Changed files that are not among them.
    """
    named = files[:most]
    width = max((cell_len(_name(change)) for change in named), default=0)
    for change in named:
        lines = "binary" if change.binary else f"+{change.lines_added} -{change.lines_removed}"
        write(f"{padded(_name(change), width)}  {change.change:<8}  {lines}")
    stat = stat_document(files, omitted)
    count = stat["files_changed"]
    if more := count - len(named):
        write(f"… and {more} more")
    lines = f"+{stat['lines_added']} -{stat['lines_removed']}"
    first = f" in the first {len(files)}" if omitted else ""
    write(f"{count} {'file' if count == 1 else 'files'} changed, {lines}{first}")
    for path, reason in held_back_by_name(files).items():
        write(f"held back by a merge: {output.one_line(path)}: {reason}")


def _name(change: FileChange) -> str:
    name = output.one_line(change.path)
    renamed = change.change is ChangeKind.RENAMED and change.from_path
    return f"{output.one_line(change.from_path)} → {name}" if renamed else name


def stat_document(files: Sequence[FileChange], omitted: int = 0) -> dict[str, int]:
    """Return the totals as keys of a JSON document; lines of omitted files are not known."""
    return {
        "files_changed": len(files) + omitted,
        "lines_added": sum(change.lines_added for change in files),
        "lines_removed": sum(change.lines_removed for change in files),
    }
