"""Every name of a model that ADK's registry knows is a model here too."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.models.registry import LLMRegistry

from fanout.orchestrator.deep_agent.failures import ModelDenied, ModelNotConfigured
from fanout.orchestrator.deep_agent.models.facts import context_window
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.models.retries import ResilientModel
from tests.unit.deep_agent.running import Run, script_file

GOOGLE = "projects/p/locations/us-central1/publishers/google/models/gemini-2.5-flash"
ENDPOINT = "projects/p/locations/us-central1/endpoints/123"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "no-secret")
    monkeypatch.setenv("APIGEE_PROXY_URL", "http://127.0.0.1:9")


def only(name: str) -> BaseLlm:
    model = resolve_model(name, agent_name="a")
    assert isinstance(model, ResilientModel)
    (candidate,) = model.candidates
    return candidate


@pytest.mark.parametrize(
    ("name", "kind", "model"),
    [
        ("gemini-2.5-flash", "Gemini", "gemini-2.5-flash"),
        ("gemma-4-31b-it", "Gemini", "gemma-4-31b-it"),
        ("gemma-3-27b-it", "Gemma", "gemma-3-27b-it"),
        ("model-optimizer-exp", "Gemini", "model-optimizer-exp"),
        (GOOGLE, "Gemini", GOOGLE),
        (ENDPOINT, "Gemini", ENDPOINT),
        ("apigee/gemini/v1/gemini-2.5-flash", "ApigeeLlm", "apigee/gemini/v1/gemini-2.5-flash"),
        ("claude-sonnet-4-5", "Claude", "claude-sonnet-4-5"),
        ("gpt-5", "ChatCompletions", "gpt-5"),
        ("o4-mini", "ChatCompletions", "o4-mini"),
        ("openai:gpt-5", "ChatCompletions", "gpt-5"),
        ("gemini:gemini-2.5-pro", "Gemini", "gemini-2.5-pro"),
        ("Claude:claude-sonnet-4-5", "Claude", "claude-sonnet-4-5"),
        ("ollama_chat/llama3:8b", "QuietLiteLlm", "ollama_chat/llama3:8b"),
        ("anthropic/claude-sonnet-4-5", "QuietLiteLlm", "anthropic/claude-sonnet-4-5"),
    ],
)
def test_a_name_of_adks_registry_is_a_model(name: str, kind: str, model: str) -> None:
    found = only(name)
    assert type(found).__name__ == kind
    assert found.model == model


def test_claude_is_served_by_vertex_ai_where_that_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    assert type(only("claude-sonnet-4-5")).__module__.startswith("google.adk")


class Acme(BaseLlm):
    @classmethod
    def supported_models(cls) -> list[str]:
        return [r"acme-.*", r"acme/.*"]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        del llm_request, stream
        yield LlmResponse()


@pytest.mark.parametrize("name", ["acme-1", "acme/large", "acme:anything"])
def test_a_class_that_a_program_registers_is_found(name: str) -> None:
    LLMRegistry.register(Acme)
    assert isinstance(only(name), Acme)


@pytest.mark.parametrize("name", ["mystery", "mystery:1"])
def test_a_name_that_nobody_knows_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(ModelNotConfigured, match="Unknown model") as caught:
        only(name)
    assert "gemma-…" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gemini-2.5-flash", "GOOGLE_API_KEY"),
        ("gemma-3-27b-it", "GOOGLE_API_KEY"),
        ("claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gpt-5", "OPENAI_API_KEY"),
        ("responses/gpt-5", "OPENAI_API_KEY"),
    ],
)
async def test_an_agent_is_made_without_a_key_and_its_first_request_says_which_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    for variable in ("GEMINI_API_KEY", "GOOGLE_CLOUD_PROJECT", key):
        monkeypatch.delenv(variable, raising=False)
    run = Run(name)

    with pytest.raises(ModelDenied, match=f"{name} needs {key} in the environment"):
        await run.to_end()
    with pytest.raises(ModelNotConfigured, match=f"{name} needs {key} in the environment"):
        resolve_model(name, agent_name="a")


async def test_of_several_models_one_without_a_key_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    script = script_file(tmp_path, "conversations: [{replies: [{text: from the other}]}]")

    run = await Run(f"gpt-5,scripted:{script}").to_end()

    assert run.text == "from the other"


def test_what_a_models_class_lacks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(ModelNotConfigured, match="GOOGLE_CLOUD_PROJECT"):
        only("apigee/vertex_ai/gemini-2.5-flash")
    with pytest.raises(ModelNotConfigured, match="cannot be used"):
        only("meta.llama-3")


@pytest.mark.parametrize(
    "name", [GOOGLE, "apigee/gemini/v1/gemini-2.5-flash", "Gemini:gemini-2.5-flash"]
)
def test_a_window_is_known_by_a_full_resource_name(name: str) -> None:
    assert context_window(name) == context_window("gemini-2.5-flash")
