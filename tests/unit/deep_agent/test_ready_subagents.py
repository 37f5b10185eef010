"""Agents that were made elsewhere as sub-agents: every kind that ADK has, bound by the policy."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.runners import InMemoryRunner, Runner
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, BaseNode, Workflow

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent.approval import answers_message, pending_approvals
from fanout.orchestrator.deep_agent.create import create_deep_agent
from fanout.orchestrator.deep_agent.delegation.roster import SubAgentSpec
from tests.integration.scripts import call, calls, says
from tests.unit.deep_agent.running import Run
from tests.unit.deep_agent.talking import first_message, recorder
from tests.unit.deep_agent.test_subagents import Connection, asks, parent

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated.*:DeprecationWarning")


class Deployments:
    """A tool that a person has to approve, and how often it ran."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    async def deploy(self, target: str) -> str:
        """Deploy."""
        self.targets.append(target)
        return "deployed"


def llm(name: str, *replies: dict[str, Any], **more: Any) -> LlmAgent:
    return LlmAgent(name=name, description="d", model=recorder(name, list(replies)), **more)


class Custom(BaseAgent):
    """Runs an agent that it keeps in a field, which is not one of its `sub_agents`."""

    inner: LlmAgent

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        async for event in self.inner.run_async(ctx):
            yield event


def made(kind: str, inner: LlmAgent) -> BaseNode:
    """An agent of some kind that runs another one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds: dict[str, Any] = {
            "llm": lambda: inner,
            "sequential": lambda: SequentialAgent(name="outer", sub_agents=[inner]),
            "loop": lambda: LoopAgent(name="outer", sub_agents=[inner], max_iterations=1),
            "parallel": lambda: ParallelAgent(name="outer", sub_agents=[inner]),
            "custom": lambda: Custom(name="outer", inner=inner),
            "workflow": lambda: Workflow(name="outer", edges=[(START, inner)]),
            "nested": lambda: SequentialAgent(
                name="outer", sub_agents=[LoopAgent(name="l", sub_agents=[inner], max_iterations=1)]
            ),
        }
        node: BaseNode = kinds[kind]()
        return node


KINDS = ["llm", "sequential", "loop", "parallel", "custom", "workflow", "nested"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_agent_gets_a_task_and_answers(kind: str) -> None:
    inner = llm("inner", says("from within"))
    outer = made(kind, inner)
    run = await Run(parent(asks("count", outer.name)), subagents=[outer]).to_end()
    assert run.results[0]["success"], run.results
    assert "from within" in run.results[0]["summary"]
    assert first_message(inner.model) == "count"
    assert "not listed here" in run.results[0]["note"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_agent_is_bound_by_its_parents_policy(kind: str) -> None:
    made_before = Deployments()
    replies = calls(call("deploy", target="x")), says("went on")
    outer = made(kind, llm("inner", *replies, tools=[made_before.deploy]))
    run = Run(
        parent(asks("x", outer.name)),
        tools=[made_before.deploy],
        subagents=[outer],
        interrupt_on={"deploy": True},
    )
    await run.to_end()
    assert made_before.targets == []
    session = await run.sessions.get_session(app_name="fanout", user_id="u", session_id="s")
    assert session is not None
    (pending,) = pending_approvals(session.events)
    assert (pending.tool, pending.agent) == ("deploy", "inner")
    answer = answers_message([(pending, ApprovalAnswer(decision="approve"))])
    runner = Runner(app=run.app, session_service=run.sessions)
    async for event in runner.run_async(user_id="u", session_id="s", new_message=answer):
        if event.content:
            run.events.append(event)
    assert made_before.targets == ["x"]
    assert "went on" in run.results[-1]["summary"]


async def test_an_agent_that_an_agent_has_as_a_tool_is_bound_too() -> None:
    deployments = Deployments()
    inner = llm(
        "inner", calls(call("deploy", target="x")), says("asked"), tools=[deployments.deploy]
    )
    outer = llm("outer", calls(call("inner", request="go")), says("x"), tools=[AgentTool(inner)])
    run = Run(
        parent(asks("x", "outer")),
        tools=[deployments.deploy],
        subagents=[outer],
        interrupt_on={"deploy": True},
    )
    await run.to_end()
    assert deployments.targets == []


async def test_a_ready_agents_own_sub_agents_are_bound_too() -> None:
    deployments = Deployments()
    below = SubAgentSpec(
        name="below",
        description="d",
        model=recorder("below", [calls(call("deploy", target="x")), says("x")]),
        tools=[deployments.deploy],
    )
    ready = create_deep_agent(
        recorder("ready", [calls(asks("x", "below")), says("x")]), name="ready", subagents=[below]
    )
    run = Run(
        parent(asks("x", "ready")),
        tools=[deployments.deploy],
        subagents=[ready],
        interrupt_on={"deploy": True},
    )
    await run.to_end()
    assert deployments.targets == []
    assert [approval.tool for approval in pending_approvals(run.events)] == ["deploy"]


async def test_all_branches_of_a_parallel_agent_answer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = ParallelAgent(name="both", sub_agents=[llm("a", says("one")), llm("b", says("two"))])
    run = await Run(parent(asks("x", "both")), subagents=[both]).to_end()
    assert run.results[0]["summary"] == "a:\none\n\nb:\ntwo"


async def test_a_workflow_answers_with_its_last_output() -> None:
    def shout(node_input: str) -> str:
        return node_input.upper()

    flow = Workflow(name="flow", edges=[(START, llm("a", says("quiet")), shout)])
    run = await Run(parent(asks("x", "flow")), subagents=[flow]).to_end()
    assert run.results[0]["summary"] == "QUIET"


async def test_it_is_in_both_styles_of_delegation() -> None:
    outer = made("sequential", llm("inner", says("from within")))
    run = await Run(
        recorder("parent", [calls(call("outer", description="x")), says("done")]),
        subagents=[outer],
        delegation="agent_tools",
    ).to_end()
    assert run.results[0]["summary"] == "from within"


async def test_toolsets_below_a_ready_agent_are_closed_with_the_parents_runner() -> None:
    own = Connection()
    outer = made("sequential", llm("inner", says("x"), tools=[own]))
    agent = create_deep_agent(recorder("p", [says("x")]), subagents=[outer])
    await InMemoryRunner(agent=agent, app_name="fanout").close()
    assert own.closed
