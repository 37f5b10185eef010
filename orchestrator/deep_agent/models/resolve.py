"""Models by name, with retries and fallbacks, and a trial of one: a small request.

A name without a client of ours is looked up in ADK's registry (Gemma, Vertex AI, Apigee, a
program's own classes), which maps patterns of names to classes. A name may also begin with a class,
such as `Claude:claude-sonnet-4-5`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.registry import LLMRegistry
from google.genai import types

from ...model_names import SCRIPTED, name_fault
from ..adk_internals import (
    is_registered_prefix,
    registered_models,
)
from ..failures import (
    ModelDenied,
    ModelFailed,
    ModelNotConfigured,
    ModelRefused,
    ModelReplyUnusable,
)
from . import access
from .access import missing_key
from .clients import Preloading
from .facts import PROVIDERS, context_window
from .rate_limiter import RateLimiter
from .retries import (
    DEFAULT_RETRIES,
    ResilientModel,
    RetryPolicy,
)
from .scripted_model import ScriptedModel

KNOWN_NAMES = (
    "gemini-…, claude-…, gpt-…, responses/gpt-…, chat/NAME (any server that speaks OpenAI's "
    "interface, at OPENAI_BASE_URL), ollama/NAME, provider/model (through LiteLLM), "
    "another name of ADK's registry (gemma-…, projects/…, apigee/…, Class:name), scripted:PATH"
)

_loaded: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, int]] = WeakKeyDictionary()
"""What `preload_client` has loaded: the environment at that time, by the model's name."""

TRIAL_SECONDS = 120.0
"""The time for one answer: a local server may load the model first."""

MAX_TRIAL_TOKENS = 256
"""The most tokens of an answer: enough for a call, little enough for a slow machine."""

_STATUSES_OF_REQUESTS = {500, 501}
"""What servers also answer to a request that they do not take: llama.cpp, to tools."""

TOOL = types.FunctionDeclaration(
    name="report_ready",
    description="Reports that you are ready.",
    parameters_json_schema={"type": "object", "properties": {}},
)


def key_variable(name: str) -> str | None:
    """Return the environment variable that holds a model's key; None for a model without one.

    Args:
        name: One name. Of LiteLLM's, `provider/model`, it is the variable that LiteLLM itself reads
            for most providers.
    """
    found = access.find_service(name)
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
        from . import google  # noqa: PLC0415 - large

        return _with_class(google.CheckedGemini, model)
    if kind.__name__ == "LiteLlm":
        from . import litellm  # noqa: PLC0415 - optional

        return litellm.checked(cast("Any", model))
    if kind.__name__ == "AnthropicLlm":
        from . import anthropic  # noqa: PLC0415 - optional

        return _with_class(anthropic.CheckedClaude, model)
    if kind.__name__ in {"OpenAILlm", "OpenAIResponsesLlm"}:
        from . import openai  # noqa: PLC0415 - optional

        is_chat = kind.__name__ == "OpenAILlm"
        return _with_class(openai.CheckedChat if is_chat else openai.CheckedResponses, model)
    return model


def _with_class(kind: type[BaseLlm], model: BaseLlm) -> BaseLlm:
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
    if (known := registered_class(name)) is not None:
        maker = _OF_CLASS.get(known)
        return maker(without_class(name)) if maker else made_by_registry(name)
    if "/" in name:
        return _litellm(name)
    raise ModelNotConfigured(f"Unknown model: {name}. A model is one of {KNOWN_NAMES}.")


def _gemini(name: str) -> BaseLlm:
    from .google import Gemini  # noqa: PLC0415 - costs 30 to 200 MB

    return Gemini(model=name)


def _gemma(name: str) -> BaseLlm:
    from .google import Gemma  # noqa: PLC0415 - as above

    return Gemma(model=name)


def _claude(name: str) -> BaseLlm:
    if access.is_claude_on_vertex():
        return made_by_registry(name)  # on Vertex AI, as ADK's registry has it
    _require_package(name)
    from .anthropic import claude  # noqa: PLC0415 - optional

    return claude(name)


def _openai(name: str) -> BaseLlm:
    _require_package(name)
    from . import openai  # noqa: PLC0415 - optional

    if name.startswith(access.RESPONSES):
        return openai.Responses(model=name.removeprefix(access.RESPONSES))
    if name.startswith(access.OLLAMA):
        return openai.Ollama(model=name.removeprefix(access.OLLAMA))
    return openai.ChatCompletions(model=name.removeprefix(access.CHAT))


def _litellm(name: str) -> BaseLlm:
    if not access.uses_litellm(name):
        return _openai(f"{access.CHAT}{name.partition('/')[2]}")
    _require_package(name)
    from . import litellm  # noqa: PLC0415 - optional

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


@dataclass(frozen=True)
class Trial:
    """What became of a request to a model."""

    fault: str = ""
    """Why it did not answer; empty: it did."""
    seconds: float = 0.0
    """How long its answer took."""
    streams: bool = True
    takes_tools: bool = True
    calls_tools: bool = False
    """Whether it called the tool that it was asked to call."""
    refusal: str = ""
    """What the service said when it refused tools, or to stream."""


async def try_model(name: str) -> Trial:
    """Ask a model to call a tool, once; if that is refused, without streaming or without tools.

    Args:
        name: A name as for `resolve_model`.

    Raises:
        ModelNotConfigured: The name is unknown, or its key or package is missing.
    """
    first = await _asked(name, tools=True, stream=True)
    if not isinstance(first, ModelFailed):
        return first
    refusal = _words(first)
    is_about_request = isinstance(first, (ModelRefused, ModelReplyUnusable))
    is_about_request = is_about_request and not isinstance(first, ModelDenied)
    if is_about_request or first.status in _STATUSES_OF_REQUESTS:
        for tools, stream in ((True, False), (False, True), (False, False)):
            again = await _asked(name, tools=tools, stream=stream)
            if isinstance(again, Trial):
                return replace(again, streams=stream, takes_tools=tools, refusal=refusal)
    return Trial(fault=refusal)


async def _asked(name: str, *, tools: bool, stream: bool) -> Trial | ModelFailed:
    model = resolve_model(
        name, agent_name="trial", retries=RetryPolicy(attempts=1, reply_seconds=TRIAL_SECONDS)
    )
    config = types.GenerateContentConfig(
        max_output_tokens=MAX_TRIAL_TOKENS,
        tools=[types.Tool(function_declarations=[TOOL])] if tools else None,
    )
    text = f"Call the tool {TOOL.name}." if tools else "Say that you are ready."
    request = LlmRequest(contents=[types.UserContent(text)], config=config)
    begun = time.monotonic()
    try:
        responses = model.generate_content_async(request, stream=stream)
        replies = [response async for response in responses if not response.partial]
    except ModelFailed as failure:
        return failure
    has_called = any(each.get_function_calls() for each in replies)
    return Trial(seconds=time.monotonic() - begun, calls_tools=has_called)


def _words(failure: ModelFailed) -> str:
    return str(failure).replace(", after all retries", "")


def registered_class(name: str) -> str | None:
    """Return the name of the class that the registry has for a model; None if it has none.

    Unlike the registry itself it does not load LiteLLM, which takes seconds, to look for more.
    """
    entries = registered_models()
    if prefixed := _find_class(name):
        return prefixed
    found = next((entry for regex, entry in entries.items() if re.fullmatch(regex, name)), None)
    return None if found is None else _name_of(found)


def without_class(name: str) -> str:
    """Return a model's name without the class before its colon."""
    return name.partition(":")[2] if _find_class(name) else name


def made_by_registry(name: str) -> BaseLlm:
    """Create a model as ADK does.

    Raises:
        ModelNotConfigured: Its package or a variable of the environment is missing.
    """
    try:
        return LLMRegistry.new_llm(name)
    except (ImportError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ModelNotConfigured(f"{name} cannot be used: {why}") from error


def _find_class(name: str) -> str | None:
    """Return the registered class before a name's colon, in any spelling."""
    prefix, colon, _ = name.partition(":")
    if not colon:
        return None
    classes = map(_name_of, registered_models().values())
    return next((each for each in classes if is_registered_prefix(prefix, each)), None)


def _name_of(entry: type[BaseLlm] | tuple[str, str]) -> str:
    return entry[1] if isinstance(entry, tuple) else entry.__name__
