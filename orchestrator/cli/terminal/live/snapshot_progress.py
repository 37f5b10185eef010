"""A bar while a large folder is read for a snapshot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.live.waiting import speaking, waiting
from fanout.orchestrator.workspace.workspace import Workspace

_SHOWN_AFTER_SECONDS = 1.0
"""A bar that is gone at once only disturbs."""
_LOOK_SECONDS = 0.1
"""Between two looks at how far it is: a bar that moves less often seems to stand."""


@asynccontextmanager
async def snapshot_progress(workspace: Workspace) -> AsyncIterator[None]:
    """Show how far a snapshot of a folder is, if it takes longer than a moment; a pipe is told so.

    Args:
        workspace: The folder, whose snapshot is stored in the context.
    """
    if not output.stderr_is_terminal():
        with waiting(f"reading the files of {workspace.root}"):
            yield
        return
    is_stored = threading.Event()
    showing = asyncio.ensure_future(asyncio.to_thread(_show, workspace, is_stored))
    try:
        with speaking():
            yield
    finally:
        is_stored.set()
        await showing


def _show(workspace: Workspace, is_stored: threading.Event) -> None:
    if is_stored.wait(_SHOWN_AFTER_SECONDS):
        return
    from rich.console import Console  # noqa: PLC0415 - most snapshots take less than a second
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        shown = bar.add_task("Reading the files", total=None)
        while not is_stored.wait(_LOOK_SECONDS):
            read = workspace.progress
            bar.update(shown, total=read.total_bytes or None, completed=read.done_bytes)
