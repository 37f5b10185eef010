"""What models are shown of delegation: the same wherever the tasks of an agent run."""

from __future__ import annotations

import pytest

from tests.contract.delegation.record import CONFIGURATIONS, RECORDED, view


@pytest.mark.parametrize("name", CONFIGURATIONS)
async def test_a_model_is_shown_the_recorded_tools_and_answers(name: str) -> None:
    """Write them with `python -m tests.contract.delegation.record`, if they are to change."""
    recorded = (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
    assert await view(name) == recorded
