"""What is misspelt is refused in one sentence that says where it stands and what was meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fanout.orchestrator.cli.commands.job_files import plan
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    load_agent_definitions,
)
from fanout.orchestrator.configuration.known_names import BUILT_IN_TOOLS, possible_model
from fanout.orchestrator.configuration.setting_errors import OF_OTHERS, misspelt, setting_variables
from fanout.orchestrator.configuration.settings import InvalidSetting, Settings, load_settings
from fanout.orchestrator.deep_agent import ModelNotConfigured, create_deep_agent, resolve_model
from tests.forked import REPOSITORY

AGENT = "name: mine\ndescription: d\ninstruction: i\n"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("FANOUT_MODLE", "gpt-5", "There is no setting FANOUT_MODLE. Did you mean FANOUT_MODEL?"),
        ("FANOUT_SANDBOX_PROVIDER", "local", "Did you mean FANOUT_SANDBOX__PROVIDER?"),
        ("FANOUT_SANDBOX__PROVIDR", "local", "Did you mean FANOUT_SANDBOX__PROVIDER?"),
        ("FANOUT_FLOWER__COLOUR", "red", "There are FANOUT_FLOWER__PORT, FANOUT_FLOWER__BASIC"),
        ("FANOUT_TENANTS", "{bad", "FANOUT_TENANTS is not JSON: write it like FANOUT_TENANTS='{"),
        ("FANOUT_APPROVERS", "alice", """write it like FANOUT_APPROVERS='["alice", "bob"]'."""),
        ("FANOUT_LIMITS__NETWORK", "pypi.org", """it is written like ["pypi.org"]."""),
        ("FANOUT_REDIS_URL", "localhost:6379", "for example redis://localhost:6379/0"),
        ("FANOUT_MODEL", "gemni-2.5-pro", "Did you mean gemini-2.5-pro?"),
    ],
)
def test_a_variable_is_refused_with_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(InvalidSetting, match=re.escape(told)) as refused:
        load_settings()

    assert len(str(refused.value).splitlines()) == 1


def test_variables_of_other_programs_are_let_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = (REPOSITORY / "docker-compose.yml").read_text()
    used = {*re.findall(r"FANOUT_[A-Z_]+", compose), *OF_OTHERS}
    for name in {"FANOUT_RELEASE_NOTES", *used - {*setting_variables(Settings)}}:
        monkeypatch.setenv(name, "1")

    assert used - {*setting_variables(Settings)} <= OF_OTHERS
    assert misspelt(Settings, os.environ) == []
    load_settings()


def test_a_key_of_the_configuration_file_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("FANOUT_CONFIG", str(file))

    for text, told in (
        (
            'log_level = "info"\n\n[sandbox]\nprovidr = "local"\n',
            f"{file}:4). Did you mean FANOUT_S",
        ),
        ('sandbox.provider = "lokal"\n', f"FANOUT_SANDBOX__PROVIDER ({file}:1) is 'lokal', "),
        ('[worker]\n[sandbx]\nprovider = "local"\n', "'sandbx'. Did you mean sandbox?"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidSetting, match=re.escape(told)):
            load_settings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "tools: [ls, serch]",
            ":4: tools.1: there is no built-in tool 'serch'. Did you mean grep?",
        ),
        (
            "tools:\n- ls\n- reed_file",
            ":6: tools.1: there is no built-in tool 'reed_file'. Did you",
        ),
        ("subagents:\n- refactorr", ":5: subagents: there is no agent 'refactorr'. Did you mean r"),
        ("model: gemni", ":4: model: there is no model 'gemni'. Did you mean gemini-…?"),
        ("limits: {timout_seconds: 4}", ":4: unknown key 'limits.timout_seconds'. Did you mean t"),
        ("tols: [ls]", ":4: unknown key 'tols'. Did you mean tools?"),
    ],
)
def test_a_definition_is_refused_with_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"{AGENT}{text}\n")

    with pytest.raises(InvalidAgentDefinition, match=re.escape(f"mine.yaml{told}")):
        load_agent_definitions(tmp_path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"description": " \n"}, "description: it is empty"),
        ({"description": "x", "agent": "refactorr"}, "Did you mean refactorer?"),
        ({"description": "x", "model": "gemni"}, "Did you mean gemini-…?"),
        ({"description": "x", "model": "gpt-5, clade-opus"}, "Did you mean claude-opus?"),
    ],
)
def test_a_job_is_refused_before_anything_is_started(given: dict[str, str], told: str) -> None:
    with pytest.raises(UsageProblem, match=re.escape(told)):
        plan(given, load_agent_definitions(), {})


def test_the_names_that_are_written_down_are_those_that_exist() -> None:
    create_deep_agent("scripted:absent", built_in_tools=BUILT_IN_TOOLS)
    with pytest.raises(ValueError, match="No such built-in tool") as refused:
        create_deep_agent("scripted:absent", built_in_tools=["absent"])
    listed = str(refused.value).partition("There are ")[2].removesuffix(".").split(", ")
    assert {*listed, "edit_file", "multi_edit", "apply_patch"} == set(BUILT_IN_TOOLS)

    for name in ("gemini", "gemni-2", "gpt", "mistral-large", ""):
        with pytest.raises(ModelNotConfigured, match=r"Unknown model|No model"):
            resolve_model(name, agent_name="a")


@pytest.mark.parametrize(
    "name",
    [
        *("gemini-3-pro", "gemma-3-27b-it", "model-optimizer-exp", "claude-x", "gpt-5", "o4-mini"),
        *(
            "openai/x",
            "scripted:x.yaml",
            "Claude:claude-x",
            "projects/p/x",
            "meta.llama-3",
            "a/b,c/d",
        ),
    ],
)
def test_every_kind_of_model_is_let_through(name: str) -> None:
    assert possible_model(name) == name
