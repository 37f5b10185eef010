"""Messages about what a command waits for, after two seconds without output.

While a large folder is read for a snapshot, a bar shows the progress.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from . import formatting, output

if TYPE_CHECKING:
    from ...workspace.workspace import Workspace

SILENT_SECONDS = 2.0
"""The silence after which a person wonders."""
MAX_SILENT_SECONDS = 60.0
"""The longest pause between two lines of a pipe about the same wait; each pause is twice as long as
the previous one, so that a log of hours stays short."""
_LOOK_SECONDS = 0.25
"""The time between two checks for output, and between two pictures of a terminal."""

_open: list[_Wait] = []
"""The current waits; only the last one, the most exact, prints messages."""
_SHOWN_AFTER_SECONDS = 1.0
"""The time before a bar is shown: one that ends at once only disturbs."""
_BAR_SECONDS = 0.1
"""The time between two updates of the bar: one that moves less often seems to hang."""


@contextmanager
def waiting(what: str, *, in_lines: bool = False) -> Iterator[None]:
    """Print what the context waits for, and for how long, if it takes long.

    A thread prints it, so that the wait may block the event loop. On a terminal it is a line that
    disappears when anything else is printed.

    Args:
        what: A few words to follow "still", such as `starting the worker`.
        in_lines: Also print lines on a terminal, as in a pipe: another process prints there.
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
    """Print nothing about waits in the context: a view shows them, or a question is open."""
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
        """Print messages until the wait has ended, or nobody reads them."""
        with suppress(OSError):
            if self._in_lines or not output.stderr_is_terminal():
                self._print_lines()
            else:
                self._show()

    def _print_lines(self) -> None:
        pause = SILENT_SECONDS
        while not self.ended.wait(_LOOK_SECONDS):
            if self._was_silent(pause):
                output.notice(self._line())
                pause = min(2 * pause, MAX_SILENT_SECONDS)

    def _show(self) -> None:
        while not self.ended.wait(_LOOK_SECONDS):
            if self._was_silent(SILENT_SECONDS):
                self._show_until_printed()

    def _show_until_printed(self) -> None:
        """Show a moving line until something is printed or the wait has ended."""
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

    def _was_silent(self, seconds: float) -> bool:
        """Return whether nothing was printed for a time, and no more exact wait is open."""
        if not self._is_innermost:
            return False
        return time.monotonic() - max(_open[0]._begun, output.last_print_time()) >= seconds  # noqa: SLF001 - of its own class

    def _line(self) -> str:
        return f"Still {self._what}, {formatting.span(time.monotonic() - self._begun)}"


@asynccontextmanager
async def snapshot_progress(workspace: Workspace) -> AsyncIterator[None]:
    """Show the progress of a folder's snapshot if it takes long; in a pipe, print a line.

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
