"""A sub-agent: one ADK run of a job's agent in a sandbox, with a journaled session.

The sandbox is opened just before the first calls that need it. A reply is appended to the journal
once the sandbox is open that its calls need. One that cannot be opened leaves no call in the
conversation that looks as if it had been interrupted: the next attempt asks the model again.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import IO, Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.genai import types

from fanout.orchestrator.approvals import parse_policy
from fanout.orchestrator.configuration import definition_files
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition, McpServerDefinition
from fanout.orchestrator.configuration.known_names import BUILT_IN_TOOLS
from fanout.orchestrator.deep_agent import (
    CONTINUED,
    MAX_RESULT_TOKENS,
    REPEATED_CALL,
    REPLY_ERRORS,
    WORKSPACE_RESTORED,
    Budget,
    McpServer,
    McpServerFailed,
    McpTools,
    ModelFailed,
    ModelNotOpen,
    OutputMismatch,
    OutputSchema,
    agent_identifier,
    answers_message,
    asked_through,
    create_deep_app,
    last_reply,
    limit_reached,
    preload_client,
    price,
    reserving,
    results_event,
    say_ending,
    settle_results,
    summary_of,
    task_message,
    text_mode,
    text_of,
    usage_of,
    watched_by,
    with_ended_processes,
)
from fanout.orchestrator.delegation.agents import (
    NO_TOOLS,
    NamedTools,
    budget_limits,
    create_agent,
    job_failure,
    remote_mcp_server,
)
from fanout.orchestrator.jobs.failures import (
    AgentFailed,
    BlobMissing,
    InvalidJob,
    LeaseLost,
    LedgerUnavailable,
    NotUnderstood,
    SandboxFailure,
)
from fanout.orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, Usage
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter

from ..agent_gate import Turns, TurnsPlugin
from ..heartbeat import HeldLease
from ..sandbox import Command, LazySandbox, Sandbox
from ..telemetry import run_telemetry
from .answer import AgentAnswer, JobWorker
from .checkpoint import CheckpointPlugin, Checkpoints
from .delegation.children import AwaitedTasks, Children
from .history import Decisions, History, repair_events, waiting_approvals
from .job_reservations import JobReservations
from .model_access import JobModelStates, model_names
from .scripts.script_worker import ScriptWorker
from .services import JobServices
from .session_journal import (
    LINE_CHARACTERS,
    AttemptJournal,
    JournaledSessions,
    JournalPlugin,
    LiveLog,
)
from .shared_limits import JobUsage, JournaledRateLimiter, SharedBudget
from .verification import (
    Verifier,
    max_reworks,
    rejection,
)

SANDBOX_TOOLS = frozenset(BUILT_IN_TOOLS) - {
    "compact_conversation",
    "read_todos",
    "task",
    "write_todos",
}
"""The built-in tools that work on files or run commands."""
ERROR_OUTPUT_BYTES = 16_384
"""How much of a server's error output is kept for the text of an error: a long traceback."""
APP_NAME = "fanout_job"
USER_ID = "job"
NO_LIMIT_OF_ADK = 1_000_000
"""Our budget counts model calls over all attempts; ADK's counter knows this run only."""
FATAL_ERRORS = (
    SandboxFailure,
    LeaseLost,
    LedgerUnavailable,
    InvalidJob,
    NotUnderstood,
    BlobMissing,
)
"""Errors that a tool must not report to the model, because the agent cannot handle them: those of
its sandbox and of its opening, and those of the attempt."""


def unguarded_tools(spec: JobSpec, definition: AgentDefinition) -> frozenset[str]:
    """Return the tools of the sandbox that run without a person's approval."""
    guarded = {*parse_policy(spec.interrupt_on), *parse_policy(definition.interrupt_on)}
    return SANDBOX_TOOLS - guarded


class OpeningPlugin(BasePlugin):
    """Opens the sandbox when a reply calls one of the tools.

    Args:
        sandbox: The job's sandbox.
        tools: The tools that need it at once.
    """

    def __init__(self, sandbox: LazySandbox, tools: Collection[str]) -> None:
        super().__init__(name="sandbox_opening")
        self._sandbox = sandbox
        self._tools = frozenset(tools)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> None:
        """Open the sandbox before the calls of a whole reply are known to anybody.

        Raises:
            JobFailure: It could not be opened.
        """
        del callback_context
        content = llm_response.content
        parts: Any = (content and content.parts) or ()
        called = {part.function_call.name for part in parts if part.function_call}
        if not llm_response.partial and called & self._tools:
            await self._sandbox.opened()


def mcp_tools(
    servers: Sequence[McpServerDefinition], sandbox: Sandbox, journal: AttemptJournal
) -> list[McpTools]:
    """Return the tools of these servers; an empty list for no servers.

    Args:
        servers: The servers of the agent's definition.
        sandbox: The job's sandbox, in which a server with a command is started.
        journal: Gets a `log` event for each tool that is left out.

    Raises:
        InvalidJob: A header needs a variable that is not set.
    """
    opened = [
        _in_sandbox(server, sandbox) if server.command else remote_mcp_server(server)
        for server in servers
    ]

    async def report(text: str) -> None:
        await journal.note(EventType.LOG, {"stream": "mcp", "text": text}, text[:LINE_CHARACTERS])

    return [McpTools(opened, report)] if opened else []


def _in_sandbox(server: McpServerDefinition, sandbox: Sandbox) -> McpServer:
    command = Command(
        argv=server.command or (), env=server.env, max_output_bytes=ERROR_OUTPUT_BYTES
    )
    return McpServer(
        name=server.name,
        open_process=partial(sandbox.open_process, command),
        tools=server.tools,
        timeout_seconds=server.timeout_seconds,
    )


@dataclass(frozen=True, kw_only=True)
class SubagentFactory:
    """Makes the agents of a worker's attempts."""

    services: JobServices
    default_model: str
    """The model if neither the job nor its agent's definition names one."""
    rate_limiter: RedisRateLimiter
    make_tools: Callable[[Collection[str], str], Awaitable[NamedTools]]
    """Makes the tools that a definition names besides the built-in ones, for an agent with a model:
    `extras.ToolMaker.make`."""
    create_remote: Callable[..., JobWorker]
    """Makes the agent of a job that another service does: `extras.RemoteAgent`."""
    create_coding: Callable[..., JobWorker]
    """Makes the agent of a job that a program in the sandbox does: `extras.CodingAgentJob`."""
    max_result_tokens: int = MAX_RESULT_TOKENS
    """What the results of tasks add to an agent's next request at most."""
    max_output_tokens: int | None = None
    """The most that a reply may have, for agents whose definition sets no limit."""
    stream_text: bool = False
    """Whether replies are streamed into the journal."""
    checkpoint_seconds: float = 0
    """The interval of checkpoints; 0 takes none at intervals."""
    answered_at: dict[str, float] = field(default_factory=dict)
    """When this worker last recorded that a model answers, by its access."""

    def create(
        self,
        spec: JobSpec,
        definition: AgentDefinition,
        limits: Limits,
        *,
        ends_at: float,
        sandbox: LazySandbox,
        journal: AttemptJournal,
        lease: HeldLease,
        turns: Turns,
    ) -> JobWorker:
        """Return the agent of one attempt; see `Subagent` for the arguments."""
        shared: Any = {"sandbox": sandbox, "journal": journal, "lease": lease, "ends_at": ends_at}
        if definition.a2a is not None:
            turns.end()  # it works elsewhere
            return self.create_remote(self.services, spec, definition, definition.a2a, **shared)
        if definition.acp is not None:
            turns.end()  # it computes in the sandbox
            shared["checkpoint_seconds"] = self.checkpoint_seconds
            return self.create_coding(
                self.services, spec, definition, definition.acp, limits, **shared
            )
        if spec.script is not None:
            turns.end()  # it computes in a process of its own
            return ScriptWorker(
                self.services, spec, definition, limits, default_model=self.default_model, **shared
            )
        return Subagent(self, spec, definition, limits, turns=turns, **shared)


class Subagent:
    """One agent on one task in one sandbox.

    `usage` may be read at any time, also after a failure.

    Args:
        factory: What all agents of this worker share.
        spec: The job.
        definition: The definition of the job's agent.
        limits: The job's limits.
        ends_at: When the job's time is over, on `elapsed_clock`.
        sandbox: The sandbox in which the agent works.
        journal: The attempt's journal.
        lease: The attempt's lease.
        turns: Those of the agent; each request to a model ends one.
    """

    def __init__(
        self,
        factory: SubagentFactory,
        spec: JobSpec,
        definition: AgentDefinition,
        limits: Limits,
        *,
        ends_at: float,
        sandbox: LazySandbox,
        journal: AttemptJournal,
        lease: HeldLease,
        turns: Turns,
    ) -> None:
        services = factory.services
        self._spec = spec
        self._definition = definition
        self._limits = limits
        self._model = model_names(spec, definition, factory.default_model)
        self._make_tools = factory.make_tools
        self._model_states = JobModelStates(
            services.ledger.models, factory.answered_at, spec.root_id
        )
        self._limits_of_agent = services.limits_of_agent(spec.agent)
        self._max_output_tokens = factory.max_output_tokens
        self._max_result_tokens = factory.max_result_tokens
        self._schema = spec.output_schema or definition.output_schema
        self._sandbox = sandbox
        self._journal = journal
        reworks = max_reworks(spec, definition)
        self._verifier = Verifier(
            spec.verify or definition.verify,
            reworks,
            sandbox=sandbox,
            journal=journal,
            ends_at=ends_at,
        )
        self._rate_limiter = JournaledRateLimiter(factory.rate_limiter, journal, turns.end)
        self._turns = turns
        self._streaming = text_mode(streamed=factory.stream_text)
        self._shared = SharedBudget(services, spec)
        self._reservations = JobReservations(
            services.ledger.reservations, self._shared, lease, journal
        )
        self._used = JobUsage(self._shared)
        self.children = Children(
            services,
            spec,
            definition,
            sandbox=sandbox,
            journal=journal,
            lease=lease,
            max_reworks=reworks,
            ends_at=ends_at,
            used=self._used.charged,
        )
        self.checkpoints = Checkpoints(
            sandbox,
            services.blobs,
            services.ledger,
            lease,
            used=self._used.own,
            interval_seconds=factory.checkpoint_seconds,
        )

    @property
    def usage(self) -> Usage:
        """What the agent has used so far, earlier attempts included."""
        return self._used.own()

    async def run(self) -> AgentAnswer:
        """Run the agent until it answers or waits, and return which of them.

        It resumes the last attempt whose files the sandbox has.

        Raises:
            JobFailure: The run ended without an answer.
        """
        self._journal.activity.begin("start")
        history = await self._journal.history()
        self.checkpoints.load_checkpoints(history.checkpoints)
        await self.children.resume(history)
        while True:
            answer = await self._converse(history)
            is_verified = self._verifier.is_wanted or self.children.are_verified
            if not answer.is_final or not is_verified:
                return answer
            history = await self._journal.history()
            if self._verifier.is_wanted:
                answer = replace(answer, verified=await self._verifier.verify(history))
            if not self._verifier.wants_rework(history):
                merged = await self.children.verified_at_end(history, answer.verified)
                return replace(answer, merged=merged)

    async def keep(self, bundle: IO[bytes], tasks: AwaitedTasks | None) -> AwaitedTasks | None:
        """See `JobWorker.keep`."""
        await self.checkpoints.store(bundle)
        return await self.children.with_snapshot(bundle, tasks)

    async def abandon(self) -> None:
        """See `JobWorker.abandon`: its children are cancelled with it by the ledger."""

    async def _converse(self, history: History) -> AgentAnswer:
        """Run the agent from there until it answers or waits; see `run`."""
        self._used.budget = self._budget_from(history, history.events)
        has_answered = history.final_answer_index is not None
        if has_answered and not self._verifier.wants_rework(history):
            return await self._earlier_answer(history)
        await preload_client(self._model)
        app = self._app(await self._named_tools(), is_restored=history.is_restored)
        try:
            events = await self._run(app, history)
        except ModelNotOpen as error:
            wait = self._model_states.wait(error, self._limits, self._limits_of_agent)
            if not wait.most_seconds:
                raise job_failure(error) from error
            return AgentAnswer(model=wait)
        except (ModelFailed, McpServerFailed) as error:
            raise job_failure(error) from error
        return await self._answer(events)

    def _budget_from(self, history: History, events: list[Event]) -> Budget:
        """Return the budget after these events; the usage of lost work counts as well."""
        used = usage_of(history.lost, price).plus(usage_of(events, price))
        return Budget(budget_limits(self._limits), used=used, price=price, shared=self._shared.read)

    async def _earlier_answer(self, history: History) -> AgentAnswer:
        """Return the answer that the agent gave before its worker was lost; no model is asked."""
        before = self._budget_from(history, history.events[: history.final_answer_index])
        before.start_model_call()  # sets `reached` if the answer was a summary at a budget's end
        noted = limit_reached(history.events[history.final_answer_index or 0])
        self._used.budget.reached = noted or before.reached
        return await self._answer(history.events)

    async def _run(self, app: App, history: History) -> list[Event]:
        """Run until the agent ends or waits, and return all events of this job in the session."""
        sessions = JournaledSessions(self._journal)
        runner = Runner(app=app, session_service=sessions)
        session = await sessions.create_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=self._spec.id
        )
        before = [*history.earlier, *history.events]
        await sessions.replay(session, [with_ended_processes(event) for event in before])
        for event in repair_events(history):
            await self.children.repeat(event, history.events)
            await settle_results(event, app, session.state)
            await sessions.append_event(session, event)
        decisions = history.decisions(self._spec.id)
        results = None if decisions is None else await self.children.results(history)
        if decisions is None or results is None:
            return history.events
        if decisions:
            await self._sandbox.opened()  # before a call that was approved begins
        for _, of_reply in groupby(results, lambda result: result[0].made.event.id):
            event = results_event(list(of_reply))
            await settle_results(event, app, session.state)
            await sessions.append_event(session, event)
        start = self._start(history, decisions)
        live_log = LiveLog(self._journal, agent_identifier(self._definition.name))
        run = runner.run_async(
            user_id=USER_ID,
            session_id=session.id,
            run_config=RunConfig(
                max_llm_calls=NO_LIMIT_OF_ADK,
                streaming_mode=self._streaming,
                telemetry=run_telemetry(),
            ),
            **start,
        )
        try:
            with (
                watched_by(self._journal.activity),
                asked_through(self._model_states),
                reserving(self._reservations),
            ):
                async with contextlib.aclosing(run) as stream:
                    async for event in stream:
                        await live_log.add(event)
        except BaseException as error:
            # Frames of ADK refer to the error, whose traceback refers to them: all that the agent
            # had would be left to a collection of all garbage.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            await runner.close()
        ended = await sessions.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session.id
        )
        return ended.events[len(history.earlier) :] if ended else []

    def _start(self, history: History, decisions: Decisions) -> dict[str, Any]:
        """Return the runner's arguments: the run to resume, or the next message to the agent.

        That is the answers of people, the rejection of its last answer, or the task.
        """
        if decisions:
            return {"new_message": answers_message(decisions)}
        if self._verifier.wants_rework(history):
            return {"new_message": rejection(history.verifications[-1])}
        if history.events:
            return {"invocation_id": history.events[-1].invocation_id}
        return {"new_message": self._task()}

    async def _named_tools(self) -> NamedTools:
        """Return the tools that the definition names besides the built-in ones.

        Raises:
            InvalidJob: One of them cannot be used.
        """
        if not self._definition.named_tools:
            return NO_TOOLS
        named = await self._make_tools(self._definition.named_tools, self._model)
        for name, why in named.left_out.items():
            await self._notify(f"the agent is used without {name}: {why}")
        return named

    def _app(self, named: NamedTools, *, is_restored: bool) -> App:
        agent = create_agent(
            self._definition,
            self._model,
            [
                *self.children.tools(),
                *mcp_tools(self._definition.mcp_servers, self._sandbox, self._journal),
            ],
            named=named,
            added_instruction=self.children.instruction()
            + (CONTINUED if self._spec.continues else "")
            + (WORKSPACE_RESTORED if is_restored else ""),
            files_folder=f"{self._sandbox.home}/{definition_files.FOLDER}",
            max_output_tokens=self._max_output_tokens,
            max_result_tokens=self._max_result_tokens,
            backend=self._sandbox,
            output_schema=self._schema,
            is_subagent=True,
            inherited_interrupt_on=self._spec.interrupt_on,
            inbox=self._journal.messages,
            fatal_errors=FATAL_ERRORS,
            rate_limiter=self._rate_limiter,
            notify=self._notify,
        )
        return create_deep_app(
            agent,
            name=APP_NAME,
            plugins=[
                TurnsPlugin(self._turns),
                CheckpointPlugin(self.checkpoints),
                OpeningPlugin(self._sandbox, unguarded_tools(self._spec, self._definition)),
                JournalPlugin(self._journal),
            ],
            budget=self._used.budget,
        )

    async def _notify(self, sentence: str) -> None:
        await self._journal.note(EventType.LOG, {"stream": "agent", "text": sentence})

    def _task(self) -> types.Content:
        """Return the job's first message: the description and the context that the parent gave."""
        spec = self._spec
        return task_message(spec.description, spec.context or "", forked=spec.inherit is not None)

    async def _answer(self, events: list[Event]) -> AgentAnswer:
        approvals = waiting_approvals(self._spec.id, events)
        tasks = self.children.awaited(events)
        if approvals or tasks is not None:
            return AgentAnswer(approvals=approvals, tasks=tasks)
        last = last_reply(events)
        text = text_of(last)
        summary = summary_of(text, MAX_SUMMARY_CHARACTERS)
        if reached := self._used.budget.reached:
            return AgentAnswer(summary=summary, limit=reached)
        if last is None or last.error_code or not text.strip():
            raise AgentFailed(_why_no_answer(last))
        if self._schema is None:
            return AgentAnswer(summary=summary)
        try:
            output = await asyncio.to_thread(OutputSchema(self._schema).parse, text)
            return AgentAnswer(summary=summary, output=output)
        except (OutputMismatch, ValueError) as error:
            raise AgentFailed("The agent's answer does not fit its output_schema.") from error


def _why_no_answer(last: Event | None) -> str:
    """Return the error text; it quotes only our own messages, because others may hold content."""
    if last is not None and last.error_code in {REPEATED_CALL, *REPLY_ERRORS}:
        return str(last.error_message)
    return say_ending(last.error_code if last else None)
