"""Every request to a model passes the gate, and the gate hears what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig
from fanout.orchestrator.deep_agent.failures import ModelFailed
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.models.retries import ResilientModel, RetryPolicy
from fanout.orchestrator.deep_agent.models.scripted_model import Script, ScriptedModel
from fanout.orchestrator.deep_agent.models.tokens import ANSWER_TOKENS
from tests.integration.scripts import call
from tests.unit.deep_agent.running import Run, script_file

SOON = RetryPolicy(attempts=3, first_delay_seconds=0.001, max_delay_seconds=0.05)


class GateClosed(Exception):
    """The gate cannot be asked."""


@dataclass
class Gate:
    """Writes down what it is told."""

    closed_for: set[str] = field(default_factory=set)
    failure: Exception | None = None
    entered: list[tuple[str, str, int]] = field(default_factory=list)
    settled: list[tuple[str, int]] = field(default_factory=list)
    cuts: list[float | None] = field(default_factory=list)

    async def enter(self, request: str, model: str, tokens: int) -> None:
        if self.failure:
            raise self.failure
        self.entered.append((request, model, tokens))
        if model in self.closed_for:
            await asyncio.sleep(3600)

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        assert (request, model, tokens) in self.entered
        self.settled.append((request, used))

    async def cut(self, request: str, model: str, tokens: int, asked_seconds: float | None) -> None:
        assert (request, model, tokens) in self.entered
        self.cuts.append(asked_seconds)

    @property
    def models(self) -> list[str]:
        return [model for _, model, _ in self.entered]


def model(gate: Gate, *of_each: list[dict[str, Any]]) -> ResilientModel:
    """Models a, b … with these replies, behind the gate."""
    scripts = [
        Script.model_validate({"conversations": [{"replies": replies}]}) for replies in of_each
    ]
    candidates = [
        ScriptedModel(model=f"scripted:{name}", script=script, agent_name="deep_agent")
        for name, script in zip("ab", scripts, strict=False)
    ]
    names = tuple("ab"[: len(candidates)])
    return ResilientModel(
        model="scripted:a", candidates=[*candidates], retries=SOON, names=names, rate_limiter=gate
    )


async def test_each_repetition_is_a_request_of_its_own_and_only_a_429_is_a_cut() -> None:
    gate = Gate()
    replies: list[dict[str, Any]] = [
        {"calls": [call("read_todos")], "error": {"status": 429, "retry_after_seconds": 0}},
        {"text": "done", "error": {"status": 503, "times": 2}, "usage": {"input_tokens": 7}},
    ]
    run = await Run(model(gate, replies)).to_end()

    assert run.text == "done"
    assert gate.models == ["a"] * 5
    assert len({request for request, _, _ in gate.entered}) == 5
    assert gate.cuts == [0.0]
    answered = [gate.entered[1][0], gate.entered[4][0]]
    assert [request for request, _ in gate.settled] == answered
    assert gate.settled[1][1] == 7


async def test_a_request_asks_for_what_it_holds_and_what_its_answer_may_take() -> None:
    gate = Gate()
    config = types.GenerateContentConfig(system_instruction="i" * 3_000, max_output_tokens=500)
    for given in (config, types.GenerateContentConfig()):
        request = LlmRequest(contents=[types.UserContent("x" * 6_000)], config=given)
        async for _ in model(gate, [{"text": "done"}]).generate_content_async(request):
            pass

    assert [tokens for _, _, tokens in gate.entered] == [3_000 + 500, 2_000 + ANSWER_TOKENS]


async def test_an_answered_request_counts_what_it_used_before_the_agents_tools_have_run() -> None:
    gate = Gate()
    reply = {"calls": [call("read_todos")], "usage": {"input_tokens": 7}}
    request = LlmRequest(contents=[types.UserContent("go")])
    async for _ in model(gate, [reply]).generate_content_async(request):
        await asyncio.sleep(0)  # a tool runs
        assert [used for _, used in gate.settled] == [7]

    assert len(gate.settled) == 1


async def test_another_model_is_asked_when_the_first_ones_turn_does_not_come() -> None:
    gate = Gate(closed_for={"a"})
    run = await Run(model(gate, [{"text": "never"}], [{"text": "from b"}])).to_end()

    assert run.text == "from b"
    assert gate.models == ["a", "b"]


async def test_a_gate_that_cannot_be_asked_lets_nothing_through() -> None:
    with pytest.raises(GateClosed):
        await Run(model(Gate(failure=GateClosed()), [{"text": "never"}])).to_end()


async def test_summaries_and_sub_agents_pass_the_gate_of_their_agent(tmp_path: Any) -> None:
    gate = Gate()
    path = script_file(
        tmp_path,
        """
        conversations:
          - agent: helper
            replies: [{text: helped}]
          - when: <conversation>
            replies: [{text: a summary}]
          - replies:
              - calls: [{tool: task, args: {description: help, subagent_type: helper}}]
              - calls: [{tool: read_todos}]
              - calls: [{tool: read_todos}]
              - text: done
        """,
    )
    name = f"scripted:{path}"
    helper = {"name": "helper", "description": "Helps.", "system_prompt": "Help.", "model": name}
    run = await Run(
        name,
        subagents=[helper],
        summarization=SummarizationConfig(
            trigger=("messages", 4), keep=("messages", 2), model=name
        ),
        rate_limiter=gate,
    ).to_end("go")

    assert run.text == "done"
    assert len(gate.entered) == len(gate.settled) > 5
    assert set(gate.models) == {name}


def test_models_are_known_at_the_gate_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    resolved = resolve_model(
        "responses/gpt-5, scripted:/no/file", agent_name="a", rate_limiter=Gate()
    )

    assert isinstance(resolved, ResilientModel)
    assert resolved.names == ("responses/gpt-5", "scripted:/no/file")


async def test_a_model_that_stays_limited_fails_after_its_attempts() -> None:
    gate = Gate()
    with pytest.raises(ModelFailed, match="429"):
        await Run(model(gate, [{"text": "", "error": {"status": 429, "times": 9}}])).to_end()

    assert gate.cuts == [None] * 3
