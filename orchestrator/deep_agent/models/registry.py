"""Models of ADK's registry that have no client of ours: Gemma, Vertex AI, Apigee, a program's own.

The registry maps patterns of names to classes. A name may also begin with a class, such as
`Claude:claude-sonnet-4-5`.
"""

from __future__ import annotations

import re

from google.adk.models.base_llm import BaseLlm
from google.adk.models.registry import LLMRegistry

from fanout.orchestrator.deep_agent.adk_private_names import (
    is_registered_as,
    registered_models,
)
from fanout.orchestrator.deep_agent.failures import ModelNotConfigured


def class_name_of(name: str) -> str | None:
    """Return the name of the class that the registry has for a model; None if it has none.

    Unlike the registry itself it does not load LiteLLM, which takes seconds, to look for more.
    """
    entries = registered_models()
    if prefixed := _class_in(name):
        return prefixed
    found = next((entry for regex, entry in entries.items() if re.fullmatch(regex, name)), None)
    return None if found is None else _name_of(found)


def without_class(name: str) -> str:
    """Return a model's name without the class before its colon."""
    return name.partition(":")[2] if _class_in(name) else name


def made(name: str) -> BaseLlm:
    """Create a model as ADK does.

    Raises:
        ModelNotConfigured: Its package or a variable of the environment is missing.
    """
    try:
        return LLMRegistry.new_llm(name)
    except (ImportError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ModelNotConfigured(f"{name} cannot be used: {why}") from error


def _class_in(name: str) -> str | None:
    """Return the registered class that stands before a name's colon, however it is written."""
    prefix, colon, _ = name.partition(":")
    if not colon:
        return None
    classes = map(_name_of, registered_models().values())
    return next((each for each in classes if is_registered_as(prefix, each)), None)


def _name_of(entry: type[BaseLlm] | tuple[str, str]) -> str:
    return entry[1] if isinstance(entry, tuple) else entry.__name__
