"""The questions of a coding agent for permission: who decides, and which of its options is taken.

"Always" is never allowed: the next call may be another one. What a person has decided is kept under
the digest of the call, for one use, because the process that asked does not wait for the person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from fanout.orchestrator.approvals import Decision, InterruptOn, fingerprint, parse_policy

from .updates import MAX_ID_CHARACTERS, OTHER, ToolUse, read_call

GUARDED_BY: Mapping[str, frozenset[str]] = {
    "execute": frozenset({"execute"}),
    "edit": frozenset({"apply_patch", "edit_file", "multi_edit", "write_file"}),
    "delete": frozenset({"apply_patch", "delete_file"}),
    "move": frozenset({"apply_patch", "delete_file", "write_file"}),
}
"""The tools of fanout that do what calls of a kind do."""
ALLOWING = ("allow_once",)
"""The kinds of options that allow a call, the best first."""
REJECTING = ("reject_once", "reject_always")
"""Those that reject it."""
MAX_OPTIONS = 20
"""The options of a question that are looked at; ACP has four kinds."""
_OF_ONE_TRY = frozenset({"call_id", "turn_id", "started_at_ms"})
"""Codex's marks of a question, which differ when it asks for the same call again. No other name is
left out, not even one that ends so: an approval is for these very arguments."""


@dataclass(frozen=True)
class PermissionRequest:
    """A call that the agent asks to be allowed."""

    call: ToolUse
    options: tuple[tuple[str, str], ...]
    """The id and the kind of each option."""

    @property
    def kind(self) -> str:
        """The kind of the call."""
        return self.call.kind or OTHER

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """What a person decides by."""
        return {"title": self.call.title or "", **(self.call.arguments or {})}

    @property
    def sha256(self) -> str:
        """The digest of the call: an answer is valid for this one only."""
        same = {name: value for name, value in self.arguments.items() if name not in _OF_ONE_TRY}
        return fingerprint(self.kind, same)

    def outcome(self, *, is_allowed: bool) -> dict[str, Any]:
        """Return the answer: an option of the agent, or, if none is fit, that it is cancelled."""
        wanted = (*ALLOWING, *REJECTING) if is_allowed else REJECTING
        for kind in wanted:
            for option, its_kind in self.options:
                if its_kind == kind:
                    return {"outcome": {"outcome": "selected", "optionId": option}}
        return {"outcome": {"outcome": "cancelled"}}

    @property
    def can_be_allowed(self) -> bool:
        """Whether it offers to allow this call alone."""
        return any(kind in ALLOWING for _, kind in self.options)


def read_question(params: dict[str, Any]) -> PermissionRequest:
    """Return the question in the parameters of a request."""
    raw, offered = params.get("toolCall"), params.get("options")
    listed = offered[:MAX_OPTIONS] if isinstance(offered, list) else []
    options = tuple(
        (str(one.get("optionId", ""))[:MAX_ID_CHARACTERS], str(one.get("kind", "")))
        for one in listed
        if isinstance(one, dict)
    )
    return PermissionRequest(read_call(raw if isinstance(raw, dict) else {}), options)


def guarded_kinds(interrupt_on: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """Return the kinds of calls about which a person decides, each with the decisions."""
    return {
        kind: tuple(one for one in decisions if one in ("approve", "reject"))
        for kind, decisions in parse_policy(interrupt_on).items()
    }


def unguarded(inherited: InterruptOn, own: InterruptOn) -> list[str]:
    """Return the tools that the caller's policy guards, and the agent's definition does not.

    A coding agent asks for what it wants to: only who wrote its definition knows that it asks.

    Args:
        inherited: The policy of the agent that called it.
        own: The policy of its definition.
    """
    asked_for = guarded_kinds(own)
    return sorted(
        tool
        for tool in parse_policy(inherited)
        if any(tool in tools and kind not in asked_for for kind, tools in GUARDED_BY.items())
    )
