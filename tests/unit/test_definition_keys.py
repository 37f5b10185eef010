"""The keys `loops`, `summarization` and `mcp_servers` of an agent definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.deep_agent import LoopLimits, LoopPolicy
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig

HEAD = "name: one\ndescription: x\ninstruction: x\n"
SERVERS = "limits:\n  cpus: 1\nmcp_servers:\n"
"""What follows behind both is on the seventh line."""


def load(folder: Path, text: str) -> AgentDefinition:
    path = folder / "one.yaml"
    path.write_text(HEAD + text)
    return load_agent_definition(path)


def test_what_is_set_is_taken_and_the_rest_is_the_deep_agents_default(tmp_path: Path) -> None:
    default = load(tmp_path, "")
    assert LoopPolicy(**default.loops.settings()) == LoopPolicy()
    assert SummarizationConfig(**default.summarization.settings()) == SummarizationConfig()
    made = load(
        tmp_path,
        "loops: {exempt: [look_*], per_tool: {execute: {max_same: 30, stop_after: 60}}}\n"
        "summarization: {trigger: [messages, 50], keep: [fraction, 0.2], model: gpt-5}\n",
    )
    assert LoopPolicy(**made.loops.settings()) == LoopPolicy(
        exempt=("look_*",), per_tool={"execute": LoopLimits(max_same=30, stop_after=60)}
    )
    assert SummarizationConfig(**made.summarization.settings()) == SummarizationConfig(
        trigger=("messages", 50), keep=("fraction", 0.2), model="gpt-5"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loops: {max_same: 3}\n", "one.yaml:4: .*give max_same and stop_after together"),
        ("loops: {max_same: 3, stop_after: 3}\n", "stop_after must be above max_same"),
        ("loops:\n  often: 3\n", "one.yaml:5: unknown key 'loops.often'. Known are max_same"),
        ("summarization:\n  trigger: [fraction, 1.5]\n", "one.yaml:5: .*there is no fraction 1.5"),
        ("summarization:\n  keep: [tokens, 0]\n", "one.yaml:5: .*there is no tokens 0"),
        ("summarization:\n  keep: [lines, 5]\n", r"one.yaml:5: summarization\.keep"),
        (
            "summarization:\n  when: late\n",
            "unknown key 'summarization.when'. Known are trigger, keep, model",
        ),
        (
            "setup:\n  comands: [make]\n",
            r"one.yaml:5: unknown key 'setup.comands'. Did you mean commands\?",
        ),
        ("setup:\n  key_files: [/etc/x]\n", r"one.yaml:5: setup.key_files.0: '/etc/x' is not"),
        (
            "setup:\n  credentials: [{host: a.example, secret: KEY}]\n",
            "one.yaml:4: setup: credentials: add a.example to network",
        ),
        (
            "limits:\n  cups: 1\n",
            r"one.yaml:5: unknown key 'limits.cups'. Did you mean cpus\?",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidAgentDefinition, match=words):
        load(tmp_path, text)


def test_both_kinds_of_servers_are_read(tmp_path: Path) -> None:
    definition = load(
        tmp_path,
        SERVERS
        + "- {name: docs, url: 'https://x.test/mcp', transport: sse, headers: {authorization: 'Is ${K}'}}\n"
        + "- {name: files, command: [python3, s.py], env: {A: b}, tools: [read], timeout_seconds: 5}\n",
    )

    docs, files = definition.mcp_servers

    assert (docs.url, docs.transport, docs.tools) == ("https://x.test/mcp", "sse", None)
    assert docs.headers == {"authorization": "Is ${K}"}
    assert (files.command, files.env, files.tools) == (("python3", "s.py"), {"A": "b"}, ("read",))


def test_headers_are_never_shown(tmp_path: Path) -> None:
    entry = "- {name: docs, url: 'https://x.test/', headers: {authorization: literal-key}}\n"
    definition = load(tmp_path, SERVERS + entry)

    assert "literal-key" not in repr(definition) + str(definition) + definition.model_dump_json()


@pytest.mark.parametrize(
    ("servers", "line", "problem"),
    [
        ("- name: a\n", 7, "give either url or command"),
        ("- name: a\n  url: http://x/\n  command: [b]\n", 7, "give either url or command"),
        (
            "- name: a\n  url: http://x/\n  shell: b\n",
            9,
            "unknown key 'mcp_servers.0.shell'. Known are name,",
        ),
        ("- name: a\n  url: ftp://x/\n", 8, "begins with http:// or https://"),
        ("- name: a\n  url: http://me:secret@x/\n", 8, "holds no password"),
        (
            "- name: a\n  command: [b]\n  headers: {c: d}\n",
            7,
            "transport and headers belong to a url",
        ),
        ("- name: a\n  url: http://x/\n  env: {c: d}\n", 7, "env belongs to a command"),
        ("- name: a\n  command: []\n", 8, "at least 1 item"),
        ("- name: a__b\n  command: [b]\n", 7, "mcp_servers.0.name"),
        (
            "- name: a\n  command: [b]\n- name: a\n  command: [c]\n",
            6,
            "each server needs its own name",
        ),
        (
            "- name: a\n  command: [b]\n- name: c\n  command: [c]\n  timeout_seconds: 0\n",
            11,
            "greater than 0",
        ),
    ],
)
def test_a_mistake_in_a_server_is_told_with_its_line_and_without_its_secrets(
    tmp_path: Path, servers: str, line: int, problem: str
) -> None:
    with pytest.raises(InvalidAgentDefinition) as refused:
        load(tmp_path, SERVERS + servers)

    assert f"one.yaml:{line}: " in str(refused.value)
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)
