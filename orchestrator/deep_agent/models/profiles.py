"""What an agent gets because of its model: the tools that change files, and a part of its prompt.

The table is data: a model that is not in it gets the default, which is the same for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from fanout.orchestrator.deep_agent.prompts import PATCHING, SEVERAL_EDITS

EditTool = Literal["edit_file", "multi_edit", "apply_patch"]
"""A tool that changes existing files."""

EDIT_TOOLS: tuple[EditTool, ...] = get_args(EditTool)


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
"""By the beginning of the model's name, without its provider. OpenAI trains its models on
apply_patch from GPT-4.1 on."""


def profile_of(model: str) -> ModelProfile:
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


def edit_tools_for(
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
