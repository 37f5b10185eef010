"""Whom an agent on a worker may call."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition, AgentDefinitions
from fanout.orchestrator.deep_agent.models.tokens import ModelUsage
from fanout.workers.agent.delegation.child_jobs import ChildJobs
from tests.builders import make_spec


def agent(name: str, **fields: Any) -> AgentDefinition:
    return AgentDefinition(name=name, description=f"is {name}", instruction="work", **fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, None),
        ({"subagents": ["helper"]}, {"helper", "general-purpose"}),
        ({"subagents": ["helper"], "tools": ["read_file"]}, {"helper"}),
        (
            {"subagents": ["helper", "general-purpose"], "tools": ["ls"]},
            {"helper", "general-purpose"},
        ),
    ],
)
def test_an_agent_with_few_tools_reaches_the_general_one_only_by_name(fields, named) -> None:
    lead = agent("lead", **fields)
    known = {one.name: one for one in (lead, agent("helper"), agent("general-purpose"))}
    services: Any = SimpleNamespace(definitions=AgentDefinitions(known), blobs=None)
    nothing: Any = None
    jobs = ChildJobs(
        *(services, make_spec(), lead),
        sandbox=nothing,
        lease=nothing,
        ends_at=math.inf,
        used=ModelUsage,
    )
    assert set(jobs.agents) == (named or set())
