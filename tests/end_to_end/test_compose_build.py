"""The images that Compose builds, on stand-ins for those of a registry, and a job through them.

A build takes minutes and needs the package index, so it is asked for: `make compose`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from tests.end_to_end.compose_stack import PROGRAMS, docker, new_stack, program_of, require_images
from tests.integration.scripts import DONE, conversation, shell, write_script

ASKED_FOR = "COMPOSE_BUILD"
BASE = "fanout-test/compose-base"
BUILT = "fanout-test/compose-built"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(ASKED_FOR not in os.environ, reason="`make compose` builds images."),
]


@pytest.fixture
def stand_in(tmp_path: Path):
    """A base with this machine's certificate authorities, which its package index may need."""
    require_images("fanout/python:latest", "redis:7.4-alpine")
    folder = tmp_path / "base"
    folder.mkdir()
    shutil.copy(AUTHORITIES, folder)
    (folder / "Dockerfile").write_text(
        f"FROM fanout/python:latest\nUSER root\nCOPY {AUTHORITIES.name} {AUTHORITIES}\n"
        f"ENV PIP_CERT={AUTHORITIES}\n"
    )
    docker("build", "--quiet", "--tag", BASE, str(folder))
    yield BASE
    for image in (BUILT, BASE):
        subprocess.run(["docker", "image", "rm", image], capture_output=True, check=False)


@pytest.mark.parametrize("version", PROGRAMS)
async def test_a_job_runs_on_what_compose_has_built(version, stand_in, tmp_path):
    program = program_of(version)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    script = write_script(blobs, conversation("", shell("echo done > done.txt"), DONE))
    stack = new_stack(program, tmp_path, script, {"image": BUILT}, FANOUT_IMAGE_BASE=stand_in)
    try:
        await asyncio.to_thread(stack.start, "--build")
        settings = await asyncio.to_thread(lambda: stack.settings)
        async with JobClient.from_settings(settings) as client:
            job_id = await client.submit(JobSpec(description="anything"))
            result = await client.wait(job_id, timeout_seconds=120)
    finally:
        await asyncio.to_thread(stack.remove)

    assert (result.state, result.sandbox) == (JobState.SUCCEEDED, "docker")
    assert [file.path for file in result.files_modified] == ["done.txt"]
