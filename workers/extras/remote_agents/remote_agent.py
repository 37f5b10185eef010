"""The job of a remote agent: another service does it, by A2A.

Its task is watched until its work stops. What a task has come to is asked for (`GetTask`); the
stream of its updates only shows progress and saves asking often. So nothing is lost with a stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import IO

from a2a.types import AgentCard, StreamResponse, Task, TaskState
from google.adk.events import Event
from google.genai import types

from fanout.orchestrator.approvals import ApprovalAnswer, ApprovalRequest, fingerprint, parse_policy
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    RemoteAgentDefinition,
)
from fanout.orchestrator.deep_agent import OutputMismatch, OutputSchema, summary_of
from fanout.orchestrator.extras import RemoteConnection, connect_agent
from fanout.orchestrator.jobs.approvals import Approval, waiting_approval
from fanout.orchestrator.jobs.failures import (
    AgentFailed,
    InvalidJob,
    JobFailure,
    RemoteAgentUnavailable,
)
from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, Usage
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.shortening import count

from ...agent.answer import AgentAnswer
from ...agent.checkpoint import Checkpoints
from ...agent.delegation.children import AwaitedTasks
from ...agent.history import History
from ...agent.services import JobServices
from ...agent.session_journal import AttemptJournal, LiveLog
from ...agent.verification import Verifier, max_reworks, rejection
from ...heartbeat import HeldLease, elapsed_clock
from ...sandbox import Sandbox
from .abandoned import cancel_task
from .conversation import RemoteConversation, State, Turn
from .messages import (
    Reply,
    SentFiles,
    answer_text,
    files_to_send,
    fitting,
    make_message,
    progress_text,
    put_files,
    read_question,
    read_reply,
    reply_of_message,
    task_text,
)

FIRST_PAUSE_SECONDS = 0.25
"""Before a task is asked for again."""
LONGEST_PAUSE_SECONDS = 5.0
"""Between two questions: an agent that does not stream works for seconds at least."""
OUTAGE_SECONDS = 60.0
"""How long an agent may be unreachable while the attempt keeps asking: it restarts."""

STATES: dict[int, State] = {
    TaskState.TASK_STATE_COMPLETED: "completed",
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "rejected",
    TaskState.TASK_STATE_CANCELED: "canceled",
    TaskState.TASK_STATE_INPUT_REQUIRED: "input_required",
    TaskState.TASK_STATE_AUTH_REQUIRED: "auth_required",
}
"""The states in which an agent does not work on a task."""
QUESTIONS = frozenset({"input_required", "auth_required"})
"""Those in which it waits for a person."""

Show = Callable[[StreamResponse], Awaitable[None]]
ASK_PERSON = "answer_remote_agent"
"""The tool of the approvals by which a person answers the agent's questions."""
FILE_TOOLS = frozenset(
    {"apply_patch", "delete_file", "edit_file", "execute", "multi_edit", "write_file"}
)
"""The tools whose guard would be avoided if files came from elsewhere."""
LEAST_SECONDS = 1.0
"""The least time for an answer, when the job's time is nearly over: its deadline ends it."""


async def stopped_task(
    remote: RemoteConnection, task_id: str, show: Show, *, asked_by: str = ""
) -> Task:
    """Return a task when the agent's work on it has stopped.

    Args:
        remote: The connection to the agent.
        task_id: The task.
        show: Receives the updates of the task.
        asked_by: The id of the question that was answered: a task that still asks it continues.

    Raises:
        RemoteAgentUnavailable: The agent was unreachable for `OUTAGE_SECONDS`.
        JobFailure: See `RemoteConnection`.
    """
    pause, reached_at = FIRST_PAUSE_SECONDS, elapsed_clock()
    while True:
        try:
            task = await remote.task(task_id)
            reached_at = elapsed_clock()
            if has_stopped(task, asked_by):
                return task
            if remote.streams and await _follow(remote, task_id, show):
                pause = FIRST_PAUSE_SECONDS
                continue
        except RemoteAgentUnavailable:
            if elapsed_clock() - reached_at > OUTAGE_SECONDS:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def has_stopped(task: Task, asked_by: str) -> bool:
    """Return whether an agent does not work on a task, other than because of an old question."""
    state = STATES.get(task.status.state)
    is_asked = state in QUESTIONS
    message = task.status.message.message_id
    return state is not None and not (is_asked and message and message == asked_by)


async def _follow(remote: RemoteConnection, task_id: str, show: Show) -> bool:
    """Show the updates of a task until its stream ends; return whether its state was among them."""
    has_state = False
    async for update in remote.updates(task_id):
        await show(update)
        has_state |= update.HasField("status_update") and (
            update.status_update.status.state in STATES
        )
    return has_state


class RemoteAgent:
    """One job, done by a remote agent; a `JobWorker`.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        definition: The definition of the job's agent.
        remote: Its key `a2a`.
        ends_at: When the job's time is over, on `elapsed_clock`.
        sandbox: Where the job's files are.
        journal: The attempt's journal.
        lease: The attempt's lease.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        definition: AgentDefinition,
        remote: RemoteAgentDefinition,
        *,
        ends_at: float,
        sandbox: Sandbox,
        journal: AttemptJournal,
        lease: HeldLease,
    ) -> None:
        self.usage = Usage()
        self._spec = spec
        self._definition = definition
        self._remote = remote
        self._services = services
        self._schema = spec.output_schema or definition.output_schema
        self._ends_at = ends_at
        self._sandbox = sandbox
        self._journal = journal
        self._live = LiveLog(journal, definition.name)
        self._verifier = Verifier(
            spec.verify or definition.verify,
            max_reworks(spec, definition),
            sandbox=sandbox,
            journal=journal,
            ends_at=ends_at,
        )
        self._checkpoints = Checkpoints(
            sandbox,
            services.blobs,
            services.ledger,
            lease,
            used=lambda: self.usage,
            interval_seconds=0,
        )
        self._card: AgentCard | None = None
        self._conversation: RemoteConversation | None = None

    async def run(self) -> AgentAnswer:
        """See `JobWorker.run`."""
        history = await self._journal.history()
        self._checkpoints.load_checkpoints(history.checkpoints)
        self._conversation = self._read_conversation(history)
        async with connect_agent(self._remote, self._services.secrets) as remote:
            self._card = remote.card
            await self._fetch_lost_files(remote, self._conversation.without_files)
            while True:
                answer = await self._converse(history, self._conversation, remote)
                if not answer.is_final or not self._verifier.is_wanted:
                    return answer
                history = await self._journal.history()
                verified = await self._verifier.verify(history)
                if not self._verifier.wants_rework(history):
                    return replace(answer, verified=verified)

    async def keep(self, bundle: IO[bytes], tasks: AwaitedTasks | None) -> AwaitedTasks | None:
        """See `JobWorker.keep`."""
        await self._checkpoints.store(bundle)
        return tasks

    async def abandon(self) -> None:
        """See `JobWorker.abandon`: the agent is informed that its task is cancelled."""
        try:
            if self._conversation is None:
                self._conversation = self._read_conversation(await self._journal.history())
        except JobFailure:  # its journal cannot be read
            return
        await cancel_task(self._remote, self._services, self._conversation, self._card)

    def _read_conversation(self, history: History) -> RemoteConversation:
        return RemoteConversation(self._definition.name, self._spec.id, history)

    async def _converse(
        self, history: History, conversation: RemoteConversation, remote: RemoteConnection
    ) -> AgentAnswer:
        """Converse until the agent answers, or waits for a person."""
        is_rejected = self._verifier.wants_rework(history)
        while True:
            turn = conversation.last
            if turn is None:
                await self._begin(conversation, task_text(self._spec, self._schema))
            elif not turn.has_ended:
                await self._complete(turn, conversation, remote)
            elif turn.asks:
                approval = self._approval(turn)
                if approval.id not in history.answers:
                    return AgentAnswer(approvals=(approval,))
                await self._forward(history.answers[approval.id], turn, conversation)
            elif is_rejected:
                is_rejected = False
                parts = rejection(history.verifications[-1]).parts or ()
                await self._begin(conversation, "".join(part.text or "" for part in parts))
            elif messages := await self._journal.messages(self._journal.messages_read):
                await self._begin(conversation, "\n\n".join(messages), len(messages))
            else:
                return await self._answer(turn)

    async def _forward(
        self, answer: ApprovalAnswer, turn: Turn, conversation: RemoteConversation
    ) -> None:
        """Begin the turn that answers the question of another one."""
        is_confirmed = answer.decision == "approve" if turn.note.confirmations else None
        read = self._journal.messages_read
        event = conversation.begun(answer_text(answer), read, is_confirmed=is_confirmed)
        await self._note(conversation, event)

    async def _begin(self, conversation: RemoteConversation, text: str, messages: int = 0) -> None:
        """Begin a turn with a text, which holds a number of messages to the job."""
        read = self._journal.messages_read + messages
        await self._note(conversation, conversation.begun(text, read))

    async def _note(self, conversation: RemoteConversation, event: Event) -> None:
        await self._journal.note_session_event(event)
        conversation.add(event)

    async def _complete(
        self, turn: Turn, conversation: RemoteConversation, remote: RemoteConnection
    ) -> None:
        """Send a turn's message, unless the agent has it, and wait for the end of its work."""
        if not turn.note.is_taken:
            if await self._is_awaited(turn, remote):
                await self._send(turn, conversation, remote)
            else:
                same = turn.note.task, turn.note.context
                await self._note(conversation, conversation.taken(turn, *same))
            turn = conversation.last or turn
        if turn.has_ended:
            return
        if not turn.note.task:
            raise AgentFailed("The remote agent answered with neither a task nor a message.")
        asked_by = turn.note.asked_by
        task = await stopped_task(remote, turn.note.task, self._show, asked_by=asked_by)
        await self._end(turn, conversation, remote, task)

    @staticmethod
    async def _is_awaited(turn: Turn, remote: RemoteConnection) -> bool:
        """Return whether the agent waits for a turn's message.

        It does not if an earlier attempt sent the answer, or if its task went on without one.
        """
        if not turn.note.task:
            return True
        task = await remote.task(turn.note.task)
        asks = STATES.get(task.status.state) in QUESTIONS
        return asks and task.status.message.message_id == turn.note.asked_by

    async def _send(
        self, turn: Turn, conversation: RemoteConversation, remote: RemoteConnection
    ) -> None:
        """Send the message of a turn, and show what comes back until the stream ends."""
        files = SentFiles()
        if turn.note.turn == 1:
            files = await files_to_send(self._sandbox, self._remote, remote)
            await self._note_files(files)
        left = max(self._ends_at - elapsed_clock(), LEAST_SECONDS)
        is_taken = False
        try:
            async for update in remote.send(make_message(turn, files), left):
                if update.HasField("message"):
                    reply = reply_of_message(update.message)
                    await self._take(turn, conversation, remote, reply, "completed")
                    return
                if not is_taken:
                    is_taken = True
                    await self._note(conversation, conversation.taken(turn, *_ids(update)))
                await self._show(update)
        except RemoteAgentUnavailable:
            if not is_taken:  # sent again by the next attempt, under the same id
                raise

    async def _end(
        self, turn: Turn, conversation: RemoteConversation, remote: RemoteConnection, task: Task
    ) -> None:
        """Take what a task holds whose work has stopped."""
        state = STATES[task.status.state]
        if state in QUESTIONS:
            question = read_question(task)
            said = {
                "asked_by": task.status.message.message_id,
                "confirmations": question.confirmations,
            }
            event = conversation.ended(turn, question.text, state=state, **said)
            await self._note(conversation, event)
        else:
            await self._take(turn, conversation, remote, read_reply(task), state)

    async def _take(
        self,
        turn: Turn,
        conversation: RemoteConversation,
        remote: RemoteConnection,
        reply: Reply,
        state: str,
    ) -> None:
        """Put the files of a reply into the workspace, then end its turn.

        Raises:
            AgentFailed: A file or a patch is refused.
        """
        await self._put_files(reply, remote)
        text = reply.text or _named(reply)
        output = await asyncio.to_thread(fitting, self._schema, reply.outputs)
        has_files = bool(reply.files or reply.patches)
        event = conversation.ended(turn, text, state=state, output=output, has_files=has_files)
        await self._note(conversation, event)

    async def _put_files(self, reply: Reply, remote: RemoteConnection) -> None:
        await self._fetch_links(reply, remote)
        guarded = FILE_TOOLS & parse_policy(self._spec.interrupt_on).keys()
        if (reply.files or reply.patches) and guarded:
            raise InvalidJob(
                "The remote agent sent files, but the agent that called it changes none without "
                f"approval (interrupt_on: {', '.join(sorted(guarded))}): have it call this agent "
                "for answers only."
            )
        for reason in dict.fromkeys(reply.ignored):
            await self._journal.note(
                EventType.LOG, {"stream": "remote", "text": f"Not taken: {reason}."}
            )
        await put_files(self._sandbox, reply.patches, reply.files)

    async def _fetch_links(self, reply: Reply, remote: RemoteConnection) -> None:
        """Fetch the files of a reply that are given by their addresses at the agent's own origin.

        Raises:
            AgentFailed: They are too large together.
            JobFailure: See `RemoteConnection`.
        """
        left = self._remote.max_bytes
        for link in reply.links:
            content = await remote.fetch(link.url)
            if content is None:
                reply.ignored.append("a file at another origin, which is not called")
                continue
            left -= len(content)
            if left < 0:
                raise AgentFailed(
                    "The remote agent links to files of more than "
                    f"{self._remote.max_bytes:,} bytes; a2a.max_bytes of its definition gives more."
                )
            reply.add_file(link.name, link.media_type, content)

    async def _fetch_lost_files(self, remote: RemoteConnection, turns: Sequence[Turn]) -> None:
        """Put files into the workspace again that were lost with an earlier host.

        Raises:
            AgentFailed: They were not those of a task, so they cannot be asked for again.
            JobFailure: See `RemoteConnection`.
        """
        for turn in turns:
            if not turn.note.task:
                raise AgentFailed(
                    "The files of the remote agent's answer were lost with their host, and it made "
                    "no task that has them: submit the job again."
                )
            await self._put_files(read_reply(await remote.task(turn.note.task)), remote)

    async def _note_files(self, files: SentFiles) -> None:
        if files.parts or files.not_accepted:
            text = f"Sent to the remote agent: {count(len(files.parts), 'file')}"
            if files.not_accepted:
                text += f"; not sent: {files.not_accepted:,} of types that its card does not name"
            await self._journal.note(EventType.LOG, {"stream": "remote", "text": f"{text}."})

    async def _show(self, update: StreamResponse) -> None:
        """Append the text of an update to the journal, at most once a second."""
        content = types.Content(role="model", parts=[types.Part(text=progress_text(update))])
        await self._live.add(Event(author=self._definition.name, content=content, partial=True))

    def _approval(self, turn: Turn) -> Approval:
        """Return the approval by which a person answers the question of a turn."""
        arguments: dict[str, object] = {"question": turn.reply}
        request = ApprovalRequest(
            agent=self._definition.name,
            call_id=turn.note.message,
            tool=ASK_PERSON,
            arguments={"question": turn.reply},
            decisions=("approve", "reject", *(() if turn.note.confirmations else ("respond",))),
            sha256=fingerprint(ASK_PERSON, arguments),
        )
        return waiting_approval(self._spec.id, turn.note.message, request)

    async def _answer(self, turn: Turn) -> AgentAnswer:
        """Return the answer of a turn that ended the agent's work."""
        summary = summary_of(turn.reply, MAX_SUMMARY_CHARACTERS)
        if turn.note.state != "completed":
            failure = AgentFailed(f"The remote agent ended its task as {turn.note.state}.")
            return AgentAnswer(summary=summary, failure=failure)
        if self._schema is None:
            return AgentAnswer(summary=summary)
        given = turn.reply if turn.note.output is None else json.dumps(turn.note.output)
        try:
            output = await asyncio.to_thread(OutputSchema(self._schema).parse, given)
        except (OutputMismatch, ValueError):
            failure = AgentFailed("The remote agent's answer does not fit the output_schema.")
            return AgentAnswer(summary=summary, failure=failure)
        return AgentAnswer(summary=summary, output=output)


def _ids(update: StreamResponse) -> tuple[str, str]:
    """Return the ids of the task and of the conversation to which an update belongs."""
    kind = update.WhichOneof("payload")
    said = getattr(update, kind) if kind else None
    if isinstance(said, Task):
        return said.id, said.context_id
    return (said.task_id, said.context_id) if said is not None else ("", "")


def _named(reply: Reply) -> str:
    """Return the replacement for the text of a reply without one."""
    files = len(reply.files) + len(reply.patches)
    return f"The remote agent sent {count(files, 'file')} and no text." if files else "(no text)"
