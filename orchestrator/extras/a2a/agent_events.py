"""An agent's event as parts and metadata of a message, by ADK's converter.

ADK takes half a second to import, a third of the service's start, and many services never show what
an agent did. So `conversation` imports this module when it is first needed.
"""

from __future__ import annotations

import warnings

from a2a.types import Message, Role, TaskArtifactUpdateEvent
from google.adk.a2a.converters.from_adk_event import convert_event_to_a2a_events
from google.adk.events import Event
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError

from .approval_requests import CONFIRMATION, LONG_RUNNING

INTERNAL_METADATA = ("adk_actions", "adk_custom_metadata", "adk_invocation_id")
"""The metadata in which ADK adds its own state: the harness keeps the agent's plan and files there.
"""


def fill(message: Message, content: str | bytes) -> bool:
    """Add the role, the parts and the metadata of an agent's event.

    Args:
        message: The message to which they are added.
        content: The event, as JSON.

    Returns:
        False if it cannot be read: it is of another release.
    """
    try:
        event = Event.model_validate_json(content)
    except ValidationError:
        return False
    message.role = Role.ROLE_USER if event.author == "user" else Role.ROLE_AGENT
    _add(message, event)
    return True


def _add(message: Message, event: Event) -> None:
    """Add the parts and the metadata of an agent's event.

    The requested confirmation is left out, because the status message asks for it, by the id of the
    approval. A model service's error text is left out too, because it may hold a secret.
    """
    long_running = event.long_running_tool_ids or set()
    if event.content and event.content.parts:
        event.content.parts = [
            one
            for one in event.content.parts
            if CONFIRMATION
            not in (
                one.function_call and one.function_call.name,
                one.function_response and one.function_response.name,
            )
        ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")
        updates = convert_event_to_a2a_events(event, {}, message.task_id, message.context_id)
    for update in updates:
        if isinstance(update, TaskArtifactUpdateEvent):
            message.parts.extend(update.artifact.parts)
            message.metadata.CopyFrom(update.artifact.metadata)
    for name in INTERNAL_METADATA:
        if name in message.metadata:
            del message.metadata[name]
    for part in message.parts:
        if part.HasField("data") and MessageToDict(part.data).get("id") in long_running:
            part.metadata.update({LONG_RUNNING: True})
