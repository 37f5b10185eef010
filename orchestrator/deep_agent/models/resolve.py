"""Models by name, with retries and fallbacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from google.adk.models.base_llm import BaseLlm

from fanout.orchestrator.deep_agent.failures import ModelNotConfigured
from fanout.orchestrator.deep_agent.models import access
from fanout.orchestrator.deep_agent.models.access import missing_key
from fanout.orchestrator.deep_agent.models.clients import Preloading
from fanout.orchestrator.deep_agent.models.facts import PROVIDERS, context_window
from fanout.orchestrator.deep_agent.models.rate_limiter import RateLimiter
from fanout.orchestrator.deep_agent.models.retries import (
    DEFAULT_RETRIES,
    ResilientModel,
    RetryPolicy,
)
from fanout.orchestrator.deep_agent.models.scripted_model import ScriptedModel
from fanout.orchestrator.model_names import SCRIPTED, name_fault

__all__ = ["ModelNotConfigured", "key_variable", "preload_client", "resilient", "resolve_model"]

KNOWN_NAMES = (
    "gemini-…, claude-…, gpt-…, responses/gpt-…, chat/NAME (any server that speaks OpenAI's "
    "interface, at OPENAI_BASE_URL), ollama/NAME, provider/model (through LiteLLM), "
    "another name of ADK's registry (gemma-…, projects/…, apigee/…, Class:name), scripted:PATH"
)

_loaded: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, int]] = WeakKeyDictionary()
"""What `preload_client` has loaded: the environment at that time, by the model's name."""


def key_variable(name: str) -> str | None:
    """Return the environment variable that holds a model's key; None for a model without one.

    Args:
        name: One name. Of LiteLLM's, `provider/model`, it is the variable that LiteLLM itself reads
            for most providers.
    """
    found = access.service_of(name)
    if found is None or found.is_own_server:
        return None
    provider, slash, _ = name.partition("/")
    guessed = f"{provider.upper()}_API_KEY" if slash and access.uses_litellm(name) else None
    return next(iter(found.keys), guessed)


def resolve_model(
    name: str,
    *,
    agent_name: str,
    retries: RetryPolicy = DEFAULT_RETRIES,
    rate_limiter: RateLimiter | None = None,
    max_output_tokens: int | None = None,
    needs_key: bool = True,
) -> BaseLlm:
    """Return the model of a name, or of a list of names such as `gemini-2.5-flash,gpt-5`.

    Args:
        name: One name, or several separated by commas: the first model that replies is used.
        agent_name: The agent whose replies a scripted model gives; its file is read at the first
            call.
        retries: How often and how long to retry.
        rate_limiter: What each request waits for; None for no limits.
        max_output_tokens: The most that a reply may have; None: what the client or the model's
            service allows.
        needs_key: Whether each model's key has to be in the environment now; otherwise a request
            without one is a ModelDenied.

    Raises:
        ModelNotConfigured: A name is unknown, or its key or package is missing.
    """
    names = [part.strip() for part in name.split(",") if part.strip()]
    if not names:
        raise ModelNotConfigured(f"No model is named. A model is one of {KNOWN_NAMES}.")
    candidates = [_single(part, agent_name) for part in names]
    for candidate, part in zip(candidates, names, strict=True):
        if needs_key and (lacking := missing_key(candidate, part)):
            raise ModelNotConfigured(lacking)
    return ResilientModel(
        model=candidates[0].model,
        candidates=candidates,
        retries=retries,
        names=tuple(names),
        rate_limiter=rate_limiter,
        max_output_tokens=max_output_tokens,
    )


def resilient(model: BaseLlm, *, rate_limiter: RateLimiter | None = None) -> BaseLlm:
    """Return a model object of ADK with the same retries and failures as a model of a name.

    One that has them already is returned as it is, and so is a Gemini with `use_interactions_api`,
    which ADK's flow recognises by its class.

    Args:
        model: The object.
        rate_limiter: What each request waits for; None for no limits.
    """
    if isinstance(model, ResilientModel) or getattr(model, "use_interactions_api", False):
        return model
    checked = _checked(model)
    return ResilientModel(model=model.model, candidates=[checked], rate_limiter=rate_limiter)


def _checked(model: BaseLlm) -> BaseLlm:
    """Return a model of one of ADK's own classes with its replies checked as those of ours are.

    The classes are recognised by name: to import them would load what the program has not.
    """
    kind = type(model)
    if not kind.__module__.startswith("google.adk."):
        return model
    if kind.__name__ == "Gemini":
        from fanout.orchestrator.deep_agent.models import google  # noqa: PLC0415 - large

        return _as(google.CheckedGemini, model)
    if kind.__name__ == "LiteLlm":
        from fanout.orchestrator.deep_agent.models import litellm  # noqa: PLC0415 - optional

        return litellm.checked(cast("Any", model))
    if kind.__name__ == "AnthropicLlm":
        from fanout.orchestrator.deep_agent.models import anthropic  # noqa: PLC0415 - optional

        return _as(anthropic.CheckedClaude, model)
    if kind.__name__ in {"OpenAILlm", "OpenAIResponsesLlm"}:
        from fanout.orchestrator.deep_agent.models import openai  # noqa: PLC0415 - optional

        is_chat = kind.__name__ == "OpenAILlm"
        return _as(openai.CheckedChat if is_chat else openai.CheckedResponses, model)
    return model


def _as(kind: type[BaseLlm], model: BaseLlm) -> BaseLlm:
    """Return a model of another class with the same fields."""
    return kind(**{name: getattr(model, name) for name in type(model).model_fields})


async def preload_client(name: str) -> None:
    """Load a model's client library and create the running loop's client, in a thread.

    It takes seconds, which the model's first call would otherwise take on the event loop. Nothing
    is raised: what cannot be loaded fails when it is used. What was loaded with the same
    environment is not loaded again.
    """
    loop, environment = asyncio.get_running_loop(), hash(frozenset(os.environ.items()))
    loaded = _loaded.setdefault(loop, {})
    if loaded.get(name) != environment:
        await asyncio.to_thread(_load, name, loop)
        loaded[name] = environment


def _load(name: str, loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(Exception):
        context_window(name)  # loads the table of windows and prices
        model = resolve_model(name, agent_name="preload")
        for candidate in model.candidates if isinstance(model, ResilientModel) else ():
            if isinstance(candidate, Preloading):
                candidate.preload(loop)


def _single(name: str, agent_name: str) -> BaseLlm:
    if fault := name_fault(name):
        raise ModelNotConfigured(fault)
    if name.startswith(SCRIPTED):
        path = Path(name.removeprefix(SCRIPTED))
        return ScriptedModel(model=name, script=path, agent_name=agent_name, source=path.name)
    if name.startswith((access.RESPONSES, access.CHAT, access.OLLAMA)):
        return _openai(name)
    for prefix, provider in PROVIDERS.items():
        if name.startswith(prefix):
            return _MAKERS[provider](name)
    from fanout.orchestrator.deep_agent.models import registry  # noqa: PLC0415 - it imports clients

    if (known := registry.class_name_of(name)) is not None:
        maker = _OF_CLASS.get(known)
        return maker(registry.without_class(name)) if maker else registry.made(name)
    if "/" in name:
        return _litellm(name)
    raise ModelNotConfigured(f"Unknown model: {name}. A model is one of {KNOWN_NAMES}.")


def _gemini(name: str) -> BaseLlm:
    from fanout.orchestrator.deep_agent.models.google import Gemini  # noqa: PLC0415 - costs 30 to 200 MB

    return Gemini(model=name)


def _gemma(name: str) -> BaseLlm:
    from fanout.orchestrator.deep_agent.models.google import Gemma  # noqa: PLC0415 - as above

    return Gemma(model=name)


def _claude(name: str) -> BaseLlm:
    if access.is_claude_on_vertex():
        from fanout.orchestrator.deep_agent.models import registry  # noqa: PLC0415 - it imports clients

        return registry.made(name)  # on Vertex AI, as ADK's registry has it
    _require_package(name)
    from fanout.orchestrator.deep_agent.models.anthropic import claude  # noqa: PLC0415 - optional

    return claude(name)


def _openai(name: str) -> BaseLlm:
    _require_package(name)
    from fanout.orchestrator.deep_agent.models import openai  # noqa: PLC0415 - optional

    if name.startswith(access.RESPONSES):
        return openai.Responses(model=name.removeprefix(access.RESPONSES))
    if name.startswith(access.OLLAMA):
        return openai.Ollama(model=name.removeprefix(access.OLLAMA))
    return openai.ChatCompletions(model=name.removeprefix(access.CHAT))


def _litellm(name: str) -> BaseLlm:
    if not access.uses_litellm(name):
        return _openai(f"{access.CHAT}{name.partition('/')[2]}")
    _require_package(name)
    from fanout.orchestrator.deep_agent.models import litellm  # noqa: PLC0415 - optional

    if (provider := name.partition("/")[0]) in litellm.UNGUARDED:
        raise ModelNotConfigured(
            f"{provider} of LiteLLM cannot be used: its requests cannot be checked. For a server "
            f"of your own use {access.CHAT}NAME with its address in OPENAI_BASE_URL."
        )
    return litellm.QuietLiteLlm(name)


_MAKERS: dict[str, Callable[[str], BaseLlm]] = {
    "google": _gemini,
    "anthropic": _claude,
    "openai": _openai,
}
"""Create a model, by the provider's id in `PROVIDERS`."""

_OF_CLASS: dict[str, Callable[[str], BaseLlm]] = {
    "Gemini": _gemini,
    "Gemma": _gemma,
    "OpenAILlm": _openai,
    "LiteLlm": _litellm,
}
"""Create a model of a class of ADK's registry for which there is a client of ours."""


def _require_package(name: str) -> None:
    if (fault := access.lacking_package(name)) is not None:
        raise ModelNotConfigured(fault)
