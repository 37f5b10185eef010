"""An operator's function in Python as a tool: each call is a process with limits.

The function is code of the operator, not of the agent: it runs on the worker's machine, outside of
the sandbox. A process keeps its memory, its time and its end apart from the worker; it has none of
the worker's variables but those that the settings name.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from ...bounded_process import ProcessBounds, import_path
from ...configuration.tool_settings import PythonToolSettings
from ...deep_agent import MethodTool, error_result, run_bounded, shown_schema
from ...jobs.failures import InvalidJob
from ...process_secrets import inherited_environment
from ...turns import OwnerTurns, TooManyWaiting

PROGRAM = "fanout.orchestrator.extras.python_tools.program"
HIDDEN = "[hidden]"
"""Stands for the value of a variable that the tool was given."""

MIN_HIDDEN_CHARACTERS = 8
"""A shorter value would be found, and hidden, in ordinary answers."""

MAX_RESULT_BYTES = 5 * 1024**2
"""The largest result; above some pages it is kept in a file, as that of any tool."""

DESCRIBE_SECONDS = 30.0
"""The time for importing a tool's module."""

CPU_FACTOR = 4
"""Processor time for each second of a call's time: a tool may have threads."""

AT_ONCE = 16
"""Calls in one worker process."""

AT_ONCE_OF_OWNER = 12
"""The most of them for the jobs of one owner."""

WAITING_OF_OWNER = 1_000
"""Calls for the jobs of one owner that wait for a turn: more than agents ask for at once."""

_turns = OwnerTurns(
    at_once=AT_ONCE, of_one_owner=AT_ONCE_OF_OWNER, waiting_of_one_owner=WAITING_OF_OWNER
)


class PythonTools:
    """Makes tools of the installed ones; each is described once, while this process lives.

    Args:
        settings: What the tools get, by name.
    """

    def __init__(self, settings: Mapping[str, PythonToolSettings]) -> None:
        self._settings = settings
        self._descriptions: dict[str, ToolDescription] = {}

    async def make(self, name: str) -> PythonTool:
        """Return a tool for an agent.

        Raises:
            InvalidJob: It is not installed, or cannot be used; the text says why.
        """
        process = ToolProcess(name, self._settings.get(name, PythonToolSettings()))
        found = self._descriptions.get(name)
        if found is None:
            found = self._descriptions[name] = await process.describe()
        return PythonTool(process, found)


@dataclass(frozen=True)
class ToolDescription:
    """What a model is told about a tool."""

    text: str
    schema: dict[str, Any]


class ToolProcess:
    """The processes of one tool.

    Args:
        name: The tool's name.
        settings: What it gets.
    """

    def __init__(self, name: str, settings: PythonToolSettings) -> None:
        self.name = name
        self._settings = settings

    async def describe(self) -> ToolDescription:
        """Import the tool in a process, and return its description.

        Raises:
            InvalidJob: It cannot be used; the text says why.
        """
        found = await self._answer("describe", b"", DESCRIBE_SECONDS)
        if error := found.get("error"):
            raise InvalidJob(f"The tool {self.name} cannot be used: {error}.")
        return ToolDescription(found["description"], found["schema"])

    async def call(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Call the tool in a process; every fault is an error result."""
        given = json.dumps(args).encode()
        try:
            async with _turns.turn():
                found = await self._answer("call", given, self._settings.timeout_seconds)
        except TooManyWaiting:
            return error_result(f"Too many tools are running: call {self.name} later.")
        if error := found.get("error"):
            return error_result(error)
        return {"status": "success", "result": found["result"]}

    async def _answer(self, action: str, given: bytes, seconds: float) -> dict[str, Any]:
        env, secrets = self._environment()
        bounds = ProcessBounds(
            memory_bytes=self._settings.memory_bytes, cpu_seconds=CPU_FACTOR * seconds
        )
        ended = await run_bounded(
            [sys.executable, "-B", "-P", "-m", PROGRAM, action, self.name],
            bounds,
            env=env,
            stdin=given,
            seconds=seconds,
            max_output_bytes=MAX_RESULT_BYTES,
        )
        if ended.timed_out:
            return {"error": f"{self.name} did not end within {seconds:g} s"}
        if ended.truncated:
            return {"error": f"{self.name} returned more than {MAX_RESULT_BYTES} bytes"}
        text = ended.output.decode(errors="replace")
        for secret in secrets:
            text = text.replace(json.dumps(secret)[1:-1], HIDDEN).replace(secret, HIDDEN)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            most = self._settings.memory_bytes
            return {
                "error": f"{self.name} ended without an answer (exit code {ended.exit_code}); it "
                f"may use {most} bytes of memory"
            }
        return found

    def _environment(self) -> tuple[dict[str, str], list[str]]:
        """Return the variables of a process, and the values that nobody is shown."""
        named = {name: os.environ[name] for name in self._settings.env if name in os.environ}
        own = {"PYTHONPATH": import_path(), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
        hidden = [value for value in named.values() if len(value) >= MIN_HIDDEN_CHARACTERS]
        return {**inherited_environment(), **own, **named}, hidden


class PythonTool(MethodTool):
    """One installed tool, for one agent.

    Args:
        process: Its processes.
        description: What the model is told.
    """

    def __init__(self, process: ToolProcess, description: ToolDescription) -> None:
        super().__init__(
            process.call, name=process.name, description=description.text, arguments=BaseModel
        )
        self._process = process
        self._shown = shown_schema(description.schema)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=self._shown.schema,
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Call the tool; its process checks the arguments."""
        del tool_context
        return await self._process.call(self._shown.given(args))
