"""Contexts: chains of jobs, each of which goes on with the conversation and files of another."""

from __future__ import annotations

from a2a.types import Message
from a2a.utils.errors import InvalidParamsError

from fanout.orchestrator.client.job_pages import JobFilter
from fanout.orchestrator.jobs.failures import UnknownJob
from fanout.orchestrator.jobs.state import TERMINAL_STATES, JobRecord
from fanout.orchestrator.server.a2a.received.messages import Place
from fanout.orchestrator.server.a2a.shown.records import CONTEXT_LABEL, context_of
from fanout.orchestrator.server.owned_jobs import OwnedJobs


async def place_of(jobs: OwnedJobs, message: Message, job_id: str, agent: str | None) -> Place:
    """Return where the new task of a message belongs.

    In a known context it goes on with the task that the message refers to, else with the one that
    has ended last; tasks that still run are not waited for, so tasks of one context may run side by
    side. An unknown context begins with this message.

    Args:
        jobs: The caller's jobs.
        message: The message.
        job_id: The id of its task, which names a new context.
        agent: The agent whose card the client uses.

    Raises:
        InvalidParamsError: The message refers to a task of another context, or to one that runs.
        UnknownJob: It refers to no task of the caller.
    """
    if message.reference_task_ids:
        earlier = await jobs.get(message.reference_task_ids[0])
        context = context_of(earlier)
        if message.context_id and message.context_id != context:
            raise InvalidParamsError("The referenced task belongs to another context.")
        if not earlier.state.is_terminal:
            raise InvalidParamsError(
                "The referenced task has not ended: wait for it, or cancel it."
            )
        return Place(context, earlier.id, agent)
    if not message.context_id:
        return Place(job_id, None, agent)
    newest = await _newest_ended(jobs, message.context_id)
    return Place(message.context_id, newest.id if newest else None, agent)


async def _newest_ended(jobs: OwnedJobs, context_id: str) -> JobRecord | None:
    """Return the job of a context that was submitted last of those that have ended."""
    wanted = JobFilter(states=TERMINAL_STATES, labels={CONTEXT_LABEL: context_id}, roots_only=True)
    before: int | None = None
    while True:
        page = await jobs.page(wanted, before, 1)
        if page.records:
            return page.records[0]
        if page.next is None:
            return await _named_by(jobs, context_id)
        before = page.next


async def _named_by(jobs: OwnedJobs, context_id: str) -> JobRecord | None:
    """Return the job whose id is that of the context: one that came through another door."""
    try:
        found = await jobs.get(context_id)
    except UnknownJob:
        return None
    return found if found.state.is_terminal and CONTEXT_LABEL not in found.labels else None
