"""A sub-agent: an agent definition and a sandbox become one ADK run with a journaled session."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types
from pydantic import JsonValue

from orchestrator.configuration.agent_definitions import AgentDefinition
from orchestrator.deep_agent import (
    REPEATED_CALL,
    WORKSPACE_RESTORED,
    Account,
    Budget,
    McpServerFailed,
    ModelFailed,
    ModelUsage,
    OutputMismatch,
    OutputSchema,
    agent_identifier,
    answers_message,
    create_deep_app,
    last_reply,
    preload_client,
    price,
    results_event,
    summary_of,
    text_mode,
    text_of,
    usage_of,
)
from orchestrator.delegation.agents import budget_limits, create_agent, job_failure
from orchestrator.jobs.approvals import Approval
from orchestrator.jobs.failures import (
    AgentFailed,
    JobFailure,
    LeaseLost,
    LedgerUnavailable,
    LimitReached,
    SandboxFailure,
)
from orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, Usage
from orchestrator.jobs.spec import JobSpec, Limits
from orchestrator.jobs.store.rate_limiter import RateLimiter
from workers.agent.agent_files import copy_definition_files
from workers.agent.checkpoint import CheckpointPlugin, Checkpoints
from workers.agent.children import Children
from workers.agent.live_log import LiveLog
from workers.agent.mcp_servers import mcp_tools
from workers.agent.model_gate import JournaledRequests
from workers.agent.past import Decisions, Past, approvals_of, mended
from workers.agent.services import JobServices
from workers.agent.session_journal import (
    AttemptJournal,
    JournaledSessions,
    JournalPlugin,
)
from workers.agent.shared_budget import SharedBudget, beyond
from workers.heartbeat import HeldLease
from workers.sandbox import Sandbox

APP_NAME = "fanout_job"
USER_ID = "job"
NO_LIMIT_OF_ADK = 1_000_000
"""Our budget counts model calls, over all attempts; ADK's own counter only knows this run."""
FATAL_ERRORS = (SandboxFailure, LeaseLost, LedgerUnavailable)
"""What a tool must not turn into text for the model: the agent could do nothing about it."""


@dataclass(frozen=True)
class AgentAnswer:
    """What an agent's run brought."""

    summary: str = ""
    output: JsonValue = None
    limit: str | None = None
    """The budget that ended the run, in words."""
    approvals: tuple[Approval, ...] = ()
    """What the run waits for; it is not at its end then."""
    children: tuple[JobSpec, ...] | None = None
    """The jobs that it waits for, likewise; None when it delegated nothing."""


@dataclass(frozen=True, kw_only=True)
class SubagentFactory:
    """Makes the agents of a worker's attempts."""

    services: JobServices
    default_model: str
    """The model of an agent for which neither its job nor its definition names one."""
    rate_limiter: RateLimiter
    stream_text: bool = False
    """Whether replies are streamed into the journal."""
    checkpoint_seconds: float = 0
    """Between two checkpoints; 0 takes none at intervals."""

    def create(
        self,
        spec: JobSpec,
        definition: AgentDefinition,
        limits: Limits,
        *,
        ends_at: float,
        sandbox: Sandbox,
        journal: AttemptJournal,
        lease: HeldLease,
    ) -> Subagent:
        """Return the agent of one attempt; see `Subagent` for the arguments."""
        return Subagent(
            self,
            spec,
            definition,
            limits,
            ends_at=ends_at,
            sandbox=sandbox,
            journal=journal,
            lease=lease,
        )


class Subagent:
    """One agent on one task in one sandbox.

    `usage` may be read at any time, also after a failure.

    Args:
        made_by: what all agents of this worker share.
        spec: the job.
        definition: the definition of the job's agent.
        limits: the job's limits.
        ends_at: when the job's time is over, on `elapsed_clock`.
        sandbox: where the agent works.
        journal: the attempt's journal.
        lease: the attempt's lease.
    """

    def __init__(
        self,
        made_by: SubagentFactory,
        spec: JobSpec,
        definition: AgentDefinition,
        limits: Limits,
        *,
        ends_at: float,
        sandbox: Sandbox,
        journal: AttemptJournal,
        lease: HeldLease,
    ) -> None:
        services = made_by.services
        self._spec = spec
        self._definition = definition
        self._limits = limits
        self._model = spec.model or definition.model or made_by.default_model
        self._schema = spec.output_schema or definition.output_schema
        self._sandbox = sandbox
        self._journal = journal
        self._rate_limiter = JournaledRequests(made_by.rate_limiter, journal)
        self._streaming = text_mode(streamed=made_by.stream_text)
        self._budget = Budget()
        self._shared = SharedBudget(services, spec)
        self._of_children = ModelUsage()
        self.children = Children(services, spec, definition, ends_at=ends_at, used=self._charged)
        self.checkpoints = Checkpoints(
            sandbox,
            services.blobs,
            services.ledger,
            lease,
            used=lambda: self.usage,
            interval_seconds=made_by.checkpoint_seconds,
        )

    @property
    def usage(self) -> Usage:
        """What the agent has consumed so far, earlier attempts included."""
        return Usage.model_validate(vars(self._budget.usage))

    async def run(self) -> AgentAnswer:
        """Run the agent to its answer, from where the last attempt stopped whose files it has.

        Raises:
            JobFailure: the run ended without an answer.
        """
        past = await self._journal.past()
        self.checkpoints.went_on_from(past.checkpoint)
        self._budget = self._budget_after(past, past.events)
        if past.answer_at is not None:
            return self._answer_again(past, past.answer_at)
        files_folder = await copy_definition_files(self._definition, self._sandbox)
        await preload_client(self._model)
        app = self._app(files_folder, is_restored=past.is_restored)
        try:
            events = await self._run(app, past)
        except (ModelFailed, McpServerFailed) as error:
            raise job_failure(error) from error
        return self._answer(events)

    def _budget_after(self, past: Past, events: list[Event]) -> Budget:
        """The account after these events; what was paid for work that is lost counts as well."""
        used = usage_of(past.lost, price).plus(usage_of(events, price))
        return Budget(
            budget_limits(self._limits), used=used, price=price, shared=self._read_accounts
        )

    def _answer_again(self, past: Past, answer_at: int) -> AgentAnswer:
        """The answer of an agent whose worker was lost after it was given.

        The model is not asked again.
        """
        before = self._budget_after(past, past.events[:answer_at])
        before.start_model_call()  # whether the budget let it go on, or made it sum up
        self._budget.reached = before.reached
        return self._answer(past.events)

    async def _run(self, app: App, past: Past) -> list[Event]:
        """Run to the end, or until a person or a child is needed; all events of the session."""
        sessions = JournaledSessions(self._journal)
        runner = Runner(app=app, session_service=sessions)
        session = await sessions.create_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=self._spec.id
        )
        await sessions.replay(session, past.events)
        for event in mended(past):
            await sessions.append_event(session, event)
        decisions = past.decisions(self._spec.id)
        results = None if decisions is None else await self.children.results(past, self._sandbox)
        if decisions is None or results is None:
            return past.events
        for _, of_reply in groupby(results, lambda result: result[0].made.event.id):
            await sessions.append_event(session, results_event(list(of_reply)))
        start = self._start(past.events, decisions)
        live = LiveLog(self._journal, agent_identifier(self._definition.name))
        run = runner.run_async(
            user_id=USER_ID,
            session_id=session.id,
            run_config=RunConfig(max_llm_calls=NO_LIMIT_OF_ADK, streaming_mode=self._streaming),
            **start,
        )
        try:
            async with contextlib.aclosing(run) as stream:
                async for event in stream:
                    await live.take(event)
        finally:
            await runner.close()
        ended = await sessions.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session.id
        )
        return ended.events if ended else []

    def _start(self, past: list[Event], decisions: Decisions) -> dict[str, Any]:
        """What the runner begins with.

        What people decided, the point where it was left, or the task.
        """
        if decisions:
            return {"new_message": answers_message(decisions)}
        return {"invocation_id": past[-1].invocation_id} if past else {"new_message": self._task()}

    def _app(self, files_folder: str, *, is_restored: bool) -> App:
        agent = create_agent(
            self._definition,
            self._model,
            [*self.children.tools(), *mcp_tools(self._definition.mcp_servers, self._sandbox)],
            added_instruction=self.children.words() + (WORKSPACE_RESTORED if is_restored else ""),
            files_folder=files_folder,
            backend=self._sandbox,
            output_schema=self._schema,
            is_subagent=True,
            inherited_interrupt_on=self._spec.interrupt_on,
            inbox=self._journal.messages,
            fatal_errors=FATAL_ERRORS,
            rate_limiter=self._rate_limiter,
        )
        return create_deep_app(
            agent,
            name=APP_NAME,
            plugins=[CheckpointPlugin(self.checkpoints), JournalPlugin(self._journal)],
            budget=self._budget,
        )

    async def _read_accounts(self) -> Sequence[Account]:
        accounts = await self._shared.read()
        self._of_children = beyond(self._shared.used, self._budget.usage)
        return accounts

    def _charged(self) -> ModelUsage:
        """What counts against the budgets that were set for the job: its children's use too."""
        return self._budget.usage.plus(self._of_children)

    def _task(self) -> types.Content:
        """What the agent is told.

        The description and the context that its parent gave, nothing else.
        """
        text = self._spec.description
        if self._spec.context:
            text += f"\n\n<context>\n{self._spec.context}\n</context>"
        return types.Content(role="user", parts=[types.Part(text=text)])

    def _answer(self, events: list[Event]) -> AgentAnswer:
        approvals = approvals_of(self._spec.id, events)
        children = self.children.specs(events)
        if approvals or children is not None:
            return AgentAnswer(approvals=approvals, children=children)
        last = last_reply(events)
        text = text_of(last)
        summary = summary_of(text, MAX_SUMMARY_CHARACTERS)
        if self._budget.reached:
            return AgentAnswer(summary=summary, limit=self._budget.reached)
        if last is None or last.error_code or not text.strip():
            raise AgentFailed(_why_no_answer(last))
        if self._schema is None:
            return AgentAnswer(summary=summary)
        try:
            return AgentAnswer(summary=summary, output=OutputSchema(self._schema).parse(text))
        except OutputMismatch as error:
            raise AgentFailed("The agent's answer does not fit its output_schema.") from error


def _why_no_answer(last: Event | None) -> str:
    """Our own reason where it can be told to anybody: other messages may quote the model."""
    if last is not None and last.error_code == REPEATED_CALL:
        return str(last.error_message)
    reason = f" ({last.error_code})" if last and last.error_code else ""
    return f"The agent ended without an answer{reason}."


def limit_failure(answer: AgentAnswer) -> JobFailure | None:
    """The failure that a used-up budget is; the run ended in order all the same."""
    return LimitReached(answer.limit) if answer.limit else None
