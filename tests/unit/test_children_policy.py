"""Whom an agent on a worker may call."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types
from pydantic import ValidationError

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition, AgentDefinitions
from fanout.orchestrator.deep_agent.models.tokens import ModelUsage
from fanout.orchestrator.delegation.inherited_conversation import MAX_INHERITED_BYTES
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import Limits, TreeBounds
from fanout.workers.agent.delegation.child_jobs import ChildJobs
from fanout.workers.agent.delegation.inherited_conversation import CallersConversation
from fanout.workers.agent.services import JobServices
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
    refused = child(jobs, subagent_type=name)
    assert isinstance(refused, ValidationError)
    assert "subagent_type" in str(refused)


def test_an_agent_may_call_itself_only_as_a_copy_that_inherits_its_conversation() -> None:
    jobs = jobs_of(agent("lead", subagents=["helper"]))
    assert "There is no subagent_type 'lead'" in str(child(jobs, subagent_type="lead"))
    assert child(jobs, subagent_type="lead", inherit="conversation").agent == "lead"
    assert child(jobs, inherit="conversation").agent == "lead"
    assert child(jobs, subagent_type="helper", inherit="conversation").agent == "helper"
    assert child(jobs).agent == "general-purpose"


def test_a_conversation_of_any_size_is_not_inherited() -> None:
    said = types.Content(role="user", parts=[types.Part(text="x" * MAX_INHERITED_BYTES)])
    jobs = jobs_of(agent("lead", subagents=["helper"]))
    conversation = CallersConversation("lead", [Event(author="user", content=said)], "call")
    refused = child(jobs, conversation, inherit="conversation")
    assert isinstance(refused, InvalidJob)
    assert "more than 8 MiB" in str(refused)
    assert child(jobs, conversation).conversation is None


def child(jobs: ChildJobs, conversation: CallersConversation | None = None, **item: Any) -> Any:
    conversation = conversation or CallersConversation("lead", [], "call")
    return jobs.child("call", 0, {"description": "go", **item}, conversation)


def jobs_of(lead: AgentDefinition) -> ChildJobs:
    known = {one.name: one for one in (lead, agent("helper"), agent("general-purpose"))}
    nothing: Any = None
    services = JobServices(
        ledger=nothing,
        journal=nothing,
        blobs=nothing,
        definitions=AgentDefinitions(known),
        defaults=Limits(),
        bounds=TreeBounds(),
    )
    return ChildJobs(
        services,
        make_spec(),
        lead,
        sandbox=nothing,
        lease=nothing,
        ends_at=math.inf,
        used=ModelUsage,
    )
