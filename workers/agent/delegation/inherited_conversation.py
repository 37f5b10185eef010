"""A job's conversation up to one call, for the tasks of the call that inherit it.

It crosses to their workers as a blob, like that of a job that is continued. The blob's id follows
from its content: it is known before the blob is stored, and a repeated call has the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from google.adk.events import Event

from fanout.orchestrator.deep_agent import agent_identifier, inherited_conversation
from fanout.orchestrator.delegation.inherited_conversation import conversation_lines
from fanout.orchestrator.jobs.spec import JobSpec


class CallersConversation:
    """A job's conversation up to a call.

    Args:
        caller: The name of the job's agent.
        events: The conversation, with what the job began with.
        call_id: The id of the call.
    """

    def __init__(self, caller: str, events: Sequence[Event], call_id: str | None) -> None:
        self._caller = caller
        self._events = events
        self._call_id = str(call_id)
        self._lines: dict[str, bytes] = {}

    def lines(self, agent: str) -> bytes:
        """Return it as an agent inherits it, in the form of a specification's `conversation`.

        Raises:
            InvalidJob: It is too large.
        """
        if agent not in self._lines:
            self._lines[agent] = conversation_lines(
                inherited_conversation(
                    self._events,
                    self._call_id,
                    caller=agent_identifier(self._caller),
                    child=agent_identifier(agent),
                )
            )
        return self._lines[agent]

    def given_to(self, child: JobSpec) -> JobSpec:
        """Return a child with its id; one that inherits nothing is returned as it is.

        Raises:
            InvalidJob: It is too large.
        """
        if child.inherit is None:
            return child
        blob_id = hashlib.sha256(self.lines(child.agent)).hexdigest()
        return child.model_copy(update={"conversation": blob_id})
