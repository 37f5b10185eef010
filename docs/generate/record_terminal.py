"""Runs a command in a terminal and draws what it showed as a picture.

    python -m docs.generate.record_terminal --from "The goal" docs/images/demo.svg fanout demo

The command runs in a pseudoterminal, so it writes what it writes for a person; an emulator follows
its cursor. The picture has the last state of every line, also of those that were scrolled away.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import itertools
import os
import pty
import re
import shlex
import struct
import subprocess
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS = 110
"""As many as can be read where a README is shown."""
LINES = 60
"""More than a live view has, so that nothing of it is scrolled away while it changes."""
HISTORY_LINES = 2000


def recorded(command: list[str]) -> list[Text]:
    """Run a command and return the lines of its terminal.

    Raises:
        RuntimeError: It ended with another exit code than 0.
    """
    screen = pyte.HistoryScreen(COLUMNS, LINES, history=HISTORY_LINES)
    stream = pyte.ByteStream(screen)
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
    ) as process:
        os.close(child)
        while data := _read(parent):
            stream.feed(data)
    os.close(parent)
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}")
    rows = [*screen.history.top, *(screen.buffer[row] for row in range(LINES))]
    lines = [_line(row) for row in rows]
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def drawn(title: str, lines: list[Text]) -> str:
    """Return an SVG of a terminal with these lines."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, soft_wrap=True)
    picture = console.export_svg(title=title, unique_id="fanout")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # are on another host


def main() -> None:
    """Record a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="first", default="", help="text of the first drawn line")
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    lines = recorded(arguments.command)
    first = next(n for n, line in enumerate(lines) if arguments.first in line.plain)
    lines = lines[first:]
    title = shlex.join([Path(arguments.command[0]).name, *arguments.command[1:]])
    arguments.picture.write_text(drawn(title, lines), encoding="utf-8")
    print("\n".join(line.plain for line in lines))  # noqa: T201 - what is in the picture


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says with an error that nobody has the other end open
        return b""


def _line(row: dict[int, pyte.screens.Char]) -> Text:
    text = Text()
    cells = [row[column] for column in range(COLUMNS)]
    for style, run in itertools.groupby(cells, _style):
        text.append("".join(cell.data for cell in run), style)
    text.rstrip()
    return text


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(cell.fg), bold=cell.bold, italic=cell.italics, underline=cell.underscore
    )


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return {"brown": "yellow", "brightbrown": "bright_yellow"}.get(
        name, name.replace("bright", "bright_")
    )


if __name__ == "__main__":
    main()
