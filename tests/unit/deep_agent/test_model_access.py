"""What a model needs is known before it is asked: its package, its key, its address."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from fanout.orchestrator.deep_agent import access_fault
from fanout.orchestrator.deep_agent.models import access
from fanout.orchestrator.deep_agent.models.access import ollama_address

VARIABLES = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_API_BASE", "_HOST", "_CLOUD_PROJECT")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(VARIABLES):
            monkeypatch.delenv(name)


@pytest.fixture
def listening() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gemini-2.5-flash", "GOOGLE_API_KEY"),
        ("claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gpt-5", "OPENAI_API_KEY"),
        ("responses/gpt-5", "OPENAI_API_KEY"),
        ("chat/qwen3", "OPENAI_BASE_URL"),
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("groq/llama", "GROQ_API_KEY"),
        ("together_ai/llama", "TOGETHERAI_API_KEY"),
    ],
)
def test_a_model_without_a_key_is_refused_in_a_sentence_that_names_the_variable(
    name: str, variable: str
) -> None:
    fault = access_fault(name)
    assert fault is not None
    assert f"needs {variable}" in fault
    assert fault.endswith(" in the environment.")


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("gemini-2.5-flash", "GEMINI_API_KEY"),
        ("gemini/gemini-2.5-flash", "GOOGLE_API_KEY"),
        ("claude-sonnet-4-5", "ANTHROPIC_AUTH_TOKEN"),
        ("together_ai/llama", "TOGETHER_API_KEY"),
        ("perplexity/sonar", "PERPLEXITY_API_KEY"),
    ],
)
def test_each_variable_that_a_services_own_tools_read_is_a_key(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert access_fault(name)
    monkeypatch.setenv(variable, "some-key")
    assert access_fault(name) is None


@pytest.mark.parametrize(
    "name",
    ["bedrock/x", "vertex_ai/x", "azure/x", "lm_studio/x", "hosted_vllm/x", "acme/x", "projects/x"],
)
def test_a_provider_that_has_other_credentials_or_none_is_not_refused(name: str) -> None:
    assert access_fault(name) is None


@pytest.mark.parametrize(
    ("name", "variable", "address"),
    [
        ("chat/qwen3", "OPENAI_BASE_URL", "http://127.0.0.1:{}/v1"),
        ("chat/qwen3", "OPENAI_API_BASE", "http://localhost:{}/v1/"),
        ("gpt-5", "OPENAI_BASE_URL", "http://127.0.0.1:{}"),
        ("openai/qwen3", "OPENAI_API_BASE", "http://127.0.0.1:{}/v1"),
        ("claude-x", "ANTHROPIC_BASE_URL", "http://127.0.0.1:{}"),
        ("gemini-x", "GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:{}"),
        ("ollama/qwen3:8b", "OLLAMA_HOST", "127.0.0.1:{}"),
        ("ollama_chat/qwen3", "OLLAMA_HOST", "0.0.0.0:{}"),
        ("ollama_chat/qwen3", "OLLAMA_API_BASE", "http://127.0.0.1:{}"),
    ],
)
def test_a_server_on_this_machine_needs_no_key_and_has_to_listen(
    name: str,
    variable: str,
    address: str,
    listening: int,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, address.format(listening))
    assert access_fault(name) is None
    monkeypatch.setenv(variable, address.format(closed_port))
    fault = access_fault(name)
    assert fault is not None
    assert "no server listens at http://" in fault
    assert str(closed_port) in fault
    assert variable in fault


@pytest.mark.parametrize("address", ["localhost:8080", "8080", "ftp://host/v1", "http://[::1"])
def test_an_address_that_is_none_is_named_with_its_variable(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    fault = access_fault("chat/qwen3")
    assert fault is not None
    assert "OPENAI_BASE_URL has to begin with http://" in fault


def test_a_server_elsewhere_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example.invalid/v1")
    assert access_fault("chat/qwen3") is None


def test_the_services_own_address_still_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    assert "OPENAI_API_KEY" in (access_fault("gpt-5") or "")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),  # noqa: S104 - where it listens
        (":8080", "http://127.0.0.1:8080"),
        ("gpu", "http://gpu:11434"),
        ("gpu:80", "http://gpu:80"),
        ("https://gpu", "https://gpu:443"),
        ("http://gpu", "http://gpu:80"),
        ("http://gpu:9000/ollama/", "http://gpu:9000/ollama"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:9000", "http://[::1]:9000"),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(host: str, address: str) -> None:
    assert ollama_address(host) == address


def test_the_models_of_a_package_that_is_missing_are_refused_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "find_spec", lambda name: name != "litellm" or None)
    assert "pip install 'fanout-orchestrator[litellm]'" in (access_fault("groq/x") or "")
    monkeypatch.setenv("OPENAI_API_KEY", "some-key")
    assert access_fault("openai/x") is None  # OpenAI's own client has it, too


def test_the_keys_of_litellms_providers_are_those_that_it_reads() -> None:
    litellm = pytest.importorskip("litellm")
    for provider, variables in access._LITELLM_KEYS.items():
        needed = litellm.validate_environment(f"{provider}/x")
        assert set(needed["missing_keys"]) <= set(variables), provider
        assert litellm.get_llm_provider(f"{provider}/x")[1] == provider
