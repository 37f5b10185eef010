"""From a model's name to a model, with retries and fallbacks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from google.adk.models.base_llm import BaseLlm
from google.genai import types

from orchestrator.deep_agent.failures import ModelNotConfigured
from orchestrator.deep_agent.retries import DEFAULT_RETRIES, ResilientModel, RetryPolicy
from orchestrator.deep_agent.scripted_model import ScriptedModel

__all__ = ["ModelNotConfigured", "preload_client", "resolve_model"]

_GEMINI_VARIABLES = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL")

KNOWN_NAMES = "gemini-…, claude-…, gpt-…, provider/model (through LiteLLM), scripted:PATH"


def resolve_model(name: str, *, agent_name: str, retries: RetryPolicy = DEFAULT_RETRIES) -> BaseLlm:
    """The model of that name, or the first that answers of a list such as `gemini-2.5-flash,gpt-5`.

    `agent_name` is for scripted models, whose file is read at the first call. ModelNotConfigured says in one
    sentence what is missing.
    """
    names = [part.strip() for part in name.split(",") if part.strip()]
    if not names:
        raise ModelNotConfigured(f"No model is named. A model is one of {KNOWN_NAMES}.")
    candidates = [_single(part, agent_name) for part in names]
    return ResilientModel(model=candidates[0].model, candidates=candidates, retries=retries)


def preload_client(name: str) -> None:
    """Load what a model's first call would load with requests under way; on the event loop that will use it.

    Blocks, up to seconds. What cannot be loaded says so when it is used.
    """
    with contextlib.suppress(Exception):
        model = resolve_model(name, agent_name="preload")
        for candidate in model.candidates if isinstance(model, ResilientModel) else ():
            getattr(candidate, "api_client", None)  # ADK makes it, one for each loop, when it is looked at


def _single(name: str, agent_name: str) -> BaseLlm:
    if name.startswith("scripted:"):
        path = name.removeprefix("scripted:")
        return ScriptedModel(model=name, script=Path(path), agent_name=agent_name, source=path)
    for prefix, make in _PROVIDERS.items():
        if name.startswith(prefix):
            return make(name)
    if "/" in name:
        return _litellm(name)
    raise ModelNotConfigured(f"Unknown model: {name}. A model is one of {KNOWN_NAMES}.")


def _gemini(name: str) -> BaseLlm:
    if not _is_set(
        "GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"
    ):
        raise ModelNotConfigured(f"{name} needs GOOGLE_API_KEY in the environment.")
    return _shared_gemini(name, *(os.environ.get(variable) for variable in _GEMINI_VARIABLES))


@lru_cache(maxsize=16)
def _shared_gemini(name: str, *environment: str | None) -> BaseLlm:
    """One client for all agents of a process: making one takes 90 ms of the event loop."""
    del environment  # part of the cache's key: the client reads these variables once
    from google.adk.models.google_llm import Gemini  # noqa: PLC0415 - each client costs 30 to 200 MB

    # One attempt: the client's own back-off does not know Retry-After.
    return Gemini(model=name, retry_options=types.HttpRetryOptions(attempts=1))


def _claude(name: str) -> BaseLlm:
    _require(name, package="anthropic", extra="anthropic", key="ANTHROPIC_API_KEY")
    from anthropic import AsyncAnthropic  # noqa: PLC0415 - optional
    from google.adk.models.anthropic_llm import AnthropicLlm  # noqa: PLC0415 - optional

    return AnthropicLlm(model=name, client=AsyncAnthropic(max_retries=0))


def _gpt(name: str) -> BaseLlm:
    _require(name, package="openai", extra="openai", key="OPENAI_API_KEY")
    from google.adk.integrations.openai import OpenAILlm  # noqa: PLC0415 - optional

    return OpenAILlm(model=name)


def _litellm(name: str) -> BaseLlm:
    _require(name, package="litellm", extra="litellm")
    from google.adk.models.lite_llm import LiteLlm  # noqa: PLC0415 - optional, and 5 s at its first call

    return LiteLlm(model=name)


_PROVIDERS: dict[str, Callable[[str], BaseLlm]] = {"gemini-": _gemini, "claude-": _claude, "gpt-": _gpt}


def _require(name: str, *, package: str, extra: str, key: str | None = None) -> None:
    if find_spec(package) is None:
        raise ModelNotConfigured(
            f"{name} needs the package {package}: `pip install -e '.[{extra}]'` in fanout's folder brings it."
        )
    if key and not _is_set(key):
        raise ModelNotConfigured(f"{name} needs {key} in the environment.")


def _is_set(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)
