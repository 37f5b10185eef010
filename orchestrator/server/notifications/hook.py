"""The hook: a command of the person who runs this machine, or a desktop notification.

The command is the person's own and comes from the settings or the command line, never from Redis.
It learns about a job from variables with ids, names and states only, without a text of a model.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from ...portable.commands import find_shell
from ...process_secrets import inherited_environment, session_environment
from ...shortening import short_id
from .messages import HookEvent

DESKTOP = "desktop"
"""The value for a desktop notification."""
HOOK_SECONDS = 60.0
"""The time limit of a hook: one that needs longer has to start a background process."""
_OSASCRIPT = (
    "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
)

log = structlog.get_logger(__name__)


class Hook:
    """Runs the hook.

    Args:
        command: A command for a shell (bash, or sh where there is no bash), or `desktop`.
        seconds: The time after which it is killed, with its children.
    """

    def __init__(self, command: str, seconds: float = HOOK_SECONDS) -> None:
        self._command = command
        self._seconds = seconds

    async def run(self, event: HookEvent) -> bool:
        """Run the hook, and return whether it succeeded; a failure is a line in the log."""
        variables = event.variables()
        environment = {**inherited_environment(), **session_environment(), **variables}
        shell = await asyncio.to_thread(find_shell, environment.get("PATH", os.defpath))
        arguments: tuple[str, ...] = (*shell, self._command)
        if self._command == DESKTOP:
            found = await asyncio.to_thread(desktop_command, variables)
            if found is None:
                log.warning("hook_failed", reason="no notify-send and no osascript on PATH")
                return False
            arguments = found
        try:
            code = await self._run(arguments, environment)
        except OSError as error:
            log.warning("hook_failed", job_id=event.job_id, reason=type(error).__name__)
            return False
        if code is None:
            log.warning("hook_failed", job_id=event.job_id, reason=f"ran {self._seconds:g} s")
        elif code:
            log.warning("hook_failed", job_id=event.job_id, exit_code=code)
        return code == 0

    async def _run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int | None:
        """Run a command, and return its exit code; None when it had to be killed."""
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._seconds):  # wait_for loses cancellations before 3.12
                return await process.wait()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def desktop_command(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the command of a desktop notification; None if there is no program for it."""
    title = f"fanout: {variables['FANOUT_JOB_AGENT']}"
    state = variables["FANOUT_JOB_STATE"].replace("_", " ")
    waits = variables["FANOUT_JOB_EVENT"] == "approval"
    text = f"{short_id(variables['FANOUT_JOB_ID'])} " + (
        "waits for your approval" if waits else state
    )
    if shutil.which("notify-send"):
        return ("notify-send", "--app-name=fanout", "--", title, text)
    if shutil.which("osascript"):
        return ("osascript", "-e", _OSASCRIPT, title, text)
    return None
