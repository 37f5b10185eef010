"""An engine that runs containers without limits is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.workers.sandbox.docker.starts import require_limits
from fanout.workers.sandbox.errors import EngineUnfit

CREATED = {"Memory": 2**31, "PidsLimit": 256, "NanoCpus": 0}


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({"Memory": 0}, "memory_bytes:"),
        ({"PidsLimit": None}, "pids:"),  # as Docker says it
        ({"Memory": 0, "PidsLimit": 0}, "memory_bytes, pids:"),  # as rootless Podman says it
    ],
)
def test_one_that_loses_a_limit_is_refused_by_its_name(changed: dict[str, Any], lost: str) -> None:
    require_limits("unix:///docker.sock", CREATED)  # one that keeps them is accepted
    with pytest.raises(EngineUnfit, match=f"unix:///docker.sock runs .* the limits {lost}"):
        require_limits("unix:///docker.sock", {**CREATED, **changed})
