"""An engine that runs containers without limits is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.workers.sandbox.docker.opening.resource_limits import require_limits
from fanout.workers.sandbox.errors import EngineUnfit

INFO = {"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}
CREATED = {"Memory": 2**31, "PidsLimit": 256, "NanoCpus": 0}


def test_an_engine_that_keeps_limits_is_accepted() -> None:
    require_limits("unix:///docker.sock", INFO, CREATED)


def test_what_an_engine_does_not_mention_counts_as_kept() -> None:
    require_limits("unix:///docker.sock", {}, CREATED)


@pytest.mark.parametrize(
    ("info", "created", "lost"),
    [
        (INFO, {**CREATED, "Memory": 0}, "memory_bytes:"),
        (INFO, {**CREATED, "PidsLimit": None}, "pids:"),
        (INFO, {"Memory": 0, "PidsLimit": 0}, "memory_bytes, pids:"),  # rootless Podman
        ({**INFO, "CpuCfsQuota": False}, CREATED, "cpus:"),
    ],
)
def test_one_that_loses_a_limit_is_refused_by_its_name(
    info: dict[str, Any], created: dict[str, Any], lost: str
) -> None:
    with pytest.raises(EngineUnfit, match=f"unix:///docker.sock runs .* the limits {lost}"):
        require_limits("unix:///docker.sock", info, created)
