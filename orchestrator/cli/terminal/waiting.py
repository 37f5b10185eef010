"""What a command waits for: it is said when nothing was printed for two seconds.

While a large folder is read for a snapshot, a bar shows how far it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from fanout.orchestrator.cli.terminal import formatting, output

if TYPE_CHECKING:
    from fanout.orchestrator.workspace.workspace import Workspace

SILENT_SECONDS = 2.0
"""A person wonders after about so long."""
MAX_SILENT_SECONDS = 60.0
"""Between two lines of a pipe about the same wait; each pause is twice as long as the one before,
so that a log of hours stays short."""
_LOOK_SECONDS = 0.25
"""Between two looks whether anything was printed, and two pictures of a terminal."""

_open: list[_Wait] = []
"""What is waited for at this moment; the last one is the most exact, and the only one to speak."""
_SHOWN_AFTER_SECONDS = 1.0
"""A bar that is gone at once only disturbs."""
_BAR_SECONDS = 0.1
"""Between two looks at how far it is: a bar that moves less often seems to stand."""


@contextmanager
def waiting(what: str, *, in_lines: bool = False) -> Iterator[None]:
    """Say what is waited for while the context is open, and for how long, if it takes long.

    It is said by a thread, so that it does not matter whether the wait is one of the event loop.
    On a terminal it is a line that goes when anything else is printed.

    Args:
        what: In a few words after "still", such as `starting the worker`.
        in_lines: Print lines on a terminal, too, as in a pipe: another process prints there.
    """
    wait = _Wait(what, in_lines=in_lines)
    with _opened(wait):
        thread = threading.Thread(target=wait.say, name="waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            wait.ended.set()
            thread.join()


@contextmanager
def speaking() -> Iterator[None]:
    """Say nothing of waits while the context is open: a view says it, or a person is asked."""
    with _opened(_Wait("")):
        for take_away in tuple(output.before_printing):
            take_away()
        yield


@contextmanager
def _opened(wait: _Wait) -> Iterator[None]:
    _open.append(wait)
    try:
        yield
    finally:
        _open.remove(wait)


class _Wait:
    def __init__(self, what: str, *, in_lines: bool = False) -> None:
        self.ended = threading.Event()
        self._what = what
        self._in_lines = in_lines
        self._begun = time.monotonic()

    def say(self) -> None:
        """Say it until it has ended, or nobody reads it any more."""
        with suppress(OSError):
            if self._in_lines or not output.stderr_is_terminal():
                self._print_lines()
            else:
                self._show()

    def _print_lines(self) -> None:
        pause = SILENT_SECONDS
        while not self.ended.wait(_LOOK_SECONDS):
            if self._is_silent_for(pause):
                output.notice(self._line())
                pause = min(2 * pause, MAX_SILENT_SECONDS)

    def _show(self) -> None:
        while not self.ended.wait(_LOOK_SECONDS):
            if self._is_silent_for(SILENT_SECONDS):
                self._show_until_printed()

    def _show_until_printed(self) -> None:
        """Show a line that moves, until something is printed or the wait has ended."""
        from rich.console import Console  # noqa: PLC0415 - few commands take so long
        from rich.status import Status  # noqa: PLC0415 - the same

        status = Status(self._line(), console=Console(stderr=True))
        lock = threading.Lock()
        is_gone = threading.Event()

        def take_away() -> None:
            with lock:
                is_gone.set()
                status.stop()

        with lock:
            output.before_printing.append(take_away)
            status.start()
        try:
            while self._is_innermost and not (self.ended.wait(_LOOK_SECONDS) or is_gone.is_set()):
                with lock:
                    if not is_gone.is_set():
                        status.update(self._line())
        finally:
            output.before_printing.remove(take_away)
            take_away()

    @property
    def _is_innermost(self) -> bool:
        return bool(_open) and _open[-1] is self

    def _is_silent_for(self, seconds: float) -> bool:
        """Return whether nothing was printed for so long, and nothing more exact is waited for."""
        if not self._is_innermost:
            return False
        return time.monotonic() - max(_open[0]._begun, output.printed_at()) >= seconds  # noqa: SLF001 - of its own class

    def _line(self) -> str:
        return f"Still {self._what}, {formatting.span(time.monotonic() - self._begun)}"


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
        while not is_stored.wait(_BAR_SECONDS):
            read = workspace.progress
            bar.update(shown, total=read.total_bytes or None, completed=read.done_bytes)
