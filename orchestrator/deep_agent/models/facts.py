"""What is known of each model: its window and prices, its media, its edit tools and prompt.

Windows and prices come from the table in the package `genai-prices`; nothing is fetched. A model
without a profile gets the default one, which is the same for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from ..prompts import PATCHING, SEVERAL_EDITS

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

    from .tokens import ModelUsage


WINDOWS_NOT_IN_THE_TABLE = {
    "gemini-2.5-pro": 1_048_576,
    "gemini-3-pro-preview": 1_048_576,
    "gemini-3.1-pro-preview": 1_048_576,
}
"""The windows in tokens, by the table's model ids; the input token limit on Google's page of each
model."""

PROVIDERS = {
    "gemini-": "google",
    "claude-": "anthropic",
    "gpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
}
"""The provider of a model that is named without one, by the beginning of its name."""


_IMAGES = ("image/",)

INLINE_MEDIA = {
    "google": (*_IMAGES, "application/pdf", "audio/", "video/"),
    "anthropic": (*_IMAGES, "application/pdf"),
}
"""What a provider's models take as inline data besides text; any other's take images. By each
provider's page on media types, and as far as ADK's class for it converts them."""

EditTool = Literal["edit_file", "multi_edit", "apply_patch"]
"""A tool that changes existing files."""

EDIT_TOOLS: tuple[EditTool, ...] = get_args(EditTool)


def takes_inline(model: str, media_type: str) -> bool:
    """Return whether a model takes files of a type in a request.

    Args:
        model: A name as for `resolve_model`; of a list, all of them must.
        media_type: Such as `application/pdf`.
    """
    return all(
        media_type.startswith(INLINE_MEDIA.get(_own_provider(name.strip()), _IMAGES))
        for name in model.split(",")
    )


def _own_provider(model: str) -> str:
    """Return the provider whose own API a model is called by; empty for others."""
    name = model.rpartition("/")[2] if model.startswith("projects/") else model
    return next((known for begin, known in PROVIDERS.items() if name.startswith(begin)), "")


def context_window(model: str) -> int | None:
    """Return how many tokens a request to a model and its reply may have; None if unknown.

    Args:
        model: A name as for `resolve_model`; of a list, the first.
    """
    found = _find(_first(model))
    if found is None:
        return None
    _, facts = found
    return facts.context_window or WINDOWS_NOT_IN_THE_TABLE.get(facts.id)


def price(model: str, usage: ModelUsage) -> float | None:
    """Return what these tokens cost in US dollars, at list price; None if the price is unknown."""
    found = _find(_first(model))
    if found is None:
        return None
    from genai_prices import Usage  # noqa: PLC0415 - see _find

    provider, facts = found
    tokens = Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=min(usage.cached_tokens, usage.input_tokens),
        output_tokens=usage.output_tokens,
    )
    return float(facts.calc_price(tokens, provider).total_price)


def _first(model: str) -> str:
    return model.partition(",")[0].strip()


def _bare(model: str) -> str:
    """Return a name without what only says by which way the model is reached."""
    if model.startswith(("projects/", "apigee/")):
        return model.rpartition("/")[2]
    _, _, last = model.partition(":")
    by_class = last.startswith(tuple(PROVIDERS))  # Gemini:gemini-2.5-flash
    return last if by_class else model.removeprefix("responses/").removeprefix("chat/")


@lru_cache(maxsize=256)
def _find(model: str) -> tuple[Provider, ModelInfo] | None:
    """Return the table's entry for a model; the first call takes 45 ms to load the table."""
    provider_id, slash, name = _bare(model).partition("/")
    if not slash:
        name = provider_id
        provider_id = next(
            (known for begin, known in PROVIDERS.items() if name.startswith(begin)), ""
        )
    if not provider_id or model.startswith("scripted:"):
        return None
    from genai_prices.data_snapshot import find_provider_by_id, get_snapshot  # noqa: PLC0415 - 1.6 MB of data

    snapshot = get_snapshot()
    provider = find_provider_by_id(snapshot.providers, provider_id)
    facts = (
        provider.find_model(name.lower(), all_providers=snapshot.providers) if provider else None
    )
    return (provider, facts) if provider and facts else None


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """What an agent with a model gets."""

    edit_tools: tuple[EditTool, ...] = ("edit_file",)
    """The tools that change existing files, in the place of edit_file."""
    instruction: str = ""
    """Added to the system instruction."""


DEFAULT_PROFILE = ModelProfile()

_PATCHES = ModelProfile(edit_tools=("apply_patch",), instruction=PATCHING)
_SEVERAL = ModelProfile(edit_tools=("edit_file", "multi_edit"), instruction=SEVERAL_EDITS)

PROFILES: Mapping[str, ModelProfile] = {
    "claude-": _SEVERAL,
    "codex-": _PATCHES,
    "gpt-4.1": _PATCHES,
    "gpt-5": _PATCHES,
    "gpt-6": _PATCHES,
    "o3": _PATCHES,
    "o4": _PATCHES,
}
"""The profiles by the beginning of the model's name, without its provider. OpenAI trains its models
on apply_patch from GPT-4.1 on."""


def find_profile(model: str) -> ModelProfile:
    """Return the profile of a model.

    Args:
        model: A name as for `resolve_model`; of a list, the first.
    """
    name = model.partition(",")[0].strip().lower()
    if name.startswith("scripted:"):
        return DEFAULT_PROFILE
    name = name.rpartition("/")[2]
    found = (profile for begin, profile in PROFILES.items() if name.startswith(begin))
    return next(found, DEFAULT_PROFILE)


def choose_edit_tools(
    profile: ModelProfile, built_in_tools: Collection[str] | None
) -> tuple[EditTool, ...]:
    """Return the tools with which an agent changes existing files.

    `edit_file` in a choice means that the agent may edit, with the tools of its model. A patch can
    create and delete files, so apply_patch takes its place only where the agent may do that too.

    Args:
        profile: The model's.
        built_in_tools: The names of the chosen tools; None for all.
    """
    if built_in_tools is None:
        return profile.edit_tools
    named = set(built_in_tools).intersection(EDIT_TOOLS)
    if "edit_file" in named:
        may_patch = {"write_file", "delete_file"}.issubset(built_in_tools)
        own = {tool for tool in profile.edit_tools if tool != "apply_patch" or may_patch}
        named = (named - {"edit_file"}) | (own or {"edit_file"})
    return tuple(tool for tool in EDIT_TOOLS if tool in named)
