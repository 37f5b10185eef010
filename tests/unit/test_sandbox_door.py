"""The public door of the sandboxes."""

import subprocess
import sys

import fanout.workers.sandbox


def test_every_documented_name_is_there() -> None:
    assert {"Sandbox", "SandboxProvider", "DockerProvider", "LocalProvider", "merge_into"} <= set(
        fanout.workers.sandbox.__all__
    )
    for name in fanout.workers.sandbox.__all__:
        assert getattr(fanout.workers.sandbox, name) is not None
    assert fanout.workers.sandbox.__doc__


def test_what_runs_inside_is_imported_without_what_runs_outside() -> None:
    program = """
import sys, workers.sandbox.inside.frames
print(sorted({"docker", "pydantic", "asyncio", "orchestrator"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
