"""The tool `execute`: a shell."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import Field

from fanout.orchestrator.deep_agent.backends.protocol import Execution, Shell
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import SHELL
from fanout.orchestrator.deep_agent.tool import MethodTool
from fanout.orchestrator.deep_agent.tools.live_output import shown_live

DEFAULT_TIMEOUT_SECONDS = 120.0
"""Long enough for most builds and test runs."""

MAX_TIMEOUT_SECONDS = 3600.0
"""An agent that needs longer should start something in the background and look again."""

MAX_OUTPUT_BYTES = 100_000
"""The size of an output; its beginning and end are kept."""

MAX_COMMAND_BYTES = 128 * 1024
"""Linux accepts no longer argument (MAX_ARG_STRLEN)."""


class ExecuteTool(Middleware):
    """The shell of one agent.

    Args:
        shell: Where commands run.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def tools(self) -> list[BaseTool]:
        """Return `execute`."""
        return [MethodTool(self.execute)]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain when to use the shell."""
        del context
        return SHELL if "execute" in tools else ""

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

        Each call is a new shell: cd and variables do not last. Nobody can type into it. When the
        time is over the command is killed with everything that it started.
        """
        timeout = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        if not 0 < timeout <= MAX_TIMEOUT_SECONDS:
            raise ToolMistake(
                f"timeout_seconds must be above 0 and at most {MAX_TIMEOUT_SECONDS:g}."
            )
        if not command.strip() or "\0" in command:
            raise ToolMistake("command must be a non-empty text without NUL characters.")
        if len(command.encode(errors="replace")) >= MAX_COMMAND_BYTES:
            raise ToolMistake(
                f"command must be shorter than {MAX_COMMAND_BYTES} bytes; put it in a file."
            )
        work = partial(self._shell.execute, command, timeout, MAX_OUTPUT_BYTES)
        return _result(await shown_live(work, tool_context, "execute"), timeout)


def _result(execution: Execution, timeout: float) -> dict[str, Any]:
    output, exit_code = execution.text, execution.exit_code
    if execution.timed_out:
        head = f"Command timed out after {float(timeout)}s"
        output, exit_code = f"{head}\n{output}" if output else head, -1
    if execution.out_of_memory:
        output += "\n[The memory limit was reached and the kernel killed a process of the command.]"
    if execution.notice:
        output += f"\n[{execution.notice}]"
    return {
        "status": "success" if exit_code == 0 else "error",
        "output": output,
        "exit_code": exit_code,
        "truncated": execution.truncated,
    }
