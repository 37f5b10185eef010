"""The conversation that a task inherits, as it crosses to a worker; who may not have it."""

from __future__ import annotations

from collections.abc import Sequence

from google.adk.events import Event

from ..configuration.agent_definitions import AgentDefinition
from ..jobs.failures import InvalidJob
from ..valid_models import valid_json

MIB = 1024**2
MAX_INHERITED_BYTES = 8 * MIB
"""The largest conversation that a task inherits. A large model's window holds three of text; a
hundred tasks of one agent keep it in their workers' memory."""

INSTEAD = "leave inherit out, and give the task what it needs in context."


def conversation_lines(events: Sequence[Event]) -> bytes:
    """Return a conversation in the form of a specification's `conversation`: JSON lines.

    Raises:
        InvalidJob: It is too large; the text is for the agent.
    """
    lines = b"".join(valid_json(event, exclude_none=True).encode() + b"\n" for event in events)
    if len(lines) > MAX_INHERITED_BYTES:
        raise InvalidJob(
            f"This conversation has more than {MAX_INHERITED_BYTES // MIB} MiB, too much to be "
            f"inherited: {INSTEAD}"
        )
    return lines


def check_heir(definition: AgentDefinition) -> None:
    """Refuse a conversation for an agent of another service, which would see all of it.

    Raises:
        InvalidJob: The text is for the agent.
    """
    if definition.a2a is not None:
        raise InvalidJob(
            f"{definition.name} works at another service, which is given no conversation: {INSTEAD}"
        )
