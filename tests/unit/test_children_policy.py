"""Whom an agent on a worker may call."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

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
    assert set(jobs_of(agent("lead", **fields)).agents) == (named or set())


@pytest.mark.parametrize("name", [["helper"], {}, None, 5])
def test_an_agent_that_is_no_text_is_a_reason_and_not_the_end_of_the_job(name) -> None:
    jobs = jobs_of(agent("lead", subagents=["helper"]))
    refused = jobs.child("call", 0, {"description": "go", "subagent_type": name})
    assert isinstance(refused, ValidationError)
    assert "subagent_type" in str(refused)


def jobs_of(lead: AgentDefinition) -> ChildJobs:
    known = {one.name: one for one in (lead, agent("helper"), agent("general-purpose"))}
    services: Any = SimpleNamespace(definitions=AgentDefinitions(known), blobs=None)
    nothing: Any = None
    return ChildJobs(
        services,
        make_spec(),
        lead,
        sandbox=nothing,
        lease=nothing,
        ends_at=math.inf,
        used=ModelUsage,
    )
