"""A policy about one tool holds for the others that do the same.

Which tools an agent changes files with depends on its model; what a person approves must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanout.orchestrator.approvals import Decision

COVERED_BY: Mapping[str, tuple[str, ...]] = {
    "multi_edit": ("multi_edit", "edit_file"),
    "apply_patch": ("apply_patch", "edit_file", "write_file", "delete_file"),
}
"""For a tool, those whose policies hold for it; for all others only its own."""

_OVERWRITING = ("write_file", "edit_file")
"""For write_file when it overwrites."""

KNOWN = frozenset({"edit_file", "write_file", "delete_file", *COVERED_BY})
"""Names that a policy may have although an agent has other tools in their place."""


def decisions_for(
    policy: Mapping[str, tuple[Decision, ...]], tool: str, args: Mapping[str, Any]
) -> tuple[Decision, ...] | None:
    """Return the decisions that a person is offered about a call; None if it is not guarded.

    Args:
        policy: The agent's.
        tool: The tool's name.
        args: The call's arguments.
    """
    names = COVERED_BY.get(tool, (tool,))
    if tool == "write_file" and args.get("overwrite"):
        names = _OVERWRITING
    found = [policy[name] for name in names if name in policy]
    if not found:
        return None
    return tuple(each for each in found[0] if all(each in other for other in found)) or ("reject",)
