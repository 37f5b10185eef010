"""Copies an agent's definition files (its memory and skills) into its sandbox.

They are written to the sandbox's home, where commands and file tools find them under one path and
which the change list leaves out. A home does not outlive its container, so each attempt copies them
again.
"""

from __future__ import annotations

import contextlib

from fanout.orchestrator.configuration import definition_files
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.sandbox import Sandbox

_MODE, _EXECUTABLE_MODE = 0o644, 0o755


async def copy_definition_files(definition: AgentDefinition, sandbox: Sandbox) -> str:
    """Write the definition files into the sandbox and return their folder.

    Args:
        definition: The definition of the job's agent.
        sandbox: The job's sandbox.

    Raises:
        InvalidJob: A file cannot be written; the sandbox may be full.
        SandboxFailure: The sandbox failed.
    """
    folder = f"{sandbox.home}/{definition_files.FOLDER}"
    if definition.files:
        with contextlib.suppress(FileNotFoundError):
            await sandbox.delete(folder)  # an earlier attempt's copy, which it may have changed
    for file in definition.files:
        mode = _EXECUTABLE_MODE if file.executable else _MODE
        try:
            await sandbox.write_bytes(f"{folder}/{file.path}", file.data, mode=mode)
        except OSError as error:
            raise InvalidJob(
                f"The definition file {file.path} cannot be written into the sandbox: "
                f"{error.strerror}."
            ) from error
    return folder
