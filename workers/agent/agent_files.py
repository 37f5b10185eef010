"""Brings an agent's own files into its sandbox: the memory and the skills beside its definition.

They go into the sandbox's home, where commands and file tools find them under one path and where
the change list does not look. A home does not outlive its container, so each attempt brings them
anew.
"""

from __future__ import annotations

import contextlib

from orchestrator.configuration import definition_files
from orchestrator.configuration.agent_definitions import AgentDefinition
from orchestrator.jobs.failures import InvalidJob
from workers.sandbox import Sandbox

_MODE, _EXECUTABLE_MODE = 0o644, 0o755


async def copy_definition_files(definition: AgentDefinition, sandbox: Sandbox) -> str:
    """Write the definition's own files into the sandbox; the folder that they are in.

    Raises:
        InvalidJob: the sandbox has no room for them.
        SandboxFailure: the sandbox failed.
    """
    folder = f"{sandbox.home}/{definition_files.FOLDER}"
    if definition.files:
        with contextlib.suppress(FileNotFoundError):
            await sandbox.delete(folder)  # what an earlier attempt left, and may have changed
    for file in definition.files:
        mode = _EXECUTABLE_MODE if file.executable else _MODE
        try:
            await sandbox.write_bytes(f"{folder}/{file.path}", file.data, mode=mode)
        except OSError as error:
            raise InvalidJob(
                f"The agent's own file {file.path} cannot be put into the sandbox: {error.strerror}."
            ) from error
    return folder
