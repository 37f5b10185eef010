"""`JobAgent`: an ADK agent whose messages are jobs, for `adk web`, `adk run` and one's own agents.

It keeps nothing but the id of its job, in the session's state. The job goes on when the reader of
its events leaves, and the next message of the session continues it.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event, EventActions
from google.genai import types
from pydantic import PrivateAttr

from fanout.orchestrator.approvals import ApprovalRequest
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import COORDINATOR
from fanout.orchestrator.deep_agent import (
    PendingApproval,
    agent_identifier,
    answer_in,
    confirmation_answers,
)
from fanout.orchestrator.jobs.approvals import approval_id
from fanout.orchestrator.jobs.failures import ApprovalRefused, JobFailure
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import BEGINNING, EventType, JournalEvent

PROGRESS_AUTHOR = "task"


class JobAgent(BaseAgent):
    """An agent that submits each message as a job and yields the events of the job's journal.

    The first message of a session starts from a copy of the workspace; what a job has changed is
    merged into the workspace when it has succeeded. A message while the job still runs is sent to
    its agent; one after its end continues it.
    """

    _client: JobClient = PrivateAttr()
    _workspace: Path | None = PrivateAttr()
    _job: dict[str, Any] = PrivateAttr()

    def __init__(
        self,
        client: JobClient,
        *,
        agent: str = COORDINATOR,
        workspace: Path | None = None,
        name: str | None = None,
        **fields: Any,
    ) -> None:
        """Make the agent.

        Args:
            client: Submits the jobs.
            agent: The name of the definition that does the work.
            workspace: The folder that it works on; None: an empty workspace, and nothing is merged.
            name: The agent's name in ADK; by default that of the definition.
            fields: Further fields of the jobs' specifications, such as `verify` or `limits`.

        Raises:
            UnknownAgent: No definition has that name.
        """
        definition = client.definitions[agent]
        super().__init__(name=name or agent_identifier(agent), description=definition.description)
        self._client = client
        self._workspace = workspace
        self._job = {"agent": agent, **fields}

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event]:
        """Submit, continue or tell a job, and yield what it does until it ends or asks a person."""
        key = f"fanout_job:{self.name}"
        agents: dict[str, str] = {}
        known: dict[str, str] = dict(ctx.session.state.get(key) or {})
        try:
            job_id, after = await self._begin(ctx, known)
            yield self._event(ctx, actions=_state(key, job_id, after))
            async for entry in self._client.events(job_id, after):
                after = entry.id
                async for event in self._shown(ctx, entry, agents):
                    yield event
                if await self._waits_for_a_person(entry):
                    break
            yield self._event(ctx, actions=_state(key, job_id, after))
            result = await self._client.result(job_id)
            if result is not None:
                async for event in self._end(ctx, result):
                    yield event
        except JobFailure as failure:
            yield self._event(ctx, error_code=type(failure).__name__, error_message=str(failure))

    async def _begin(self, ctx: InvocationContext, known: dict[str, str]) -> tuple[str, str]:
        """Act on the message; return the job and the entry of its journal after which to go on."""
        message = ctx.user_content
        text = "\n".join(part.text for part in (message and message.parts) or () if part.text)
        if "job" not in known:
            spec = JobSpec.model_validate({**self._job, "description": text or "Go on."})
            return await self._client.submit(spec, workspace=self._workspace), BEGINNING
        job_id = known["job"]
        await self._answer(ctx, job_id)
        if await self._client.result(job_id) is not None:
            given = {**self._job, "description": text or "Go on.", "continues": job_id}
            return await self._client.submit(JobSpec.model_validate(given)), BEGINNING
        if text:
            await self._client.send(job_id, text)
        return job_id, known.get("after", BEGINNING)

    async def _answer(self, ctx: InvocationContext, job_id: str) -> None:
        """Pass on a person's answers to the confirmations that ADK's front ends have asked for."""
        given = confirmation_answers(Event(author="user", content=ctx.user_content))
        waiting = {approval.id: approval for approval in await self._client.approvals()}
        for response in given:
            confirmation_id = str(response.id)
            approval = waiting.get(approval_id(job_id, confirmation_id))
            if approval is None:
                raise ApprovalRefused("The approval is not open any more.")
            request = approval.model_dump(include=set(ApprovalRequest.model_fields))
            pending = PendingApproval(confirmation_id=confirmation_id, **request)
            answer = answer_in(response.response, pending)
            if isinstance(answer, str):
                raise ApprovalRefused(f"The answer does not count: {answer}.")
            await self._client.answer(
                approval.id,
                answer.decision,
                arguments=answer.arguments,
                response=answer.response,
                message=answer.message,
            )

    async def _shown(
        self, ctx: InvocationContext, entry: JournalEvent, agents: dict[str, str]
    ) -> AsyncGenerator[Event]:
        """Yield what a person sees of an entry: the agent's own event, or a line of progress.

        Args:
            ctx: The invocation.
            entry: The entry.
            agents: The agents of the job's children by id, which grows.
        """
        if entry.type is EventType.CHILD_SUBMITTED:
            agents[str(entry.data["id"])] = str(entry.data["agent"])
        if entry.type in {EventType.CHILD_SUBMITTED, EventType.CHILD_FINISHED}:
            yield self._progress(ctx, entry, agents)
        raw = await self._client.session_event(entry)
        made = None if raw is None else Event.model_validate_json(raw)
        if made is not None and made.author != "user" and made.content is not None:
            yield self._event(
                ctx,
                content=made.content,
                long_running_tool_ids=made.long_running_tool_ids,
                usage_metadata=made.usage_metadata,
                model_version=made.model_version,
                error_code=made.error_code,
                error_message=made.error_message,
                custom_metadata={"job_id": entry.job_id, "event_id": entry.id},
            )

    def _progress(
        self, ctx: InvocationContext, entry: JournalEvent, agents: dict[str, str]
    ) -> Event:
        child = str(entry.data["id"])
        line = f"{agents.get(child, 'task')} {entry.data.get('state', JobState.QUEUED)}\n"
        event = self._event(
            ctx,
            partial=True,
            content=types.Content(role="model", parts=[types.Part(text=line)]),
            custom_metadata={"job_id": child, "type": str(entry.type), "event_id": entry.id},
        )
        event.author = PROGRESS_AUTHOR
        return event

    async def _waits_for_a_person(self, entry: JournalEvent) -> bool:
        if entry.type is not EventType.JOB_STATE or entry.data["state"] != JobState.WAITING:
            return False
        return bool((await self._client.get(entry.job_id)).approvals)

    async def _end(self, ctx: InvocationContext, result: JobResult) -> AsyncGenerator[Event]:
        """Merge what the job has changed, and yield what went wrong."""
        if result.error is not None:
            yield self._event(ctx, error_code=result.error.type, error_message=result.error.message)
            return
        if self._workspace is None or result.changes is None:
            return
        merged = await self._client.merge(result, self._workspace)
        kinds = (merged.conflicts, merged.held_back, merged.failed) if merged else ()
        left = [f"- {one.path}: {one.reason}" for kind in kinds for one in kind]
        if left:
            named = "\n".join(left)
            text = f"Not merged (fanout apply {result.job_id}):\n{named}"
            yield self._event(
                ctx, content=types.Content(role="model", parts=[types.Part(text=text)])
            )

    def _event(self, ctx: InvocationContext, **fields: Any) -> Event:
        return Event(author=self.name, invocation_id=ctx.invocation_id, branch=ctx.branch, **fields)


def _state(key: str, job_id: str, after: str) -> EventActions:
    return EventActions(state_delta={key: {"job": job_id, "after": after}})
