"""What a program does not import at its start: each of these libraries takes a part of a second."""

import subprocess
import sys

import pytest

MODEL_LIBRARIES = {"google.adk", "google.genai", "litellm", "openai", "anthropic", "aiohttp"}
SERVER_LIBRARIES = {"fastapi", "uvicorn", "a2a", "mcp", "grpc"}
JOB_LIBRARIES = {"celery", "kombu", "docker"}

NOT_IMPORTED = {
    "fanout": MODEL_LIBRARIES | SERVER_LIBRARIES | JOB_LIBRARIES | {"pydantic", "redis", "asyncio"},
    "fanout.orchestrator.cli.app": (
        MODEL_LIBRARIES | SERVER_LIBRARIES | JOB_LIBRARIES | {"pydantic", "redis", "asyncio"}
    ),
    # `ps`, `tree`, `show`, `result` and `logs`.
    "fanout.orchestrator.cli.commands.inspection": (
        MODEL_LIBRARIES
        | SERVER_LIBRARIES
        | JOB_LIBRARIES
        | {"rich", "fsspec", "yaml", "fanout.orchestrator.embedded.services"}
    ),
    "fanout.orchestrator.cli.commands.run": MODEL_LIBRARIES | SERVER_LIBRARIES | JOB_LIBRARIES,
    "fanout.orchestrator.cli.commands.up": (MODEL_LIBRARIES | SERVER_LIBRARIES | JOB_LIBRARIES),
    "fanout.orchestrator.embedded.keeper": (
        MODEL_LIBRARIES | SERVER_LIBRARIES | JOB_LIBRARIES | {"fsspec", "yaml"}
    ),
    "fanout.orchestrator.server.process": MODEL_LIBRARIES | JOB_LIBRARIES,
    # A worker, until jobs are sent to it.
    "fanout.workers.__main__": (
        MODEL_LIBRARIES | SERVER_LIBRARIES | {"docker", "fanout.workers.execution"}
    ),
    # Beside a worker's processes, as long as they live.
    "fanout.workers.supervisor": (
        MODEL_LIBRARIES | SERVER_LIBRARIES | JOB_LIBRARIES | {"pydantic", "redis", "asyncio"}
    ),
    "fanout.workers.tasks": (
        MODEL_LIBRARIES | SERVER_LIBRARIES | {"docker", "fanout.workers.execution"}
    ),
}

PROGRAM = """
import importlib, sys
importlib.import_module(sys.argv[1])
print("\\n".join(sys.modules))
"""


@pytest.mark.parametrize("module", NOT_IMPORTED)
def test_a_start_does_not_import_what_it_does_not_use(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, check=True
    )

    assert NOT_IMPORTED[module] & set(done.stdout.splitlines()) == set()
