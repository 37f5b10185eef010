"""Which agents a model may have verified by a command of its own."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.delegation.calls import TaskCall, check_verify
from fanout.orchestrator.jobs.failures import InvalidJob


def agent(**fields: Any) -> AgentDefinition:
    return AgentDefinition(name="helper", description="Helps.", instruction="Help.", **fields)


@pytest.mark.parametrize("fields", [{}, {"tools": ("execute",)}])
def test_an_agent_that_runs_commands_may_be_verified(fields: dict[str, Any]) -> None:
    check_verify(TaskCall("do it", verify="true"), agent(**fields), {})


@pytest.mark.parametrize(
    "fields", [{"tools": ()}, {"tools": ("ls",)}, {"interrupt_on": {"execute": True}}]
)
def test_an_agent_that_runs_none_by_itself_may_not(fields: dict[str, Any]) -> None:
    check_verify(TaskCall("do it"), agent(**fields), {})
    with pytest.raises(InvalidJob, match="may not run commands by itself"):
        check_verify(TaskCall("do it", verify="true"), agent(**fields), {})
