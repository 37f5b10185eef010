"""Coding agents: what definitions may say, and how what an agent says is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from acp.schema import Usage

from fanout.orchestrator.configuration.absent_packages import absent
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import Limits
from fanout.workers.extras.coding_agents.permissions import read_question, unguarded
from fanout.workers.extras.coding_agents.updates import Chunk, Plan, ToolUse, read_update
from fanout.workers.extras.coding_agents.usage import over_budget, told_usage

HEAD = "name: coder\ndescription: Works.\nacp:\n  command: [coder, --acp]\n"


def load(folder: Path, text: str) -> AgentDefinition:
    file = folder / "coder.yaml"
    file.write_text(text)
    return load_agent_definition(file)


def test_a_definition_has_the_keys_of_jobs_and_no_instruction_is_needed(tmp_path: Path) -> None:
    loaded = load(tmp_path, HEAD + "  env: {API_KEY: dummy}\ninterrupt_on: {execute: [approve]}\n")
    assert loaded.acp is not None
    assert loaded.acp.command == ("coder", "--acp")
    assert loaded.has_own_model


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("tools: [execute]\n", "a coding agent (acp) has its own tools: remove the key"),
        ("model: gemini-3-pro\n", "a coding agent (acp) has its own model: remove the key"),
        ("skills: []\n", "a coding agent (acp) has its own skills: remove the key"),
        ("a2a: {url: 'https://a.example'}\n", "give either a2a"),
        ("  env: {KEY: sk-ant-0123456789abcdef0123}\n", "KEY holds a key"),
        ("interrupt_on: {write_file: true}\n", "asks for no 'write_file'"),
        ("interrupt_on: {edit: [edit]}\n", "approved or rejected only"),
        ("  login: true\n", "unknown key 'acp.login'"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    tmp_path: Path, more: str, sentence: str
) -> None:
    with pytest.raises(InvalidAgentDefinition) as refused:
        load(tmp_path, HEAD + more)
    assert sentence in str(refused.value)


def test_a_worker_without_the_library_says_what_to_install(monkeypatch: Any) -> None:
    import sys  # noqa: PLC0415

    from fanout.workers.extras.coding_agents import coding_agent  # noqa: PLC0415

    for name in [one for one in sys.modules if one.partition(".")[0] == "acp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(
        sys.modules, "fanout.workers.extras.coding_agents.connection", raising=False
    )
    with absent("acp"), pytest.raises(InvalidJob, match="agent-client-protocol"):
        coding_agent._load_library()


@pytest.mark.parametrize(
    ("offered", "is_allowed", "chosen"),
    [
        (["allow_always", "allow_once", "reject_once"], True, "allow_once"),
        (["allow_always", "allow_once", "reject_once"], False, "reject_once"),
        (["allow_always", "reject_always"], True, "reject_always"),
        (["allow_always"], True, None),
        (["allow_once"], False, None),
        (["maybe"], True, None),
    ],
)
def test_of_the_options_the_one_for_this_call_is_taken(
    offered: list[str], is_allowed: bool, chosen: str | None
) -> None:
    options = [{"optionId": kind, "kind": kind} for kind in offered]
    question = read_question({"toolCall": {"toolCallId": "1"}, "options": options})
    outcome = question.outcome(is_allowed=is_allowed)["outcome"]
    assert outcome.get("optionId") == chosen
    assert (outcome["outcome"] == "cancelled") == (chosen is None)


def test_an_answer_is_for_one_call_with_its_arguments_only() -> None:
    make, test, bare = (
        read_question({"toolCall": {"toolCallId": "1", "title": "Build", "rawInput": raw}})
        for raw in ({"command": "make"}, {"command": "make test"}, None)
    )
    again = read_question(
        {"toolCall": {"toolCallId": "9", "title": "Build", "rawInput": {"command": "make"}}}
    )
    assert len({make.sha256, test.sha256, bare.sha256}) == 3
    assert again.sha256 == make.sha256


@pytest.mark.parametrize("field", ["title", "rawInput"])
def test_an_answer_is_for_the_whole_of_a_long_call(field: str) -> None:
    one, other = (
        read_question({"toolCall": {"toolCallId": "1", field: "x" * 100_000 + end}})
        for end in ("1", "2")
    )
    assert one.sha256 != other.sha256


def test_a_callers_policy_is_kept_only_where_the_definition_asks() -> None:
    guards = {"execute": True, "write_file": True, "task": True}
    assert unguarded(guards, {}) == ["execute", "write_file"]
    assert unguarded(guards, {"execute": True}) == ["write_file"]
    asks = {"execute": True, "edit": True, "move": True}
    assert unguarded(guards, asks) == []


@pytest.mark.parametrize(
    ("update", "read"),
    [
        ({"sessionUpdate": "telepathy"}, None),
        ({"sessionUpdate": ["odd"]}, None),
        ({"sessionUpdate": "agent_message_chunk", "content": 7}, Chunk("")),
        ({"sessionUpdate": "plan", "entries": [{"status": 1}, "x"]}, "one todo"),
        ({"sessionUpdate": "tool_call", "toolCallId": 5, "kind": "dance"}, ToolUse("5", "other")),
        ({"sessionUpdate": "usage_update", "cost": {"amount": "x", "currency": "USD"}}, None),
    ],
)
def test_odd_updates_say_little_and_never_fail(update: dict[str, Any], read: Any) -> None:
    found = read_update({"update": update})
    if read == "one todo":
        assert isinstance(found, Plan)
        assert len(found.todos) == 1
    else:
        assert found == read


@pytest.mark.parametrize(
    ("told", "read", "written", "cached"),
    [
        ({"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}, 10, 2, 0),
        # Cached input apart, as with Anthropic.
        (
            {"inputTokens": 1, "outputTokens": 2, "totalTokens": 103, "cachedReadTokens": 100},
            *(101, 2, 100),
        ),
        # Thoughts apart.
        ({"inputTokens": 10, "outputTokens": 2, "totalTokens": 17, "thoughtTokens": 5}, 10, 7, 0),
    ],
)
def test_the_total_says_what_the_numbers_of_a_turn_mean(
    told: dict[str, int], read: int, written: int, cached: int
) -> None:
    used = told_usage(Usage.model_validate(told))
    assert (used.input_tokens, used.output_tokens, used.cached_tokens) == (read, written, cached)
    assert over_budget(used, Limits(max_tokens=read + written)) is None
    assert "max_tokens" in str(over_budget(used, Limits(max_tokens=read + written - 1)))
