"""`JobAgent`: an ADK agent whose messages are jobs, for `adk web`, `adk run` and one's own agents.

It keeps nothing but the id of its job, in the session's state. The job continues when the reader of
its events leaves, and the next message of the session continues it.

A person sees one line for each job below it. While they run, each change of a job's state is a
line; when a wave of them has ended, they are listed once more, and that list stays in the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event, EventActions
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.genai import types
from pydantic import PrivateAttr

from ..approvals import ApprovalRequest
from ..client import JobClient
from ..configuration.agent_definitions import COORDINATOR
from ..deep_agent import (
    PendingApproval,
    agent_identifier,
    confirmation_answers,
    read_answer,
)
from ..jobs.approvals import Approval, approval_id
from ..jobs.failures import (
    ApprovalRefused,
    InvalidJob,
    JobFailure,
    LedgerUnavailable,
)
from ..jobs.result import JobResult
from ..jobs.spec import JobSpec
from ..jobs.state import JobRecord, JobState
from ..jobs.store.journal import BEGINNING, EventType, JournalEvent
from ..shortening import one_line

LOOK_SECONDS = 1.0
"""Between two looks at the jobs below: a person does not notice a delay of this length."""

TITLE_CHARACTERS = 45
"""The longest labels and description of a job: with agent and state one line of a chat in a
browser."""

REASON_CHARACTERS = 200
"""The longest reason of a job's failure: two such lines."""

_MARKS = {
    JobState.QUEUED: "○",
    JobState.RUNNING: "●",
    JobState.WAITING: "◐",
    JobState.SUCCEEDED: "✓",
}
_FAILED = "✗"
PROGRESS_AUTHOR = "task"

_ABOUT_CHILDREN = {EventType.CHILD_SUBMITTED, EventType.CHILD_FINISHED}

_PASSED_ON = {"tool", "arguments", "decisions", "sha256", "agent"}
"""The fields of an approval in the payload of ADK's request, like `PendingApproval.payload`."""


@dataclass
class _Following:
    """How far one invocation has followed its job."""

    progress: JobProgress
    after: str
    """The last entry of the job's journal that was shown."""
    is_person_asked: bool = False
    asked: str = ""
    """The ids of the approvals of jobs below that the session asks for, separated by spaces."""


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
        known: dict[str, str] = dict(ctx.session.state.get(key) or {})
        try:
            job_id, after = await self._begin(ctx, known)
            yield self._event(ctx, actions=_state(key, job_id, after, known.get("asked", "")))
            following = _Following(JobProgress(self._client, job_id, after), after)
            following.asked = known.get("asked", "")
            async for event in self._follow(ctx, following):
                yield event
            actions = _state(key, job_id, following.after, following.asked)
            yield self._event(ctx, actions=actions)
            result = await self._client.result(job_id)
            if result is not None:
                async for event in self._end(ctx, result):
                    yield event
        except JobFailure as failure:
            yield self._event(ctx, error_code=type(failure).__name__, error_message=str(failure))

    async def _follow(self, ctx: InvocationContext, following: _Following) -> AsyncGenerator[Event]:
        """Yield what the job and those below it do until it ends or a person is asked."""
        progress = following.progress
        async with aclosing(progress.entries()) as entries:
            async for entry in entries:
                seen = self._looked if entry is None else partial(self._read, entry=entry)
                async for event in seen(ctx, following):
                    yield event
                if following.is_person_asked:
                    break
        if listed := progress.ended(all_of_them=True):
            yield self._progress(ctx, listed)

    async def _looked(self, ctx: InvocationContext, following: _Following) -> AsyncGenerator[Event]:
        """Yield how the jobs below have changed, and what they want to ask a person."""
        for job_id, line in await following.progress.changed():
            yield self._progress(ctx, f"{line}\n", job_id=job_id)
        for approval in await following.progress.approvals():
            following.is_person_asked = True
            if approval.id not in following.asked.split():
                following.asked += f" {approval.id}"
                yield self._question(ctx, approval)

    async def _read(
        self, ctx: InvocationContext, following: _Following, *, entry: JournalEvent
    ) -> AsyncGenerator[Event]:
        """Yield what an entry of the job's journal shows."""
        following.after = entry.id
        async for event in self._shown(ctx, entry):
            yield event
        if entry.type in _ABOUT_CHILDREN:
            for job_id, line in await following.progress.changed():
                yield self._progress(ctx, f"{line}\n", job_id=job_id)
            if listed := following.progress.ended():
                yield self._progress(ctx, listed)
        following.is_person_asked = await self._waits_for_a_person(entry)

    async def _begin(self, ctx: InvocationContext, known: dict[str, str]) -> tuple[str, str]:
        """Act on the message; return the job and the entry of its journal after which to go on."""
        message = ctx.user_content
        text = "\n".join(part.text for part in (message and message.parts) or () if part.text)
        if "job" not in known:
            spec = JobSpec.model_validate({**self._job, "description": text or "Go on."})
            return await self._client.submit(spec, workspace=self._workspace), BEGINNING
        job_id = known["job"]
        has_ended = await self._has_ended(job_id)  # first: an answer may end it at once
        await self._answer(ctx, job_id)
        if not has_ended and text:
            try:
                await self._client.send(job_id, text)
            except InvalidJob:
                has_ended = await self._has_ended(job_id)
                if not has_ended:
                    raise
        if not has_ended:
            return job_id, known.get("after", BEGINNING)
        given = {**self._job, "description": text or "Go on.", "continues": job_id}
        return await self._client.submit(JobSpec.model_validate(given)), BEGINNING

    async def _has_ended(self, job_id: str) -> bool:
        return await self._client.result(job_id) is not None

    async def _answer(self, ctx: InvocationContext, job_id: str) -> None:
        """Pass on a person's answers to the confirmations that ADK's front ends have asked for."""
        given = confirmation_answers(Event(author="user", content=ctx.user_content))
        if not given:
            return
        ours = {record.id for record in await self._client.tree(job_id)}
        waiting = {one.id: one for one in await self._client.approvals() if one.job_id in ours}
        for response in given:
            confirmation_id = str(response.id)
            own = waiting.get(approval_id(job_id, confirmation_id))
            approval = own or waiting.get(confirmation_id)  # that of a job below, see `_question`
            if approval is None:
                raise ApprovalRefused("The approval is not open any more.")
            request = approval.model_dump(include=set(ApprovalRequest.model_fields))
            pending = PendingApproval(confirmation_id=confirmation_id, **request)
            answer = read_answer(response.response, pending)
            if isinstance(answer, str):
                raise ApprovalRefused(f"The answer does not count: {answer}.")
            await self._client.answer(
                approval.id,
                answer.decision,
                arguments=answer.arguments,
                response=answer.response,
                message=answer.message,
            )

    async def _shown(self, ctx: InvocationContext, entry: JournalEvent) -> AsyncGenerator[Event]:
        """Yield the agent's own event that an entry holds, if it holds one.

        Args:
            ctx: The invocation.
            entry: The entry.
        """
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

    def _progress(self, ctx: InvocationContext, text: str, *, job_id: str = "") -> Event:
        """Return what is said of one job for the moment, or of all, which the session keeps."""
        event = self._event(
            ctx,
            partial=bool(job_id),
            content=types.Content(role="model", parts=[types.Part(text=text)]),
            custom_metadata={"job_id": job_id} if job_id else None,
        )
        event.author = PROGRESS_AUTHOR
        return event

    def _question(self, ctx: InvocationContext, approval: Approval) -> Event:
        """Return ADK's request for a confirmation of a call of a job below this one."""
        call = {"id": approval.call_id, "name": approval.tool, "args": approval.arguments}
        hint = f"{approval.agent} (job {approval.job_id}) wants to call {approval.tool}."
        payload = approval.model_dump(mode="json", include=_PASSED_ON)
        asked = {"hint": f"{hint} {approval.hint}".strip(), "confirmed": False, "payload": payload}
        part = types.Part(
            function_call=types.FunctionCall(
                id=approval.id,
                name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
                args={"originalFunctionCall": call, "toolConfirmation": asked},
            )
        )
        return self._event(
            ctx,
            content=types.Content(role="model", parts=[part]),
            long_running_tool_ids={approval.id},
            custom_metadata={"job_id": approval.job_id},
        )

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


def _state(key: str, job_id: str, after: str, asked: str) -> EventActions:
    return EventActions(state_delta={key: {"job": job_id, "after": after, "asked": asked.strip()}})


class JobProgress:
    """Follows one job and looks at those below it."""

    def __init__(self, client: JobClient, job_id: str, after: str) -> None:
        """Begin to follow.

        Args:
            client: Reads the ledger.
            job_id: The job.
            after: The entry of its journal up to which somebody has followed it.
        """
        self._client = client
        self._job_id = job_id
        self._after = after
        self._known_until = int(after.partition("-")[0]) / 1000
        self._shown: dict[str, tuple[JobState, str | None]] = {}
        self._records: dict[str, JobRecord] = {}
        self._listed: set[str] = set()

    async def entries(self) -> AsyncGenerator[JournalEvent | None]:
        """Yield the entries of the job's journal, and None whenever it is time to look."""
        events = self._client.events(self._job_id, self._after)
        coming: asyncio.Future[JournalEvent] | None = None
        looked = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(events))
                await asyncio.wait({coming}, timeout=LOOK_SECONDS)
                if loop.time() - looked >= LOOK_SECONDS:
                    looked = loop.time()
                    yield None
                if coming.done():
                    try:
                        entry = coming.result()
                    except StopAsyncIteration:
                        return
                    finally:
                        coming = None
                    yield entry
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            await events.aclose()

    async def changed(self) -> list[tuple[str, str]]:
        """Return the jobs whose state has changed since the last call: each one's id and line."""
        lines = []
        for record in await self._look():
            now = (record.state, _awaited(record))
            if self._shown.get(record.id) != now and record.id not in self._listed:
                self._shown[record.id] = now
                lines.append((record.id, _line(record)))
        return lines

    async def _look(self) -> list[JobRecord]:
        """Read the jobs below; what ended before this follower began was listed by another one."""
        try:
            records = await self._client.tree(self._job_id)
        except LedgerUnavailable:  # the journal's reader says so, if it lasts
            return []
        below = [record for record in records if record.id != self._job_id]
        for record in below:
            if record.id not in self._records and (record.finished_at or inf) < self._known_until:
                self._listed.add(record.id)
            self._records[record.id] = record
        return below

    def ended(self, *, all_of_them: bool = False) -> str:
        """Return the jobs that have ended and are not listed yet, when none below runs any more.

        Args:
            all_of_them: List also those that still run: nobody follows them further for now.
        """
        live = [record for record in self._records.values() if not record.state.is_terminal]
        if live and not all_of_them:
            return ""
        new = [record for record in self._records.values() if record.id not in self._listed]
        self._listed.update(record.id for record in new if record.state.is_terminal)
        return "\n".join(_line(record) + _reason(record) for record in new)

    async def approvals(self) -> list[Approval]:
        """Return the calls of the jobs below that wait for a person, oldest first."""
        try:
            waiting = await self._client.approvals()
        except LedgerUnavailable:
            return []
        if waiting:
            await self._look()  # what is said of their jobs is not older than the question
        return [one for one in waiting if one.job_id in self._records]


async def _next(events: AsyncIterator[JournalEvent]) -> JournalEvent:
    return await anext(events)


def _line(record: JobRecord) -> str:
    """Return a job's line; a list of Markdown, so that each is a line of its own in a browser."""
    labels = " ".join(f"[{key}={value}]" for key, value in record.labels.items())
    what = one_line(f"{labels} {record.description}", TITLE_CHARACTERS)
    awaited = _awaited(record)
    state = f"{record.state}: {awaited}" if awaited else str(record.state)
    return f"- {_MARKS.get(record.state, _FAILED)} **{record.agent}** {what} · {state}"


def _reason(record: JobRecord) -> str:
    return f" — {one_line(record.reason, REASON_CHARACTERS)}" if record.reason else ""


def _awaited(record: JobRecord) -> str | None:
    """Return what a waiting job waits for; a queued one's reasons change all the time."""
    return record.waiting_for if record.state is JobState.WAITING else None
