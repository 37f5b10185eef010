"""The vocabulary of approvals, common to both kernels: decisions, policies, requests, answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from .valid_models import ValidTextModel

Decision = Literal["approve", "edit", "reject", "respond"]
"""A person's decision about a call: run it, run it with other arguments, do not run it, or use the
person's text as its result."""

DECISIONS: tuple[Decision, ...] = get_args(Decision)
DEFAULT_DECISIONS: tuple[Decision, ...] = ("approve", "edit", "reject")
"""The decisions that `True` offers. `respond` replaces the tool's result with a person's text, so a
policy has to name it."""

InterruptOn = Mapping[
    str, bool | Annotated[Sequence[Decision], Field(min_length=1), AfterValidator(tuple)]
]
"""An approval policy: tool name, matched exactly -> whether a person is asked before the tool runs,
or which decisions are offered."""


class ApprovalRequest(ValidTextModel):
    """A tool call that needs a person's decision."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    agent: str
    call_id: str
    tool: str
    arguments: dict[str, JsonValue]
    decisions: tuple[Decision, ...] = Field(min_length=1)
    """The decisions that the policy allows."""
    sha256: str
    """The fingerprint of the tool and its complete arguments: an answer is valid for them only."""
    hint: str = ""
    """Why the request is repeated; empty the first time."""


class ApprovalAnswer(ValidTextModel):
    """A person's answer to one request."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    decision: Decision
    arguments: dict[str, JsonValue] | None = None
    """The complete arguments with which the call runs, for `edit`."""
    response: JsonValue = None
    """The text or object that the agent gets as the tool's result, for `respond`."""
    message: str = ""
    """A remark for the agent."""
    by: str = ""
    """Who answered: the ledger sets it to what Redis knows of the caller."""
    person: str | None = None
    """The person whose decision the service forwarded; None for a direct answer."""

    @model_validator(mode="after")
    def _is_complete(self) -> ApprovalAnswer:
        if (self.decision == "edit") != (self.arguments is not None):
            raise ValueError("edit needs arguments, and no other decision allows them")
        if (self.decision == "respond") != (self.response is not None):
            raise ValueError("respond needs a response, and no other decision allows one")
        return self


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of a call: of its tool and arguments as canonical JSON.

    Args:
        tool: The tool's name.
        arguments: All arguments of the call.
    """
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()


def parse_policy(interrupt_on: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """Return the allowed decisions by tool; a tool with False is left out.

    Raises:
        ValueError: A value is neither a bool nor a list of decisions, or the list is empty.
    """
    policy: dict[str, tuple[Decision, ...]] = {}
    for tool, value in interrupt_on.items():
        try:
            parsed = _VALUE.validate_python(value)
        except ValidationError:
            raise ValueError(
                f"interrupt_on for {tool!r} must be true, false or a list out of "
                f"{', '.join(DECISIONS)}."
            ) from None
        named = DEFAULT_DECISIONS if parsed is True else parsed or ()
        if named:
            policy[tool] = tuple(decision for decision in DECISIONS if decision in named)
    return policy


_VALUE: TypeAdapter[bool | tuple[Decision, ...]] = TypeAdapter(
    Annotated[bool, Field(strict=True)] | Annotated[tuple[Decision, ...], Field(min_length=1)],
    config=ConfigDict(defer_build=True),
)


def merge_policies(parent: InterruptOn, child: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """Return a policy that is as strict as both: the tools of either, with the common decisions.

    Two lists without a common decision leave `reject`: neither policy may widen the other.

    Args:
        parent: The policy of the agent that delegates.
        child: The policy of the agent that is called.

    Raises:
        ValueError: A policy is invalid; see `parse_policy`.
    """
    first, second = parse_policy(parent), parse_policy(child)
    merged = first | second
    for tool in first.keys() & second.keys():
        both = tuple(decision for decision in first[tool] if decision in second[tool])
        merged[tool] = both or ("reject",)
    return merged


def delegation_policy(
    policy: InterruptOn, agents: Collection[str] = ()
) -> dict[str, tuple[Decision, ...]]:
    """Return a policy that applies its rule for `task` to `tasks` and `start_task`.

    It does so if the policy names neither. They do the same, so a rule for one is meant for all.

    Args:
        policy: The policy of an agent that delegates.
        agents: The names of its tools that delegate to one agent each.

    Raises:
        ValueError: The policy is invalid; see `parse_policy`.
    """
    known = parse_policy(policy)
    guards = [known[name] for name in ("task", *agents) if name in known]
    if not guards:
        return {}
    both = tuple(decision for decision in guards[0] if all(decision in one for one in guards))
    return {name: both or ("reject",) for name in ("tasks", "start_task") if name not in policy}
