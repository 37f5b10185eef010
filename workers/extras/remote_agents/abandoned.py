"""Cancels the tasks of remote agents whose jobs were cancelled while no worker ran them.

Such a job waited for a person, or for its next attempt. Every worker hears of it, and each asks the
agent to stop: a second request changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from google.adk.events import Event

from fanout.orchestrator import extras
from fanout.orchestrator.configuration.agent_definitions import RemoteAgentDefinition
from fanout.orchestrator.jobs.conversation import event_json
from fanout.orchestrator.jobs.failures import JobFailure

from ...agent.history import History
from ...agent.services import JobServices
from .conversation import RemoteConversation

if TYPE_CHECKING:
    from a2a.types import AgentCard

ABANDON_SECONDS = 1.0
"""The time for informing an agent that its task is cancelled: a cancelled job ends within two
seconds."""

log = structlog.get_logger(__name__)


async def cancel_task(
    remote: RemoteAgentDefinition,
    services: JobServices,
    conversation: RemoteConversation,
    card: AgentCard | None = None,
) -> None:
    """Inform an agent that its task is cancelled; a failure is logged.

    Args:
        remote: The agent.
        services: What all jobs of this worker share.
        conversation: The job's conversation, which names the task.
        card: The agent's card, if it is known.
    """
    if not conversation.task:
        return
    try:
        async with (
            asyncio.timeout(ABANDON_SECONDS),
            extras.connect_agent(remote, services.secrets, card) as connection,
        ):
            await connection.cancel(conversation.task)
    except (JobFailure, TimeoutError) as error:
        log.warning("remote task not cancelled", error=type(error).__name__)


class AbandonedTasks:
    """Cancels the remote tasks of cancelled jobs in the background.

    Args:
        services: What all jobs of this worker share.
    """

    def __init__(self, services: JobServices) -> None:
        self._services = services
        self._running: set[asyncio.Task[None]] = set()

    def begin_cancel(self, job_id: str) -> None:
        """Begin to cancel the remote task of a job, if it has one and does not run."""
        task = asyncio.create_task(self._cancel_of(job_id))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _cancel_of(self, job_id: str) -> None:
        services = self._services
        try:
            record = await services.ledger.get(job_id)
            definition = services.definitions.get(record.agent)
            if definition is None or definition.a2a is None or not record.state.is_terminal:
                return  # the worker that runs it cancels its task
            history = History(events=await self._events(job_id))
        except (JobFailure, ValueError) as error:
            log.warning("remote task not cancelled", job=job_id, error=type(error).__name__)
            return
        conversation = RemoteConversation(definition.name, job_id, history)
        await cancel_task(definition.a2a, services, conversation)

    async def _events(self, job_id: str) -> list[Event]:
        """Return the agent's events in a job's journal.

        Raises:
            JobFailure: One cannot be read.
            ValueError: One is not of a form that this release knows.
        """
        journal, blobs = self._services.journal, self._services.blobs
        entries = await journal.read(job_id)
        stored = [await event_json(entry, journal, blobs.get) for entry in entries]
        return [Event.model_validate_json(raw) for raw in stored if raw is not None]
