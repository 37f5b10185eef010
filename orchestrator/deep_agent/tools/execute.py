"""The tool `execute`: a shell, whose output is shown live while a command runs.

Live output is ADK's partial events: for people only, and never stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import Field

from ...portable.command_output import BoundedOutput
from ..adk_internals import StreamingMode
from ..backends.protocol import Execution, OutputSink, Shell
from ..failures import ToolMistake
from ..knowledge import files_to_read
from ..middleware import BackendSource, Middleware
from ..prompts import PROCESSES_ENDED, SAME_FILES, SHELL
from ..tool import MethodTool, emit_events

DEFAULT_TIMEOUT_SECONDS = 120.0
"""Long enough for most builds and test runs."""

MAX_TIMEOUT_SECONDS = 3600.0
"""An agent that needs longer should start something in the background and look again."""

MAX_OUTPUT_BYTES = 75_000
"""The size of an output in the result: its beginning and its end; the whole of a longer one is in a
file. With its mark and notices it is below what one result may take of a conversation
(`files.MAX_RESULT_CHARACTERS`): what is cut here is not cut a second time there, which would
store a part as the whole and count the wrong lines as missing."""

BACKGROUND = "background"
"""The part of a result that says what the command left running."""

MAX_COMMAND_BYTES = 128 * 1024
"""Linux accepts no longer argument (MAX_ARG_STRLEN)."""

LIVE_OUTPUT_SECONDS = 1.0
"""Between two events: a person reads no faster, and every front end handles each event. A shorter
command shows nothing and costs nothing."""

MAX_LIVE_LINES = 3
"""Enough to see what a command is doing; the whole output is its result."""

MAX_LIVE_BYTES = 600
"""Three lines of a wide terminal: output without line ends must not make an event large."""

STREAM = "stream"
"""The key in an event's `custom_metadata` whose value `output` marks a command's output."""

Result = TypeVar("Result")


class ExecuteTool(Middleware):
    """The shell of one agent.

    Args:
        backend_of: Finds the agent's files; without a shell of theirs there is no tool. A shell on
            other files says so in a `shell_location`, which is put into the instruction.
    """

    def __init__(self, backend_of: BackendSource) -> None:
        self._backend_of = backend_of

    def tools(self) -> list[BaseTool]:
        """Return `execute`."""
        return [_Execute(self.execute, self._backend_of)]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain where the shell is and when to use it."""
        backend = files_to_read(self._backend_of, context)
        if "execute" not in tools or not isinstance(backend, Shell):
            return ""
        return str(getattr(backend, "shell_location", SAME_FILES)) + SHELL

    async def execute(
        self,
        command: Annotated[str, Field(description="Shell command")],
        timeout_seconds: Annotated[
            float | None, Field(description="Kill it after this many seconds; 120 when not given")
        ] = None,
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Run a shell command in the workspace and return its output and exit code.

        The shell is bash, or sh where there is no bash. Each call is a new shell: cd and variables
        do not last. Nobody can type into it. When the time is over the command is killed with
        everything that it started. A process that is started with & goes on after the call:
        `background` names it, how to stop it, and the file with its further output.
        """
        timeout = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        if not 0 < timeout <= MAX_TIMEOUT_SECONDS:
            raise ToolMistake(
                f"timeout_seconds must be above 0 and at most {MAX_TIMEOUT_SECONDS:g}."
            )
        check_command(command)
        shell = self._backend_of(tool_context)
        if not isinstance(shell, Shell):
            raise ToolMistake("There is no shell for these files.")
        work = partial(shell.execute, command, timeout, MAX_OUTPUT_BYTES)
        return execution_result(await shown_live(work, tool_context, "execute"), timeout)


class _Execute(MethodTool):
    """The tool, which a model is shown only if the agent's files have a shell now."""

    def __init__(self, method: Callable[..., Any], backend_of: BackendSource) -> None:
        super().__init__(method)
        self._backend_of = backend_of

    def is_shown(self, context: ReadonlyContext) -> bool:
        """Return whether the files have a shell."""
        return isinstance(files_to_read(self._backend_of, context), Shell)


def check_command(command: str) -> None:
    """Refuse a command that cannot be started.

    Raises:
        ToolMistake: It is empty, too long, or has a NUL.
    """
    if not command.strip() or "\0" in command:
        raise ToolMistake("command must be a non-empty text without NUL characters.")
    if len(command.encode(errors="replace")) >= MAX_COMMAND_BYTES:
        raise ToolMistake(
            f"command must be shorter than {MAX_COMMAND_BYTES} bytes; put it in a file."
        )


def with_ended_processes(event: Event) -> Event:
    """Return an event of an earlier sandbox, whose results say that no process is left of it."""
    answers = event.get_function_responses()
    if not any(BACKGROUND in (answer.response or {}) for answer in answers):
        return event
    event = event.model_copy(deep=True)
    for answer in event.get_function_responses():
        if answer.response and BACKGROUND in answer.response:
            text = PROCESSES_ENDED.format(left_running=answer.response[BACKGROUND])
            answer.response = {**answer.response, BACKGROUND: text}
    return event


def execution_result(execution: Execution, timeout: float) -> dict[str, Any]:
    """Return the tool's result for a command that ended, or was ended after `timeout` seconds."""
    output, exit_code = execution.text, execution.shell_code
    if execution.timed_out:
        head = f"Command timed out after {float(timeout)}s"
        output, exit_code = f"{head}\n{output}" if output else head, -1
    if execution.killed_by:
        output += f"\n[{execution.killed_by}]"
    if execution.out_of_memory:
        output += "\n[The memory limit was reached and the kernel killed a process of the command.]"
    if execution.notice:
        output += f"\n[{execution.notice}]"
    file = execution.output_file
    return {
        "status": "success" if exit_code == 0 else "error",
        "output": output,
        "exit_code": exit_code,
        "truncated": execution.truncated,
        **({"output_file": file.path} if file is not None else {}),
        **({BACKGROUND: str(execution.left_running)} if execution.left_running else {}),
    }


def text_mode(*, streamed: bool) -> StreamingMode:
    """Return ADK's streaming mode for replies in pieces, or as a whole."""
    return StreamingMode.SSE if streamed else StreamingMode.NONE


async def shown_live(
    work: Callable[[OutputSink], Awaitable[Result]], tool_context: ToolContext, tool: str
) -> Result:
    """Do the work of a tool's call, and emit the newest lines of what it writes to the sink.

    If the call is cancelled, the work is cancelled and awaited.
    """
    tail = _Tail()
    task = asyncio.ensure_future(work(tail.take))
    try:
        await asyncio.wait({task}, timeout=LIVE_OUTPUT_SECONDS)
        if not task.done():
            await emit_events(partial(_events, task, tail), tool_context, tool)
        return await task
    finally:
        if not task.done():
            task.cancel()  # once: a second one would interrupt the shell while it kills processes
            await asyncio.wait({task})


class _Tail:
    """The last bytes of an output."""

    def __init__(self) -> None:
        self._output = BoundedOutput(tail_bytes=MAX_LIVE_BYTES)
        self._is_new = False

    async def take(self, data: bytes) -> None:
        self._output.add(data)
        self._is_new = True

    def newest(self) -> str:
        """Return the last lines if there is new output; of a progress bar, only its last state."""
        if not self._is_new:
            return ""
        self._is_new = False
        lines = self._output.content().decode(errors="replace").split("\n")
        shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
        return "\n".join([line for line in shown if line.strip()][-MAX_LIVE_LINES:])


async def _events(task: asyncio.Future[Any], tail: _Tail) -> AsyncGenerator[Event, None]:
    while not task.done():
        if lines := tail.newest():
            yield Event(
                partial=True,
                custom_metadata={STREAM: "output"},
                content=types.Content(role="model", parts=[types.Part(text=lines + "\n")]),
            )
        await asyncio.wait({task}, timeout=LIVE_OUTPUT_SECONDS)
