"""The key `mcp_servers` of an agent definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    load_agent_definition,
)

HEAD = """\
name: one
description: x
instruction: x
limits:
  cpus: 1
mcp_servers:
"""
"""Six lines: what follows is on the seventh."""


def load(folder: Path, servers: str) -> object:
    path = folder / "one.yaml"
    path.write_text(HEAD + servers)
    return load_agent_definition(path)


def test_both_kinds_of_servers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        HEAD
        + "- {name: docs, url: 'https://x.test/mcp', transport: sse, headers: {authorization: 'Is ${K}'}}\n"
        + "- {name: files, command: [python3, s.py], env: {A: b}, tools: [read], timeout_seconds: 5}\n"
    )

    docs, files = load_agent_definition(path).mcp_servers

    assert (docs.url, docs.transport, docs.tools) == ("https://x.test/mcp", "sse", None)
    assert docs.headers == {"authorization": "Is ${K}"}
    assert (files.command, files.env, files.tools) == (("python3", "s.py"), {"A": "b"}, ("read",))


def test_headers_are_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        HEAD + "- {name: docs, url: 'https://x.test/', headers: {authorization: literal-key}}\n"
    )
    definition = load_agent_definition(path)

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
def test_a_mistake_is_told_with_its_file_and_line(
    tmp_path: Path, servers: str, line: int, problem: str
) -> None:
    with pytest.raises(InvalidAgentDefinition) as refused:
        load(tmp_path, servers)

    assert f"one.yaml:{line}: " in str(refused.value)
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_unknown_key_below_another_one_names_what_is_known_there(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(HEAD.replace("cpus", "cups").replace("mcp_servers:\n", ""))

    with pytest.raises(
        InvalidAgentDefinition, match=r"one.yaml:5: unknown key 'limits.cups'. Did you mean cpus\?"
    ):
        load_agent_definition(path)
