"""The vocabulary of approvals, which both kernels share: decisions, policies, requests, answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

Decision = Literal["approve", "edit", "reject", "respond"]
"""What a person may decide about a call: let it run, run it with other arguments, refuse it, or
answer in its place."""

DECISIONS: tuple[Decision, ...] = get_args(Decision)
DEFAULT_DECISIONS: tuple[Decision, ...] = ("approve", "edit", "reject")
"""The decisions that `True` offers. `respond` replaces the tool's result with a person's text, so a
policy has to name it."""

InterruptOn = Mapping[
    str, bool | Annotated[Sequence[Decision], Field(min_length=1), AfterValidator(tuple)]
]
"""An approval policy: tool name, matched exactly -> whether a person is asked before the tool runs,
or which decisions are offered."""


class ApprovalRequest(BaseModel):
    """A tool call that needs a person's decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str
    call_id: str
    tool: str
    arguments: dict[str, JsonValue]
    decisions: tuple[Decision, ...] = Field(min_length=1)
    """The decisions that the policy allows."""
    sha256: str
    """The fingerprint of the tool and its complete arguments: an answer counts for them only."""
    hint: str = ""
    """Why the question is repeated; empty for the first time."""


class ApprovalAnswer(BaseModel):
    """A person's answer to one request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Decision
    arguments: dict[str, JsonValue] | None = None
    """For `edit`: the complete arguments that the call runs with."""
    response: JsonValue = None
    """For `respond`: the text or object that the agent gets as the tool's result."""
    message: str = ""
    """A remark for the agent."""
    by: str = ""
    """Who answered, as the front end knows them."""

    @model_validator(mode="after")
    def _is_complete(self) -> ApprovalAnswer:
        if (self.decision == "edit") != (self.arguments is not None):
            raise ValueError("arguments go with edit, and edit with arguments")
        if (self.decision == "respond") != (self.response is not None):
            raise ValueError("a response goes with respond, and respond with a response")
        return self


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a call: the tool and its arguments as canonical JSON."""
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()


def parse_policy(interrupt_on: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """Return the decisions by tool; a tool with False is left out.

    Raises:
        ValueError: a value is neither a bool nor a list of decisions, or the list is empty.
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
    Annotated[bool, Field(strict=True)] | Annotated[tuple[Decision, ...], Field(min_length=1)]
)


def merge_policies(parent: InterruptOn, child: InterruptOn) -> dict[str, tuple[Decision, ...]]:
    """Return the stricter of two policies: a tool that either guards, with what both allow.

    Two lists without a common decision leave `reject`: neither policy may widen the other.

    Raises:
        ValueError: see `parse_policy`.
    """
    first, second = parse_policy(parent), parse_policy(child)
    merged = first | second
    for tool in first.keys() & second.keys():
        both = tuple(decision for decision in first[tool] if decision in second[tool])
        merged[tool] = both or ("reject",)
    return merged
