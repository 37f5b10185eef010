"""The job of a coding agent: a program in the sandbox does it, by the Agent Client Protocol.

The worker is the protocol's client. It offers neither files nor terminals, so the agent works on
the files of the sandbox itself, and its changes are collected like any others. A prompt is a turn
of one session; a rework, a message and a person's decision are further prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from google.adk.events import Event

from fanout.orchestrator.approvals import ApprovalAnswer, ApprovalRequest
from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.configuration.agent_definitions import (
    AgentDefinition,
    CodingAgentDefinition,
)
from fanout.orchestrator.deep_agent import ModelUsage, OutputMismatch, OutputSchema, summary_of
from fanout.orchestrator.jobs.approvals import Approval, waiting_approval
from fanout.orchestrator.jobs.failures import AgentFailed, InvalidJob, JobFailure
from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, Usage
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.store.journal import EventType

from ...agent.answer import AgentAnswer
from ...agent.checkpoint import Checkpoints
from ...agent.delegation.children import AwaitedTasks
from ...agent.history import History, repair_events
from ...agent.services import JobServices
from ...agent.session_journal import AttemptJournal
from ...agent.shared_limits import SharedBudget
from ...agent.verification import Verifier, max_reworks, rejection
from ...heartbeat import HeldLease, elapsed_clock
from ...sandbox import LazySandbox
from .conversation import KEY, LIMIT, Ask, CodingConversation, PromptTurn
from .kept_home import home_of, keep_home, restore_home
from .permissions import PermissionRequest, guarded_kinds, read_question, unguarded
from .prompts import INTERRUPTED, NOT_FITTING, decided_prompt, first_prompt, told
from .steps import StepWriter
from .updates import read_update
from .usage import Metered, over_budget, told_usage
from .wire import Incoming

if TYPE_CHECKING:
    from .connection import AgentConnection

CANCEL_SECONDS = 0.7
"""The time for the agent to end its turn by itself: a cancelled job ends within two seconds."""
LOOK_SECONDS = 1.0
"""Between two looks at the budget while the agent is silent."""
ASK_SECONDS = 0.5
"""How long further questions are awaited after one for a person: several calls ask at once."""

ENDED_IN_CALL = "The agent ended in this call."
"""The result of a call that a failure has cut short."""
WAITS_FOR_PERSON = "Not done: the job waits for a person's decision, and the agent is asked again."
"""The result of the calls at which a job begins to wait."""

FAILED_STOPS = {
    "refusal": "The coding agent refused the task (refusal).",
    "max_tokens": "The coding agent's model reached its limit of tokens (max_tokens).",
    "max_turn_requests": "The coding agent reached its limit of requests (max_turn_requests).",
    "cancelled": "The coding agent ended its turn as cancelled.",
}
"""What the protocol's stop reasons mean for a job, except `end_turn`."""


class CodingAgentJob:
    """One job, done by a coding agent; a `JobWorker`.

    Args:
        services: What all jobs of this worker share.
        spec: The job.
        definition: The definition of the job's agent.
        program: Its key `acp`.
        limits: The job's limits.
        ends_at: When the job's time is over, on `elapsed_clock`.
        sandbox: Where the job's files are, and the agent's process.
        journal: The attempt's journal.
        lease: The attempt's lease.
        checkpoint_seconds: The interval of checkpoints; 0 takes none at intervals.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        definition: AgentDefinition,
        program: CodingAgentDefinition,
        limits: Limits,
        *,
        ends_at: float,
        sandbox: LazySandbox,
        journal: AttemptJournal,
        lease: HeldLease,
        checkpoint_seconds: float = 0,
    ) -> None:
        self._services = services
        self._spec = spec
        self._definition = definition
        self._program = program
        self._limits = limits
        self._schema = spec.output_schema or definition.output_schema
        self._verify = spec.verify or definition.verify
        self._sandbox = sandbox
        self._journal = journal
        self._metered: Metered | None = None
        self._guarded = guarded_kinds(definition.interrupt_on)
        self._verifier = Verifier(
            self._verify,
            max_reworks(spec, definition),
            sandbox=sandbox,
            journal=journal,
            ends_at=ends_at,
        )
        self._shared = SharedBudget(services, spec)
        self._checkpoints = Checkpoints(
            sandbox,
            services.blobs,
            services.ledger,
            lease,
            used=lambda: self.usage,
            interval_seconds=checkpoint_seconds,
        )
        self._conversation = CodingConversation(definition.name, History())
        self._earlier: Sequence[Event] = ()
        self._connection: AgentConnection | None = None
        self._process = contextlib.AsyncExitStack()
        self._steps: StepWriter | None = None
        self._looked_at = 0.0

    @property
    def usage(self) -> Usage:
        """See `JobWorker.usage`."""
        return Usage.model_validate(vars(self._used()))

    async def run(self) -> AgentAnswer:
        """See `JobWorker.run`."""
        self._check_policy()
        history = await self._journal.history()
        self._checkpoints.load_checkpoints(history.checkpoints)
        self._earlier = history.earlier
        self._conversation = CodingConversation(self._definition.name, history)
        for event in repair_events(history):
            await self._journal.note_session_event(event, {})
            self._conversation.add(event)
        async with self._process:
            try:
                return await self._run(history)
            except asyncio.CancelledError:
                if self._connection is not None:
                    await uninterrupted(self._connection.end_turn(CANCEL_SECONDS))
                raise

    async def keep(self, bundle: IO[bytes], tasks: AwaitedTasks | None) -> AwaitedTasks | None:
        """See `JobWorker.keep`."""
        await self._checkpoints.store(bundle)
        return tasks

    async def abandon(self) -> None:
        """See `JobWorker.abandon`: its process ends with the sandbox."""

    def _check_policy(self) -> None:
        """Refuse a caller whose policy the agent is not known to keep.

        Raises:
            InvalidJob: A person approves calls of the caller, about which nobody would be asked.
        """
        if tools := unguarded(self._spec.interrupt_on, self._definition.interrupt_on):
            raise InvalidJob(
                f"The agent that called {self._definition.name} does not use {', '.join(tools)} "
                "without approval, and a coding agent asks for approval only if it is set up to: "
                "have an operator put the kinds of its calls into interrupt_on of its definition."
            )

    async def _run(self, history: History) -> AgentAnswer:
        while True:
            answer = await self._converse(history)
            if not answer.is_final or not self._verifier.is_wanted:
                return answer
            history = await self._journal.history()
            self._verifier.env = {"HOME": home_of(await self._sandbox.opened())}
            verified = await self._verifier.verify(history)
            if not self._verifier.wants_rework(history):
                return replace(answer, verified=verified)

    async def _converse(self, history: History) -> AgentAnswer:
        """Converse until the agent answers, or waits for a person."""
        is_rejected = self._verifier.wants_rework(history)
        while True:
            turn = self._conversation.last
            if turn is None:
                await self._begin(self._first_prompt())
            elif not turn.stop:
                if waiting := self._waiting(history):
                    return AgentAnswer(approvals=waiting)
                await self._work(turn, history)
            elif turn.stop == LIMIT:
                return AgentAnswer(summary=self._summary(turn), limit=turn.limit)
            elif turn.stop in FAILED_STOPS:
                failure = AgentFailed(FAILED_STOPS[turn.stop])
                return AgentAnswer(summary=self._summary(turn), failure=failure)
            elif is_rejected:
                is_rejected = False
                parts = rejection(history.verifications[-1]).parts or ()
                await self._begin("".join(part.text or "" for part in parts))
            elif messages := await self._journal.messages(self._journal.messages_read):
                await self._begin("\n\n".join(messages), len(messages))
            else:
                answer = await self._answer(turn)
                if answer is not None:
                    return answer

    def _first_prompt(self) -> str:
        return first_prompt(self._spec, self._definition, self._verify, self._schema)

    async def _begin(self, text: str, messages: int = 0, *, reworks_schema: bool = False) -> None:
        """Begin a turn with a prompt, which holds a number of messages to the job."""
        read = self._journal.messages_read + messages
        event = self._conversation.begun(text, read, reworks_schema=reworks_schema)
        await self._journal.note_session_event(event, {})
        self._conversation.add(event)

    def _waiting(self, history: History) -> tuple[Approval, ...]:
        """Return the approvals for which the turn waits; none if all have an answer."""
        approvals = [self._approval(ask) for ask in self._conversation.asks.values()]
        return tuple(one for one in approvals if one.id not in history.answers)

    def _approval(self, ask: Ask) -> Approval:
        request = ApprovalRequest(
            agent=self._definition.name,
            call_id=ask.id,
            tool=ask.kind,
            arguments=ask.arguments,
            decisions=self._guarded.get(ask.kind) or ("approve", "reject"),
            sha256=ask.sha256,
        )
        return waiting_approval(self._spec.id, ask.id, request)

    def _decided(self, history: History) -> list[tuple[Ask, ApprovalAnswer]]:
        """Return the questions that people have answered, and their answers."""
        asks = [(ask, self._approval(ask).id) for ask in self._conversation.asks.values()]
        return [(ask, history.answers[id_]) for ask, id_ in asks if id_ in history.answers]

    async def _work(self, turn: PromptTurn, history: History) -> None:
        """Have the agent work on a turn until it stops, or asks for what a person decides."""
        connection = await self._connected()
        text = await self._open_session(connection, turn, history)
        steps = self._steps = StepWriter(
            self._conversation,
            self._journal,
            self._definition.name,
            self._metered,
        )
        self._journal.activity.begin("model", model=self._definition.name)
        prompting = connection.prompt(text)
        try:
            stopped = await self._follow(connection, prompting, steps, history)
        except JobFailure:
            await steps.flush(ENDED_IN_CALL)
            raise
        if not stopped:
            await steps.flush(WAITS_FOR_PERSON)

    async def _connected(self) -> AgentConnection:
        """Return the connection to the agent's process, which is started if it does not run."""
        if self._connection is not None and self._connection.wire.ended is not None:
            await self._process.aclose()  # it ends with each turn
            self._connection = None
        if self._connection is None:
            self._journal.activity.begin("start")
            library = await asyncio.to_thread(_load_library)
            sandbox = await self._sandbox.opened()
            kept = self._conversation.kept
            if kept is not None and not self._conversation.session:
                await restore_home(sandbox, self._services.blobs, kept.home)
            if self._metered is None and self._sandbox.meter is not None:
                self._metered = Metered(self._sandbox.meter)
            opening = library.connect(sandbox, self._program, self._services.secrets)
            connection: AgentConnection = await self._process.enter_async_context(opening)
            self._connection = connection
        return self._connection

    async def _open_session(
        self, connection: AgentConnection, turn: PromptTurn, history: History
    ) -> str:
        """Open the session of the conversation; return the prompt that is sent in it."""
        decided = self._decided(history)
        text = turn.text
        if decided:
            text = decided_prompt(turn.text, decided)
        elif turn.session:
            text = INTERRUPTED.format(text=turn.text)
        if not connection.session:
            has_session = self._conversation.files == self._sandbox.files_id
            earlier = self._conversation.session if has_session else ""
            if not self._conversation.session and self._conversation.kept is not None:
                earlier = self._conversation.kept.session
            if not (earlier and await connection.load(earlier)):
                await connection.begin()
                events = [event for event in self._conversation.events if _is_before(event, turn)]
                text = told([*self._earlier, *events], text)
        files = self._sandbox.files_id
        event = self._conversation.said(session=connection.session, files=files)
        await self._journal.note_session_event(event, {})
        self._conversation.add(event)
        return text

    async def _follow(
        self,
        connection: AgentConnection,
        prompting: asyncio.Task[object],
        steps: StepWriter,
        history: History,
    ) -> bool:
        """Write what the agent does until its turn ends; False if it waits for a person."""
        waits_until: float | None = None
        while True:
            incoming = await _next(connection, prompting, waits_until)
            if incoming is None and prompting.done():
                await self._end_turn(connection, prompting, steps)
                return True
            if incoming is not None and incoming.kind == "permission":
                if await self._decide(connection, incoming, steps, history):
                    waits_until = waits_until or elapsed_clock() + ASK_SECONDS
            elif incoming is not None and (update := read_update(incoming.params)) is not None:
                await steps.add(update)
                if not steps.has_open_calls:
                    await self._checkpoints.take_if_due()
            if waits_until is not None and elapsed_clock() >= waits_until:
                await connection.end_turn(CANCEL_SECONDS)
                return False
            if reached := await self._limit():
                await connection.end_turn(CANCEL_SECONDS)
                await steps.end(ModelUsage(), stop=LIMIT, limit=reached)
                return True

    async def _end_turn(
        self, connection: AgentConnection, prompting: asyncio.Task[object], steps: StepWriter
    ) -> None:
        """Write the end of a turn that the agent has ended.

        Raises:
            JobFailure: It has not ended in order.
        """
        try:
            response = prompting.result()
        except Exception as error:  # noqa: BLE001 - whatever the library makes of it
            raise await connection.failure(error) from None
        used = ModelUsage()
        if self._metered is None or not self._metered.is_reading:
            used = self._with_cost(told_usage(getattr(response, "usage", None)), steps)
        stop, limit = str(getattr(response, "stop_reason", "")), ""
        if reached := await self._limit(used, now=True):
            stop, limit = LIMIT, reached
        home = ""
        if connection.can_load:
            home = await keep_home(await self._sandbox.opened(), self._services.blobs)
        await steps.end(used, stop=stop, limit=limit, home=home)

    def _with_cost(self, used: ModelUsage, steps: StepWriter) -> ModelUsage:
        """Add what the turn has cost, if the agent tells what the session has cost."""
        told_cost = steps.session_cost
        if told_cost is None:
            return used
        before = self._conversation.session_cost_usd
        return replace(used, cost_usd=told_cost - before if told_cost >= before else told_cost)

    async def _limit(self, more: ModelUsage | None = None, *, now: bool = False) -> str | None:
        """Return a sentence about the limit that is exceeded; shared ones are read at times.

        Args:
            more: What is used, and not yet written.
            now: Whether the shared limits are read in any case.
        """
        used = self._used().plus(more or ModelUsage())
        if reached := over_budget(used, self._limits):
            return reached
        if not now and elapsed_clock() - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = elapsed_clock()
        return over_budget(used, self._limits, await self._shared.read(used))

    def _used(self) -> ModelUsage:
        """Return what the job has used, with what is not yet written."""
        used = self._conversation.used
        return used if self._metered is None else used.plus(self._metered.unread)

    async def _decide(
        self, connection: AgentConnection, asked: Incoming, steps: StepWriter, history: History
    ) -> bool:
        """Answer a question for permission; True if a person has to.

        Raises:
            JobFailure: The agent's process has ended, or the journal cannot be written.
        """
        question = read_question(asked.params)
        question = replace(question, call=await steps.asks(question.call))
        is_allowed = question.kind not in self._guarded
        if not is_allowed:
            kept = self._kept_answer(question, history)
            if kept is None:
                await self._note_ask(question)
                return True
            ask, answer = kept
            event = self._conversation.said(answered=ask.id)
            await self._journal.note_session_event(event, {})
            self._conversation.add(event)
            is_allowed = answer.decision == "approve"
        if is_allowed and not question.can_be_allowed:
            steps.count_step()
            text = "A call was rejected: the agent offers no way to allow it once."
            await self._journal.note(EventType.LOG, {"stream": "agent", "text": text})
        try:
            await connection.wire.answer(asked.id, question.outcome(is_allowed=is_allowed))
        except ConnectionError as error:
            raise await connection.failure(error) from None
        return False

    def _kept_answer(
        self, question: PermissionRequest, history: History
    ) -> tuple[Ask, ApprovalAnswer] | None:
        """Return a person's answer to the same question of an earlier process."""
        same = (one for one in self._decided(history) if one[0].sha256 == question.sha256)
        return next(same, None)

    async def _note_ask(self, question: PermissionRequest) -> None:
        """Write a question for a person, unless it waits for an answer already."""
        asked = self._conversation.asks.values()
        if any(ask.sha256 == question.sha256 for ask in asked):
            return
        number = self._conversation.asked.get(question.sha256, 0) + 1
        ask = Ask(
            id=f"{question.sha256[:32]}-{number}",
            sha256=question.sha256,
            kind=question.kind,
            arguments=question.arguments,
        )
        event = self._conversation.said(asked=ask)
        await self._journal.note_session_event(event, {})
        self._conversation.add(event)

    def _summary(self, turn: PromptTurn) -> str:
        return summary_of(turn.reply, MAX_SUMMARY_CHARACTERS)

    async def _answer(self, turn: PromptTurn) -> AgentAnswer | None:
        """Return the answer of a turn; None if another one is asked for."""
        if turn.stop != "end_turn":
            failure = AgentFailed("The coding agent ended its turn for a reason that is not ACP's.")
            return AgentAnswer(summary=self._summary(turn), failure=failure)
        summary = self._summary(turn) or "(The coding agent ended without a message.)"
        if self._metered is not None and (note := self._metered.uncounted(self._limits)):
            summary = summary_of(f"{summary}\n\n{note}", MAX_SUMMARY_CHARACTERS)
        if self._schema is None:
            return AgentAnswer(summary=summary)
        try:
            output = await asyncio.to_thread(OutputSchema(self._schema).parse, turn.reply)
        except (OutputMismatch, ValueError) as mismatch:
            if turn.note.reworks_schema:
                failure = AgentFailed("The coding agent's answer does not fit the output_schema.")
                return AgentAnswer(summary=summary, failure=failure)
            await self._begin(
                NOT_FITTING.format(why=str(mismatch)[:300], schema=self._schema_text()),
                reworks_schema=True,
            )
            return None
        return AgentAnswer(summary=summary, output=output)

    def _schema_text(self) -> str:
        return json.dumps(self._schema)


def _load_library() -> Any:
    """Return the module of the connection; its library takes a second to load.

    Raises:
        InvalidJob: The library is not installed here.
    """
    try:
        return importlib.import_module(".connection", __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise InvalidJob(
            "The worker cannot run coding agents (acp), because the package agent-client-protocol "
            "is not installed there: pip install 'fanout-orchestrator[acp]'"
        ) from None


async def _next(
    connection: AgentConnection, prompting: asyncio.Task[object], waits_until: float | None
) -> Incoming | None:
    """Return what the agent sends next; None if its turn has ended, or after a moment."""
    received = connection.wire.received
    if not received.empty():
        return received.get_nowait()
    if prompting.done():
        return None
    seconds = LOOK_SECONDS
    if waits_until is not None:
        seconds = max(0.0, min(seconds, waits_until - elapsed_clock()))
    getting = asyncio.create_task(received.get())
    try:
        await asyncio.wait(
            {getting, prompting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


def _is_before(event: Event, turn: PromptTurn) -> bool:
    """Return whether an event is not the one that begins a turn."""
    said = (event.custom_metadata or {}).get(KEY) or {}
    return not (said.get("begins") and said.get("turn") == turn.number)
