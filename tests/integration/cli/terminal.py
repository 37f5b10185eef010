"""A command in a terminal, whose questions are answered."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping

from tests.integration.cli.conftest import Fanout


def in_terminal(fanout: Fanout, *arguments: str, answers: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a terminal.

    Args:
        fanout: The folder and the environment.
        arguments: The command.
        answers: What is typed when a text has appeared on the screen, in this order.

    Returns:
        Its exit code and what was on the screen.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        Fanout.argv(*arguments), cwd=fanout.folder, env=fanout.env | {"TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    screen, begin = "", 0
    try:
        for question, answer in answers.items():
            while question not in screen[begin:]:
                piece = _read(ours)
                assert piece, f"{question!r} was not asked: {screen}"
                screen += piece
            begin = screen.index(question, begin) + len(question)
            os.write(ours, f"{answer}\n".encode())
        while piece := _read(ours):
            screen += piece
        return process.wait(), screen
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:  # the other side is closed
        return ""
