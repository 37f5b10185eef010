"""A caller names a model that makes a worker ask an address, or read a file, of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    load_agent_definition,
)
from fanout.orchestrator.configuration.known_names import possible_model
from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.deep_agent import ModelNotConfigured, resolve_model
from fanout.orchestrator.deep_agent.failures import ScriptFailed
from fanout.orchestrator.deep_agent.models.scripted_model import MAX_SCRIPT_BYTES, Script
from fanout.orchestrator.regular_files import read_regular_file

ADDRESSES = [
    "oobabooga/http://127.0.0.1:6379",
    "oobabooga/https://user:password@[::1]/x",
    "huggingface/https://169.254.169.254/latest",
    "LiteLlm:oobabooga/http://127.0.0.1",
    "gpt-4/http://127.0.0.1",
    "custom/http:/127.0.0.1/x",
    "custom///127.0.0.1/x",
    "openai//127.0.0.1/x",
    "x/\\\\127.0.0.1\\share",
    "x/http:\\\\127.0.0.1",
    "bedrock/arn:aws:bedrock:user@evil.example",
    "x/@evil.example/y",
    "x/y@127.0.0.1:6379/z",
    "nlp_cloud/../../v2/account",
    "gemini-2.5/../../v1/files",
    "replicate/./predictions",
    "sagemaker/x?y=z",
    "sagemaker/x#y",
    "x/%2e%2e/%2f",
    "x/%68ttp:%2f%2f127.0.0.1",
    "x/y\r\nHost: evil.example",
    "x/y\x00",
    "x/y\u202ez",
    "x/\uff0e\uff0e/y",
    "x y/z",
    "x/\ty",
    "/etc/passwd",
    "x/",
    "x/" + "y" * 10_000,
]
REAL = [
    "gemini-2.5-flash",
    "claude-sonnet-4-5@20250929",
    "ft:gpt-4o-mini:acme::abc123",
    "chat/Qwen/Qwen2.5-7B-Instruct",
    "ollama/hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
    "openrouter/meta-llama/llama-3-8b:free",
    "cloudflare/@cf/meta/llama-3-8b-instruct",
    "bedrock/us-west-2/anthropic.claude-3-5-sonnet-20241022-v2:0",
    "bedrock/arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a1b2",
    "projects/p/locations/us-central1/publishers/google/models/gemini-2.5-flash",
    "vertex_ai/claude-opus-4@default",
    "Claude:claude-sonnet-4-5",
    "scripted:/a folder/script.yaml",
]


def _of_job(name: str, _: Path) -> None:
    possible_model(name)  # which all doors ask through JobClient


def _of_worker(name: str, _: Path) -> None:
    resolve_model(name, agent_name="a", needs_key=False)


def _of_definition(name: str, folder: Path) -> None:
    file = folder / "agent.yaml"
    file.write_text(f"name: a\ndescription: d\ninstruction: i\nmodel: {ascii(name)!s}\n")
    load_agent_definition(file)


@pytest.mark.parametrize("given", [_of_job, _of_worker, _of_definition])
@pytest.mark.parametrize("name", ADDRESSES, ids=range(len(ADDRESSES)))
def test_an_address_is_no_models_name_whoever_gives_it(
    name: str, given: Callable[[str, Path], None], tmp_path: Path
) -> None:
    with pytest.raises((ValueError, ModelNotConfigured, InvalidAgentDefinition)) as refused:
        given(name, tmp_path)

    assert "password" not in str(refused.value)
    if given is not _of_definition:  # YAML itself refuses some
        assert "A model's name" in str(refused.value)
        assert len(str(refused.value)) < 300


def test_an_address_is_no_models_name_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANOUT_MODEL", ADDRESSES[0])

    with pytest.raises(InvalidSetting, match="A model's name has no address in it"):
        load_settings()


@pytest.mark.parametrize("name", REAL)
def test_what_models_are_really_called_is_let_through(name: str) -> None:
    assert possible_model(name) == name


@pytest.fixture
def special(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "long").write_bytes(b"#" * (MAX_SCRIPT_BYTES + 1))
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        *("/dev/ptmx", "/dev/zero", "/dev/tty", "/proc/self/environ", "/proc/kmsg", "/sys/power"),
        *("pipe", "link", "long", "."),
    ],
)
def test_a_script_is_a_regular_file_of_bounded_size(path: str, special: Path) -> None:
    with pytest.raises(ScriptFailed, match=r"it is not a regular|it has more than") as refused:
        Script.load(special / path)

    assert str(special) not in str(refused.value)  # only the base name


def test_a_pipe_that_takes_the_place_of_a_file_meanwhile_is_not_waited_for(
    special: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = Path(__file__).stat()
    monkeypatch.setattr(os, "stat", lambda *_, **__: ordinary)

    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular_file(special / "pipe", MAX_SCRIPT_BYTES)


@pytest.mark.parametrize(
    "text",
    [
        "root:$6$canary:20000:0:99999:7:::\n",
        "canary: [\n",
        "conversations: [{canary: 1, replies: [{text: x}]}]",
        "conversations: [{when: '(canary', replies: [{text: x}]}]",
        "conversations: [{replies: [{blocks_seconds: canary}]}]",
        "conversations: [{replies: [{usage: {input_tokens: -1, canary: 2}}]}]",
        "canary: 2024-99-99\n",
        "!!python/object:canary {}\n",
        "&canary [*canary]\n",
        "? [canary]\n: 1\n",
        "[" * 5000,
    ],
)
def test_the_error_of_a_script_quotes_nothing_of_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shadow"
    file.write_text(text)

    with pytest.raises(ScriptFailed, match="The script shadow") as refused:
        Script.load(file)

    assert "canary" not in str(refused.value)
    assert str(tmp_path) not in str(refused.value)
