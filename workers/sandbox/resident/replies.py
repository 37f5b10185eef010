"""What a reply says, checked: it may have been written by a job instead of the resident."""

from __future__ import annotations

import math
import os
import re
from typing import Any

from fanout.orchestrator.deep_agent import (
    Entry,
    EntryKind,
    Hit,
    LeftProcess,
    LeftRunning,
    OutputFile,
)
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.path_text import path_text
from fanout.orchestrator.portable.commands import MAX_COMMAND_LINE, MAX_NAMED_PROCESSES
from fanout.orchestrator.valid_text import clean_text

from ..inside import commands, frames

PARSED_ON_LOOP_BYTES = 64 << 10
"""Longer lists are parsed in a thread: a MiB of them takes about 30 ms."""
_MAX_NAMES = 16
"""The most names of files that were not searched, and the values around them."""
_MAX_ERRNO = 4095
"""The kernel's."""
_MAX_SIZE = (1 << 63) - 1
"""The largest size of a file: the kernel's."""
_MAX_MODE = 0o7777
"""Permissions, setuid, setgid and sticky: the kernel's."""
_MAX_PID = 1 << 22
"""The kernel's limit."""
_OUTPUT_NAME = re.compile(r"[0-9]{1,20}-[0-9a-f]{6}\.txt")
_KINDS: dict[bytes, EntryKind] = {b"f": "file", b"d": "directory", b"l": "symlink", b"o": "other"}


class OperationFailed(SandboxFailure):
    """The resident rejected or failed an operation; `kind` is the type of the failure."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def parse_reply(header: bytes) -> dict[str, Any] | Exception:
    """Return a reply's result, or the error that it reports.

    Raises:
        FrameError: it is neither.
    """
    reply = frames.decode_header(header, frames.MAX_REPLY_VALUES)
    if "errno" in reply:
        number, path = integer(reply, "errno", 1, _MAX_ERRNO), reply.get("path")
        return OSError(
            number, os.strerror(number), None if path is None else path_text(_text(path))
        )
    if "refused" in reply:
        return OperationFailed(
            *map(clean_text, (_text(reply["refused"]), _text(reply.get("message", ""))))
        )
    result = reply.get("result")
    if not isinstance(result, dict):
        raise frames.FrameError("a reply without a result")
    return result


def unwrap(result: dict[str, Any] | Exception) -> dict[str, Any]:
    """Return a result; raise an error."""
    if not isinstance(result, Exception):
        return result
    try:
        raise result
    finally:
        del result  # this frame is in the error's traceback


def integer(result: dict[str, Any], name: str, least: int, most: int) -> int:
    """Return a whole number of a result.

    Raises:
        FrameError: there is none, or none in this range.
    """
    value = result.get(name)
    if type(value) is not int or not least <= value <= most:
        raise frames.FrameError("a result without a number in its range")
    return value


def flag(result: dict[str, Any], name: str) -> bool:
    """Return a flag of a result.

    Raises:
        FrameError: there is none.
    """
    value = result.get(name)
    if type(value) is not bool:
        raise frames.FrameError("a result without a flag")
    return value


def duration(result: dict[str, Any], name: str) -> float:
    """Return a number of seconds of a result.

    Raises:
        FrameError: there is none.
    """
    value = result.get(name)
    if type(value) is not float or not 0 <= value < math.inf:
        raise frames.FrameError("a result without a duration")
    return value


def output_file(result: dict[str, Any]) -> OutputFile | None:
    """Return the file with a command's whole output; None when there is none.

    Raises:
        FrameError: it is malformed.
    """
    path = _output_path(result.get("output_file"))
    size_bytes = integer(result, "output_file_bytes", 0, _MAX_SIZE)
    return OutputFile(path=path, size_bytes=size_bytes) if path else None


def left_running(result: dict[str, Any]) -> LeftRunning | None:
    """Return what a command left running; None when it left nothing.

    Raises:
        FrameError: it is malformed.
    """
    left, path = result.get("left"), _output_path(result.get("left_output"))
    if not isinstance(left, list) or len(left) > MAX_NAMED_PROCESSES:
        raise frames.FrameError("not a list of processes")
    total = integer(result, "left_processes", len(left), _MAX_PID)
    if not total and not path:
        return None
    return LeftRunning(processes=tuple(map(_left_process, left)), total=total, output_path=path)


def _left_process(record: Any) -> LeftProcess:
    if not isinstance(record, list) or [type(value) for value in record] != [int, str]:
        raise frames.FrameError("not a process")
    pid, command_line = record
    if not 0 < pid <= _MAX_PID or len(command_line) > MAX_COMMAND_LINE:
        raise frames.FrameError("no process has that id or that command line")
    return LeftProcess.described(pid, command_line.encode(errors="replace"))


def _output_path(name: Any) -> str:
    """Return the path of a kept output, given its name; empty when there is none."""
    if not _text(name):
        return ""
    if not _OUTPUT_NAME.fullmatch(name):
        raise frames.FrameError("not the name of an output")
    return f"{commands.OUTPUT_FOLDER}/{name}"


def parse_entries(data: bytes, most: int | None = None) -> tuple[Entry, ...]:
    """Parse the records of `files.entry_record`.

    Args:
        data: the payload.
        most: how many there may be.

    Raises:
        FrameError: it is something else, or more.
    """
    if most is not None and data.count(b"\0") >= max(1, most):
        raise frames.FrameError("more entries than were requested")
    try:
        return tuple(_entry(record) for record in data.split(b"\0")) if data else ()
    except (ValueError, KeyError) as error:
        raise frames.FrameError("not an entry") from error


def _entry(record: bytes) -> Entry:
    kind, size, modified, mode, path = record.split(b" ", 4)
    entry = Entry(
        path=path_text(path),
        kind=_KINDS[kind],
        size_bytes=int(size),
        modified_at=float(modified),
        mode=int(mode, 8),
    )
    if not (0 <= entry.size_bytes <= _MAX_SIZE and math.isfinite(entry.modified_at)):
        raise ValueError("no file has that size or time")
    if not (0 <= entry.mode <= _MAX_MODE and path):
        raise ValueError("no file has that mode or name")
    return entry


def parse_hits(data: bytes, most: int) -> tuple[tuple[Hit, ...], tuple[str, ...]]:
    """Parse the records of a search, and the names of files that were not searched.

    Args:
        data: the payload.
        most: how many hits there may be.

    Raises:
        FrameError: it is something else, or more.
    """
    found = frames.decode(data, 4 * most + 1 + _MAX_NAMES)
    if not isinstance(found, dict) or found.keys() != {"hits", "unsearched"}:
        raise frames.FrameError("not the result of a search")
    records, names = found["hits"], found["unsearched"]
    if not isinstance(records, list) or not isinstance(names, list):
        raise frames.FrameError("not a list of hits")
    return tuple(map(_hit, records)), tuple(path_text(_text(name)) for name in names)


def _hit(record: Any) -> Hit:
    if not isinstance(record, list) or [type(value) for value in record] != [str, int, str]:
        raise frames.FrameError("not a hit")
    path, number, line = record
    if not 0 < number <= _MAX_SIZE:
        raise frames.FrameError("not a line's number")
    return Hit(path=path_text(path), line_number=number, line=clean_text(line))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise frames.FrameError("not a text of a reply")
    return value
