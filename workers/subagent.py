"""A sub-agent: an agent definition and a sandbox become one ADK run with a journaled session."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types
from pydantic import JsonValue

from config.agent_definitions import AgentDefinition
from orchestrator.deep_agent.budget import Budget, BudgetLimits, ModelUsage
from orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from orchestrator.deep_agent.failures import ModelFailed
from orchestrator.deep_agent.models import resolve_model
from orchestrator.deep_agent.structured_output import OutputMismatch, OutputSchema
from orchestrator.deep_agent.summary import summary_of
from orchestrator.jobs.failures import (
    AgentFailed,
    InvalidJob,
    JobFailure,
    LeaseLost,
    LedgerUnavailable,
    LimitReached,
    ModelUnavailable,
    SandboxFailure,
)
from orchestrator.jobs.result import MAX_SUMMARY_CHARACTERS, Usage
from orchestrator.jobs.spec import JobSpec, Limits
from workers.sandbox.backend import SandboxBackend
from workers.sandbox.protocol import Sandbox
from workers.session_journal import (
    AttemptJournal,
    JournaledSessions,
    JournalPlugin,
    interruption,
    unanswered_calls,
)

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


class Subagent:
    """One agent on one task in one sandbox. `usage` may be read at any time, also after a failure."""

    def __init__(
        self,
        spec: JobSpec,
        definition: AgentDefinition,
        limits: Limits,
        *,
        default_model: str,
        sandbox: Sandbox,
        journal: AttemptJournal,
    ) -> None:
        self._spec = spec
        self._definition = definition
        self._limits = limits
        self._model = spec.model or definition.model or default_model
        self._schema = spec.output_schema or definition.output_schema
        self._sandbox = sandbox
        self._journal = journal
        self._budget = Budget()

    @property
    def usage(self) -> Usage:
        """What the agent has consumed so far, earlier attempts included."""
        return Usage.model_validate(vars(self._budget.usage))

    async def run(self, *, resume: bool) -> AgentAnswer:
        """Run the agent to its answer; `resume` goes on where the last attempt stopped.

        Raises:
            JobFailure: the run ended without an answer.
        """
        past = await self._journal.past_events() if resume else []
        self._budget = Budget(self._budget_limits(), used=_usage_of(past))
        try:
            app = self._app()
        except ValueError as error:  # a model's name or key, a tool's name, the schema
            raise InvalidJob(str(error)) from error
        try:
            events = await self._run(app, past)
        except ModelFailed as error:
            raise (ModelUnavailable if error.retryable else AgentFailed)(str(error)) from error
        return self._answer(events)

    async def _run(self, app: App, past: list[Event]) -> list[Event]:
        sessions = JournaledSessions(self._journal)
        runner = Runner(app=app, session_service=sessions)
        session = await sessions.create_session(app_name=APP_NAME, user_id=USER_ID, session_id=self._spec.id)
        if past:
            await sessions.replay(session, past)
            calls = unanswered_calls(past)
            if calls:
                caller = calls[-1][0]
                await sessions.append_event(session, interruption(caller, [call for _, call in calls]))
        start = {"invocation_id": past[-1].invocation_id} if past else {"new_message": self._task()}
        events = list(past)
        run = runner.run_async(
            user_id=USER_ID,
            session_id=session.id,
            run_config=RunConfig(max_llm_calls=NO_LIMIT_OF_ADK),
            **start,
        )
        async with contextlib.aclosing(run) as stream:
            events += [event async for event in stream if not event.partial]
        await runner.close()
        return events

    def _app(self) -> App:
        agent = create_deep_agent(
            resolve_model(self._model, agent_name=self._definition.name),
            instruction=self._definition.instruction,
            backend=SandboxBackend(self._sandbox),
            built_in_tools=self._definition.tools,
            output_schema=self._schema,
            name=self._definition.name,
            description=self._definition.description,
            is_subagent=True,
            skills=self._definition.skills,
            memory=self._definition.memory,
            interrupt_on=self._definition.interrupt_on,  # refused in words until it is there, never ignored
            fatal_errors=FATAL_ERRORS,
        )
        return create_deep_app(
            agent,
            name=APP_NAME,
            plugins=[JournalPlugin(self._journal)],
            budget=self._budget,
        )

    def _budget_limits(self) -> BudgetLimits:
        return BudgetLimits(
            max_model_calls=self._limits.max_model_calls,
            max_tokens=self._limits.max_tokens,
            max_cost_usd=self._limits.max_cost_usd,
        )

    def _task(self) -> types.Content:
        """What the agent is told: the description and the context that its parent gave, nothing else."""
        text = self._spec.description
        if self._spec.context:
            text += f"\n\n<context>\n{self._spec.context}\n</context>"
        return types.Content(role="user", parts=[types.Part(text=text)])

    def _answer(self, events: list[Event]) -> AgentAnswer:
        last = _last_reply(events)
        text = _text(last)
        summary = summary_of(text, MAX_SUMMARY_CHARACTERS)
        if self._budget.reached:
            return AgentAnswer(summary=summary, limit=self._budget.reached)
        if last is None or last.error_code or not text.strip():
            reason = f" ({last.error_code})" if last and last.error_code else ""
            raise AgentFailed(f"The agent ended without an answer{reason}.")
        if self._schema is None:
            return AgentAnswer(summary=summary)
        try:
            return AgentAnswer(summary=summary, output=OutputSchema(self._schema).parse(text))
        except OutputMismatch as error:
            raise AgentFailed("The agent's answer does not fit its output_schema.") from error


def limit_failure(answer: AgentAnswer) -> JobFailure | None:
    """The failure that a used-up budget is; the run ended in order all the same."""
    return LimitReached(answer.limit) if answer.limit else None


def _last_reply(events: list[Event]) -> Event | None:
    """The model's last reply, or what stands in its place; later events are ADK's bookkeeping."""
    replies = (event for event in reversed(events) if event.error_code or _text(event).strip())
    return next(replies, None)


def _text(event: Event | None) -> str:
    """What the model says in an event, its thoughts left out."""
    if event is None or event.content is None or event.content.role != "model":
        return ""
    return "".join(part.text for part in event.content.parts or [] if part.text and not part.thought)


def _usage_of(events: list[Event]) -> ModelUsage:
    """What earlier attempts consumed, from their journaled replies."""
    replies = [event.usage_metadata for event in events if event.content and event.content.role == "model"]
    known = [usage for usage in replies if usage is not None]
    return ModelUsage(
        model_calls=len(replies),
        input_tokens=sum(usage.prompt_token_count or 0 for usage in known),
        output_tokens=sum(usage.candidates_token_count or 0 for usage in known),
        cached_tokens=sum(usage.cached_content_token_count or 0 for usage in known),
        tool_calls=sum(len(event.get_function_responses()) for event in events),
    )
