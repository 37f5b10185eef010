"""What a command's result says of its output, and of what it left running."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from ...portable.commands import MAX_COMMAND_LINE

_CONTINUATION = range(0x80, 0xC0)
"""UTF-8's bytes after the first of a character."""


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file with the whole output of a command, or as much of its beginning as was kept."""

    path: str
    """The path for the file tools and for the shell."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class LeftProcess:
    """A process that a command left running."""

    pid: int
    command_line: str
    """What it was started as, in one line, shortened; the command may have made it up."""

    @classmethod
    def described(cls, pid: int, words: bytes) -> LeftProcess:
        """Return a process with what `/proc/PID/cmdline` says of it."""
        text = " ".join(words.replace(b"\0", b" ").decode(errors="replace").split())
        shown = "".join(one if one.isprintable() else "?" for one in text[:MAX_COMMAND_LINE])
        return cls(pid=pid, command_line=shown)


@dataclass(frozen=True, kw_only=True)
class LeftRunning:
    """Processes that continue after their command, until they or their sandbox are ended."""

    processes: tuple[LeftProcess, ...] = ()
    """The first of them."""
    total: int = 0
    """How many there are, without those that left the command's session and environment."""
    output_path: str = ""
    """A file, for the file tools and for the shell, with the beginning and the end of what they
    write from now on. Empty where they do not hold the command's output, or it cannot be kept."""

    def __str__(self) -> str:
        """Return what an agent needs to know: which processes, how to stop them, their output."""
        named = [f"{process.pid} ({process.command_line})" for process in self.processes]
        if self.total > len(named):
            named.append(f"{self.total - len(named)} more")
        text = f"Still running: {', '.join(named)}." if named else "A process is still running."
        if self.processes:
            text += f" Stop with: kill {' '.join(str(one.pid) for one in self.processes)}."
        if self.output_path:
            text += f" Its output from here on is kept in {self.output_path}."
        return text


def with_mark(
    output: bytes, head_bytes: int, *, total_bytes: int, line_ends: int, file: OutputFile | None
) -> str:
    """Return the head and the tail of an output as text, with a line between them on what is not.

    The cut falls on line ends, unless one side is a part of one line: without the mark, the last
    line of the head and the first of the tail would be read as one, which never existed.

    Args:
        output: The head and the tail.
        head_bytes: How much of it is the head.
        total_bytes: The size of the whole output.
        line_ends: How many line ends the whole output has.
        file: Where the whole output is.
    """
    head, tail = output[:head_bytes], output[head_bytes:]
    head = head[: head.rfind(b"\n") + 1] or _without_last_half_character(head)
    tail = tail[tail.find(b"\n") + 1 :] or _without_first_half_character(tail)
    lost_bytes = total_bytes - len(head) - len(tail)
    lost_lines = line_ends - head.count(b"\n") - tail.count(b"\n")
    lost = f"{lost_bytes} bytes ({lost_lines} lines)" if lost_lines else f"{lost_bytes} bytes"
    mark = f"[... {lost} of the output are left out here. {_where(file, total_bytes)} ...]"
    parts = (head.removesuffix(b"\n"), mark.encode(), tail)
    return b"\n".join(part for part in parts if part).decode(errors="replace")


def _without_last_half_character(head: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(head)
    return head.removesuffix(decoder.getstate()[0])


def _without_first_half_character(tail: bytes) -> bytes:
    at = 0
    while at < min(3, len(tail)) and tail[at] in _CONTINUATION:
        at += 1
    return tail[at:]


def _where(file: OutputFile | None, total_bytes: int) -> str:
    if file is None:
        return "The whole output could not be kept: write it to a file, and read that in parts."
    which = "All of it is"
    if file.size_bytes < total_bytes:
        which = f"Only its first {file.size_bytes} bytes are"
    return f"{which} in {file.path}: use read_file, grep or the shell."
