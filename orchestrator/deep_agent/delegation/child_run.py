"""One run of a sub-agent in this process.

A session of its own, from which only the end comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from pydantic import JsonValue

from orchestrator.deep_agent.approval.requests import PendingApproval, pending_approvals
from orchestrator.deep_agent.guards.budget_plugin import shared_budget

APP_NAME = "subagent"
USER_ID = "parent"

Emit = Callable[[Event], None]


class ChildRun:
    """A sub-agent's run, from its task or from where it had stopped to ask.

    The parent's plugins watch it too, so its budget is theirs; nothing else of the parent reaches
    it.
    """

    def __init__(
        self, agent: LlmAgent, parent: InvocationContext, past: Sequence[JsonValue] = ()
    ) -> None:
        self._agent = agent
        self._parent = parent
        self.events = [Event.model_validate(event) for event in past]
        """All complete events of the child's session so far."""

    async def go_on(self, message: types.Content, emit: Emit) -> None:
        """Run until the child answers or asks; whatever ends a run in ADK is raised."""
        sessions = InMemorySessionService()
        session = await sessions.create_session(app_name=APP_NAME, user_id=USER_ID)
        for event in self.events:
            await sessions.append_event(session, event)
        # A Runner looks on the disk for where its agent was written.
        runner = await asyncio.to_thread(Runner, app=self._app(), session_service=sessions)
        runner.plugin_manager.set_skip_closing_plugins(True)
        most = self._parent.run_config.max_llm_calls if self._parent.run_config else 0
        run = runner.run_async(
            user_id=USER_ID,
            session_id=session.id,
            new_message=message,
            run_config=RunConfig(max_llm_calls=most),
        )
        with shared_budget(self._parent, session.id):
            async with contextlib.aclosing(run) as stream:
                async for event in stream:
                    if not event.partial:
                        emit(event)
        stored = await sessions.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session.id
        )
        self.events = stored.events if stored else []

    def _app(self) -> App:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=r"\[EXPERIMENTAL\]"
            )  # known, and pinned by our tests
            resumability = ResumabilityConfig(is_resumable=True)
        return App(
            name=APP_NAME,
            root_agent=self._agent,
            plugins=list(self._parent.plugin_manager.plugins),
            context_cache_config=self._parent.context_cache_config,
            resumability_config=resumability,
        )

    @property
    def questions(self) -> list[PendingApproval]:
        """What the child waits for a person to decide, oldest first."""
        return pending_approvals(self.events)

    @property
    def text(self) -> str:
        """The child's last message, its thoughts left out."""
        last = self._last_reply()
        return _text(last) if last else ""

    @property
    def error(self) -> str | None:
        """Why the child's last reply is no answer."""
        last = self._last_reply()
        if last is not None and last.error_code:
            return f"{last.error_code}: {last.error_message or 'the run ended there.'}"
        return None if self.text.strip() else "The sub-agent ended without an answer."

    def dump(self) -> list[JsonValue]:
        """The events as JSON, to go on from in another process."""
        return [event.model_dump(mode="json", exclude_none=True) for event in self.events]

    def _last_reply(self) -> Event | None:
        replies = (
            event for event in reversed(self.events) if event.error_code or _text(event).strip()
        )
        return next(replies, None)


def task_message(description: str, context: str) -> types.Content:
    """What a child is told: the description and the context that its parent gave, nothing else."""
    text = f"{description}\n\n<context>\n{context}\n</context>" if context.strip() else description
    return types.Content(role="user", parts=[types.Part(text=text)])


def answers_message(answers: Mapping[str, JsonValue]) -> types.Content:
    """A person's answers to a child's questions, by the ids of the questions, as ADK takes them."""
    responses = [
        types.FunctionResponse(
            id=asked, name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME, response=answer
        )
        for asked, answer in answers.items()
    ]
    return types.Content(
        role="user", parts=[types.Part(function_response=answer) for answer in responses]
    )


def _text(event: Event) -> str:
    if event.content is None or event.content.role != "model":
        return ""
    return "".join(
        part.text for part in event.content.parts or [] if part.text and not part.thought
    )
