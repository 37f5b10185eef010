"""The processes of this machine, and which command has started each."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fanout.orchestrator.deep_agent.backends.proc.looks import SharedLooks
from fanout.orchestrator.deep_agent.backends.proc.reading import EnvironmentReader, content

_MAX_LISTINGS = 20
"""The most listings in a look. Each has fewer new processes than the one before, unless they are
started faster than they are read. Then those that were seen must be killed first."""
COMMAND_MARKER = "FANOUT_COMMAND"
"""The variable by which a command's processes are found in any session."""


@dataclass(frozen=True)
class CommandTable:
    """The live processes of this machine except this one."""

    by_session: dict[int, list[int]]
    by_marker: dict[str, list[int]]

    def of_command(self, session: int, marker: str) -> list[int]:
        """Return the processes of a session, and those with a marker."""
        found = self.by_session.get(session, []) + self.by_marker.get(marker, [])
        return list(dict.fromkeys(found))

    def marked(self, beginning: str) -> list[int]:
        """Return the processes whose marker begins with a text."""
        every = self.by_marker.items()
        return [pid for marker, pids in every if marker.startswith(beginning) for pid in pids]


def _look(environments: EnvironmentReader) -> CommandTable:
    by_session: dict[int, list[int]] = defaultdict(list)
    by_marker: dict[str, list[int]] = defaultdict(list)
    for pid, session in other_processes():
        by_session[session].append(pid)
        if marker := variable_of(environments.read(pid), COMMAND_MARKER):
            by_marker[marker].append(pid)
    return CommandTable(by_session, by_marker)


COMMANDS = SharedLooks(_look)
"""Looks for the processes of commands."""


def other_processes() -> Iterator[tuple[int, int]]:
    """Yield the process id and session id of every live process except this one.

    A process may start another one and end before it is read. So they are listed again until none
    is new. A caller that reads each one at once sees at least one of a family, if any is alive.
    """
    listed = {str(os.getpid())}
    for _ in range(_MAX_LISTINGS):
        new = [name for name in os.listdir("/proc") if name.isdigit() and name not in listed]  # noqa: PTH208 - see `content`
        if not new:
            return
        listed.update(new)
        for name in new:
            fields = content(f"/proc/{name}/stat").rpartition(b")")[2].split(maxsplit=4)
            if fields and fields[0] not in {b"Z", b"X"}:  # else it has ended
                yield int(name), int(fields[3])


def variable_of(environment: bytes, name: str) -> str:
    """Return the value of a variable; empty without it."""
    beginning = f"{name}=".encode()
    at = 0 if environment.startswith(beginning) else environment.find(b"\0" + beginning) + 1
    if at == 0 and not environment.startswith(beginning):
        return ""
    return os.fsdecode(environment[at + len(beginning) :].partition(b"\0")[0])


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
