"""What a program does not import at its start: each of these libraries takes a part of a second."""

import subprocess
import sys
from pathlib import Path

import pytest

from fanout.orchestrator.cli.terminal.exit_codes import ExitCode

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
STARTS = (
    *NOT_IMPORTED,
    "fanout.orchestrator.agent",
    "fanout.orchestrator.deep_agent.create",
    # What runs a worker's jobs.
    "fanout.workers.execution",
)
EXTRAS = ("fanout.orchestrator.extras.", "fanout.workers.extras.")

PROGRAM = """
import importlib, sys
importlib.import_module(sys.argv[1])
print("\\n".join(sys.modules))
"""
COMMAND = """
import atexit, sys
atexit.register(lambda: print("\\n".join(sys.modules), file=sys.stderr))
from fanout.orchestrator.cli import main
main()
"""


@pytest.mark.parametrize("module", STARTS)
def test_a_start_imports_no_extra_and_nothing_that_it_does_not_use(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, check=True
    )

    imported = done.stdout.splitlines()
    assert NOT_IMPORTED.get(module, set()) & set(imported) == set()
    assert [name for name in imported if name.startswith(EXTRAS)] == []
    assert "pydantic_monty" not in imported, "only who runs a script loads its interpreter"


@pytest.mark.parametrize(
    ("arguments", "exit_code"), [(["--help"], ExitCode.DONE), (["ps"], ExitCode.UNREACHABLE)]
)
def test_a_command_loads_no_extra(
    arguments: list[str], exit_code: ExitCode, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env={"HOME": str(tmp_path), "FANOUT_REDIS_URL": "redis://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )

    loaded = done.stderr.splitlines()
    assert done.returncode == exit_code
    assert "fanout.orchestrator.cli.app" in loaded
    assert [name for name in loaded if name.startswith(EXTRAS)] == []
