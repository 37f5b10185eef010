"""A function `execute` that runs commands on this machine, for any ADK agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.protocol import Shell
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.execute import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_OUTPUT_BYTES,
    check_command,
    execution_result,
)


def create_local_execute_tool() -> Callable[[str], dict[str, Any]]:
    """Return a plain function that runs a shell command in this process's working directory.

    There is no isolation: a command may do whatever this process's user may do. It gets the few
    variables of the environment that programs need, and none that may be a key.

    A deep agent needs it not: `create_deep_agent(execution="local")` gives it the built-in tool,
    which does not block, shows its output while it runs, and takes a time limit.
    """
    shell_in = cache(LocalShellBackend)  # it keeps the whole outputs of commands

    def execute(command: str) -> dict[str, Any]:
        """Execute a shell command locally and return the output.

        Args:
            command: The shell command to execute.
        """
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, _run(command, shell_in(Path.cwd()))).result()

    return execute


async def _run(command: str, shell: Shell) -> dict[str, Any]:
    try:
        check_command(command)
    except ToolMistake as mistake:
        return {"status": "error", "output": str(mistake), "exit_code": -1, "truncated": False}
    ended = await shell.execute(command, DEFAULT_TIMEOUT_SECONDS, MAX_OUTPUT_BYTES)
    return execution_result(ended, DEFAULT_TIMEOUT_SECONDS)
