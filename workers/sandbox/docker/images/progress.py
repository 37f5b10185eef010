"""What a person sees while an image is built: one changing line in a terminal, steps in a pipe."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from typing import TextIO

from fanout.orchestrator.shortening import one_line
from fanout.orchestrator.valid_text import printable

KEPT_LINES = 20
"""Of the builder's output, printed when a build fails: one screen's share that has the reason."""
USUAL_COLUMNS = 80
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_STEP = re.compile(r"^Step (?P<number>\d+)/(?P<all>\d+) : (?P<what>.*)$")


class Progress:
    """The progress of one piece of work; its `line` may be called in a thread."""

    def __init__(self, title: str, stream: TextIO | None = None, columns: int = 0) -> None:
        """Make it; nothing is printed before `begin`.

        Args:
            title: what is made.
            stream: where it is printed; None: stderr.
            columns: the width of a terminal; 0: that of the stream, which is a pipe if it has none.
        """
        self._stream = sys.stderr if stream is None else stream
        self._columns = columns or _columns(self._stream)
        self._title = title
        self._step = ""
        self._began = 0.0
        self._last: deque[str] = deque(maxlen=KEPT_LINES)

    def begin(self) -> None:
        """Say that the work begins."""
        self._began = time.monotonic()
        self._show("begins")

    def line(self, text: str) -> None:
        """Take a line of the builder's output."""
        text = printable(_UNPRINTABLE.sub(" ", text)).strip()
        if not text:
            return
        self._last.append(text)
        step = _STEP.match(text)
        if step is not None:
            self._step = f"step {step['number']} of {step['all']}"
            self._show(step["what"])
        elif self._columns:
            self._show(text)

    def step(self, what: str) -> None:
        """Say that a step begins."""
        self._step = what
        self._show("")

    def end(self) -> None:
        """Say that the work is done."""
        self._clear()
        self._print(f"{self._title}: done in {time.monotonic() - self._began:.0f} s")

    def fail(self) -> None:
        """Print the last lines of the builder's output, which have the reason."""
        self._clear()
        for line in self._last:
            self._print(f"  {line}")

    def _show(self, what: str) -> None:
        if not self._columns:
            self._print(one_line(": ".join(filter(None, (self._title, self._step, what)))))
            return
        seconds = f"{time.monotonic() - self._began:.0f} s"
        parts = (self._title, seconds, self._step, what)
        text = one_line(" · ".join(filter(None, parts)), self._columns - 1)
        print(f"\r\x1b[2K{text}", end="", file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._columns:
            print("\r\x1b[2K", end="", file=self._stream, flush=True)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _columns(stream: TextIO) -> int:
    """Return the width of a terminal that can change a line; 0 for anything else."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    except OSError:
        return USUAL_COLUMNS
