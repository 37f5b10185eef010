"""What a gone installation left is named and removed by a person's command, and by nothing else."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import run_module
from tests.services import containers_of, docker, volumes_of

pytestmark = pytest.mark.docker


@pytest.fixture
def gone() -> Iterator[str]:
    """The id of an installation with a container that never started, and a volume."""
    identity = f"test-{secrets.token_hex(4)}"
    labels = [
        *("--label", f"fanout.installation={identity}"),
        *("--label", "fanout.worker=w", "--label", "fanout.role=sandbox"),
    ]
    docker("create", *labels, "fanout/base", "sleep", "600")
    docker("volume", "create", *labels)
    yield identity
    for container in containers_of(identity):
        docker("rm", "-f", container)
    for volume in volumes_of(identity):
        docker("volume", "rm", volume)


def fanout(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FANOUT_STATE_DIR": str(folder / "state")}
    return run_module("fanout", *arguments, environment=environment)


def test_doctor_names_what_is_left_and_the_command_that_removes_it(
    gone: str, tmp_path: Path
) -> None:
    report = json.loads(fanout(tmp_path, "doctor", "--json").stdout)
    (line,) = [check for check in report["checks"] if gone in check["found"]]

    assert line["found"].startswith("1 containers and 1 volumes")
    assert line["advice"].endswith(f"fanout clean {gone}")
    removed = fanout(tmp_path, "clean", gone)

    assert removed.returncode == 0, removed.stderr
    assert containers_of(gone) + volumes_of(gone) == []


@pytest.mark.slow
def test_an_installation_with_a_running_container_is_only_removed_by_force(
    gone: str, tmp_path: Path
) -> None:
    docker("start", *containers_of(gone))

    refused = fanout(tmp_path, "clean", gone)
    assert refused.returncode == 2
    assert "stop its workers first" in refused.stderr
    assert len(containers_of(gone)) == 1
    listed = json.loads(fanout(tmp_path, "clean", "--json").stdout)["installations"]
    assert [len(one["running"]) for one in listed if one["id"] == gone] == [1]

    assert fanout(tmp_path, "clean", gone, "--force").returncode == 0
    assert containers_of(gone) + volumes_of(gone) == []
