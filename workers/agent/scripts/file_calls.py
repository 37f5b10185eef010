"""The calls of a script that its own job does: on its files, in its sandbox, and on its budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from functools import cache

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.delegation.submission_check import check_commands
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.scripts.calls import BadCall, ScriptCall
from fanout.orchestrator.scripts.run import SettledCall
from fanout.orchestrator.scripts.values import Ran, Spent

from ...heartbeat import elapsed_clock
from ...sandbox import WORKSPACE, Command, Sandbox

MAX_READ_BYTES = 1024 * 1024
"""The largest file that a script reads: larger ones are for agents and commands."""
MAX_OUTPUT_BYTES = 64 * 1024
"""What a script gets of a command's output: its beginning and its end."""
MAX_FILES = 10_000
"""The most paths of one `files`: as many as a script may have calls."""
WALK_SECONDS = 20.0
"""How long the listing of all files may take: a large repository takes a second."""
COMMAND_SECONDS = 600.0
"""The longest `run` without a `timeout_seconds` of its own: a test suite of minutes fits."""


class FileCalls:
    """Answers these calls for one attempt.

    Args:
        sandbox: The job's sandbox.
        definition: The definition of the job's agent, which says whether commands may run.
        interrupt_on: The job's policy besides.
        ends_at: When the job's time is over, on `elapsed_clock`.
        spent: Returns what the job has used of its budgets, and what is left.
    """

    functions = ("read", "files", "run", "budget")

    def __init__(
        self,
        sandbox: Sandbox,
        definition: AgentDefinition,
        interrupt_on: InterruptOn,
        *,
        ends_at: float,
        spent: Callable[[], Awaitable[Spent]],
    ) -> None:
        self._sandbox = sandbox
        self._definition = definition
        self._interrupt_on = interrupt_on
        self._ends_at = ends_at
        self._spent = spent

    def check(self, call: ScriptCall) -> None:
        """Refuse a call that cannot be done.

        Raises:
            BadCall: The text says why.
        """
        if call.function == "run":
            try:
                check_commands(self._definition, self._interrupt_on, run=call.arguments["command"])
            except InvalidJob as error:
                raise BadCall(f"run(): {error}") from None
        path = str(call.arguments.get("path") or call.arguments.get("pattern") or "")
        if path.startswith("/") or ".." in path.split("/"):
            raise BadCall(f"{call.function}(): paths are relative to the workspace, without '..'.")

    async def answer(self, call: ScriptCall) -> SettledCall:
        """Do what a call asks for.

        Raises:
            SandboxFailure: The sandbox failed.
            LedgerUnavailable: Redis does not answer.
        """
        arguments = call.arguments
        match call.function:
            case "read":
                return await self._read(call, str(arguments["path"]))
            case "files":
                return await self._list(call, str(arguments["pattern"]))
            case "run":
                return await self._run(call)
        return SettledCall(call, await self._spent())

    async def _read(self, call: ScriptCall, path: str) -> SettledCall:
        try:
            content = await self._sandbox.read_bytes(f"{WORKSPACE}/{path}", MAX_READ_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return SettledCall(call, None, f"no such file: {path}", "FileNotFoundError")
        except IsADirectoryError:
            return SettledCall(call, None, f"is a folder: {path}", "IsADirectoryError")
        except OSError as error:
            return SettledCall(call, None, f"{path}: {error.strerror or 'not readable'}", "OSError")
        if len(content) > MAX_READ_BYTES:
            why = (
                f"{path} has more than {MAX_READ_BYTES:,} bytes: let an agent or a command read it"
            )
            return SettledCall(call, None, why, "OSError")
        return SettledCall(call, content.decode(errors="replace"))

    async def _list(self, call: ScriptCall, pattern: str) -> SettledCall:
        walk = await self._sandbox.walk(
            WORKSPACE, max_entries=10 * MAX_FILES, timeout_seconds=WALK_SECONDS
        )
        paths = (entry.path.removeprefix(f"{WORKSPACE}/") for entry in walk.entries)
        found = [path for path in paths if matches(path, pattern)]
        if not walk.complete or len(found) > MAX_FILES:
            why = f"files({pattern!r}) finds too many files: name a folder"
            return SettledCall(call, None, why, "OSError")
        return SettledCall(call, sorted(found))

    async def _run(self, call: ScriptCall) -> SettledCall:
        left = max(self._ends_at - elapsed_clock(), 1.0)
        seconds = min(float(call.arguments["timeout_seconds"] or COMMAND_SECONDS), left)
        ended = await self._sandbox.run(
            Command(
                argv=str(call.arguments["command"]),
                timeout_seconds=seconds,
                max_output_bytes=MAX_OUTPUT_BYTES,
            )
        )
        output = ended.output.decode(errors="replace")
        return SettledCall(call, Ran(ended.exit_code == 0, ended.shell_code, output))


def matches(path: str, pattern: str) -> bool:
    """Return whether a path fits a pattern, in which `**` stands for any number of folders."""
    parts, wanted = tuple(path.split("/")), tuple(pattern.removeprefix("./").split("/"))

    @cache
    def fits(at: int, of: int) -> bool:
        if of == len(wanted):
            return at == len(parts)
        if wanted[of] == "**":
            return fits(at, of + 1) or (at < len(parts) and fits(at + 1, of))
        return at < len(parts) and fnmatchcase(parts[at], wanted[of]) and fits(at + 1, of + 1)

    return fits(0, 0)
