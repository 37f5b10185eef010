"""Which agents run a command that a model or a caller has written."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.delegation.submission_check import check_commands
from fanout.orchestrator.jobs.failures import InvalidJob

COMMANDS = ("verify", "verify_merges")


def agent(**fields: Any) -> AgentDefinition:
    return AgentDefinition(name="helper", description="Helps.", instruction="Help.", **fields)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("fields", [{}, {"tools": ("execute",)}])
def test_an_agent_that_runs_commands_may_be_verified(fields: dict[str, Any], name: str) -> None:
    runs = agent(**fields)

    check_commands(runs, {}, **{name: "true"})

    with pytest.raises(InvalidJob, match="a person approves its commands"):
        check_commands(runs, {"execute": ["approve"]}, **{name: "true"})


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "fields", [{"tools": ()}, {"tools": ("ls",)}, {"interrupt_on": {"execute": True}}]
)
def test_an_agent_that_runs_none_by_itself_may_not(fields: dict[str, Any], name: str) -> None:
    check_commands(agent(**fields), {}, verify="", verify_merges=None)
    with pytest.raises(InvalidJob, match=f"may not run commands on its own .* leave {name} out"):
        check_commands(agent(**fields), {}, **{name: "true"})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_its_own_definition_is_its_operators(name: str) -> None:
    guarded: dict[str, Any] = {"interrupt_on": {"execute": True}, name: "make test"}

    check_commands(agent(**guarded), {}, **{name: "make test"})
    with pytest.raises(InvalidJob):
        check_commands(agent(**guarded), {}, **{name: "make test; true"})
