"""What is missing or wrong gives one clear sentence, the right exit code, and nothing half-done."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.forked import run_module
from tests.integration.scripts import DONE, conversation, shell
from tests.services import REPOSITORY, Installation
from tests.waits import without_waits

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

FILL = "dd if=/dev/zero of=big.bin bs=1M count=200 2>&1; sleep 6; echo went on"


place = place_fixture(conversation("fill the disk", shell("echo a > a.txt"), shell(FILL), DONE))


def fanout(
    place: Installation, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run_module("fanout", *arguments, environment={**place.environment, **environment})


def said(done: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """What a command that failed said: one line, no traceback, nothing on standard output."""
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = without_waits(done.stderr).strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def jobs(place: Installation) -> list[object]:
    return list(json.loads(fanout(place, "ps", "--all", "--json").stdout)["jobs"])


def test_a_worker_without_an_engine_says_what_to_do_and_does_not_start(place: Installation) -> None:
    nowhere = {"FANOUT_SANDBOX__PROVIDER": "docker", "DOCKER_HOST": "unix:///nowhere/docker.sock"}

    sentence = said(fanout(place, "worker", **nowhere), 3)

    assert "Docker" in sentence
    assert "FANOUT_SANDBOX__PROVIDER" in sentence


@pytest.mark.docker
def test_a_worker_without_its_image_says_which_there_are(place: Installation) -> None:
    missing = {"FANOUT_SANDBOX__PROVIDER": "docker", "FANOUT_SANDBOX__IMAGE": "fanout/not-there"}

    sentence = said(fanout(place, "worker", **missing), 3)

    assert "fanout/not-there" in sentence
    assert "fanout/base, fanout/python" in sentence


def test_a_redis_that_is_not_there_is_unreachable(place: Installation) -> None:
    sentence = said(fanout(place, "submit", "x", FANOUT_REDIS_URL="redis://127.0.0.1:1/0"), 3)

    assert "Redis" in sentence
    assert "FANOUT_REDIS_URL" in sentence


def test_a_wrong_setting_is_named_with_what_is_allowed(place: Installation) -> None:
    sentence = said(fanout(place, "ps", FANOUT_WORKER__CONCURRENCY="many"), 2)

    assert "FANOUT_WORKER__CONCURRENCY" in sentence
    assert "'many'" in sentence
    assert "integer" in sentence


def test_an_unknown_agent_is_refused_in_words(place: Installation) -> None:
    sentence = said(fanout(place, "submit", "x", "--agent", "nobody"), 2)

    assert "nobody" in sentence
    assert "fanout agents" in sentence
    assert jobs(place) == []


def test_a_workspace_that_is_not_there_is_refused(place: Installation) -> None:
    sentence = said(fanout(place, "submit", "x", "--workspace", str(place.folder / "gone")), 2)

    assert "gone" in sentence
    assert jobs(place) == []


def test_bad_lines_of_a_file_are_all_named_and_nothing_is_submitted(place: Installation) -> None:
    path = place.folder / "jobs.jsonl"
    path.write_text('{"description": "fine"}\n{"descripton": "typo"}\nnot json\n')

    done = fanout(place, "submit", "--file", str(path))

    assert done.returncode == 2
    assert "2" in done.stderr
    assert "descripton" in done.stderr
    assert "3" in done.stderr
    assert done.stdout == ""
    assert jobs(place) == []


def test_a_state_folder_that_cannot_be_used_is_named(place: Installation) -> None:
    environment = {**place.environment, "FANOUT_STATE_DIR": "/dev/null/fanout"}
    environment.pop("FANOUT_REDIS_URL")

    done = subprocess.run(
        [sys.executable, "-m", "fanout", "up"],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 3
    assert "/dev/null/fanout" in done.stderr
    assert "FANOUT_STATE_DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_blob_folder_that_cannot_be_written_is_named_and_nothing_is_submitted(
    place: Installation,
) -> None:
    (place.folder / "ws").mkdir()

    done = fanout(
        place,
        "submit",
        "x",
        "--workspace",
        str(place.folder / "ws"),
        FANOUT_BLOBS_URL="file:///dev/null/blobs",
    )

    assert "FANOUT_BLOBS_URL" in said(done, 3)
    assert jobs(place) == []


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["local", pytest.param("docker", marks=pytest.mark.docker)])
async def test_a_full_disk_ends_the_job_with_the_limit_and_what_was_done_before(
    place: Installation, provider: str
) -> None:
    # Where the kernel keeps the limit, commands are refused and the job goes on.
    place.start_worker(FANOUT_SANDBOX__PROVIDER=provider, FANOUT_SANDBOX__DISK_QUOTA="watch")
    async with place.client() as client:
        await place.ready(client)
        spec = make_spec("fill the disk", limits=Limits(disk_bytes=20 * 1024**2))
        result = await client.wait(await client.submit(spec), 60)

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == "DiskLimitExceeded"
    assert "20" in result.error.message
    assert "a.txt" in [file.path for file in result.files_modified]
