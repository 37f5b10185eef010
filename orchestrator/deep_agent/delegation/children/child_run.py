"""One run of a sub-agent in this process, in its own session, of which only the end is returned."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import JsonValue

from fanout.orchestrator.deep_agent.adk.private_names import StreamingMode
from fanout.orchestrator.deep_agent.approval.requests import PendingApproval, pending_approvals
from fanout.orchestrator.deep_agent.delegation.children.ready_agents import answer_of
from fanout.orchestrator.deep_agent.guards.budget_plugin import shared_budget
from fanout.orchestrator.deep_agent.messages import last_reply
from fanout.orchestrator.deep_agent.models.endings import say_ending
from fanout.orchestrator.deep_agent.prompts import FORKED_TASK

APP_NAME = "subagent"
USER_ID = "parent"

Emit = Callable[[Event], None]


class ChildRun:
    """A sub-agent's run, from its task or from where it had paused for an approval.

    The parent's plugins apply to it, so it uses the parent's budget. Of the parent's conversation
    it has only what it is given.

    Args:
        agent: The sub-agent.
        parent: The context of the parent's run.
        given: A conversation that it begins with, before its task.
        plugins: More plugins for this run and those of its own sub-agents.
    """

    def __init__(
        self,
        agent: BaseNode,
        parent: InvocationContext,
        *,
        given: Sequence[Event] = (),
        plugins: Sequence[BasePlugin] = (),
    ) -> None:
        self._agent = agent
        self._parent = parent
        self._plugins = plugins
        # ADK looks for a conversation's last agent, and would warn of each that it does not know.
        self._events = [*given, Event(author=agent.name)] if given else []
        self._given = len(self._events)

    @property
    def events(self) -> list[Event]:
        """All complete events that the child itself has made so far."""
        return self._events[self._given :]

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Continue an earlier part of the run, as `dump` returned it."""
        self._events = [Event.model_validate(event) for event in dumped["events"]]
        self._given = dumped["given"]

    def dump(self) -> dict[str, JsonValue]:
        """Return the run as JSON, to continue it in another process."""
        events = [event.model_dump(mode="json", exclude_none=True) for event in self._events]
        return {"events": [*events], "given": self._given}

    async def resume(self, message: types.Content, emit: Emit) -> None:
        """Run until the child replies or asks for an approval.

        Args:
            message: The task, or the answers that the child waits for.
            emit: Called with each event; with partial ones only if the parent's run streams.

        Raises:
            Exception: Whatever ends a run in ADK, such as ModelFailed.
        """
        sessions = InMemorySessionService()
        session = await sessions.create_session(app_name=APP_NAME, user_id=USER_ID)
        for event in self._events:
            await sessions.append_event(session, event)
        # A Runner looks up the agent's source file on the disk.
        app = resumable_app(
            APP_NAME,
            self._agent,
            plugins=[*self._parent.plugin_manager.plugins, *self._plugins],
            context_cache_config=self._parent.context_cache_config,
        )
        runner = await asyncio.to_thread(Runner, app=app, session_service=sessions)
        runner.plugin_manager.set_skip_closing_plugins(True)
        settings = self._parent.run_config or RunConfig()
        run = runner.run_async(
            user_id=USER_ID,
            session_id=session.id,
            new_message=message,
            run_config=RunConfig(
                max_llm_calls=settings.max_llm_calls, streaming_mode=settings.streaming_mode
            ),
        )
        streams = settings.streaming_mode == StreamingMode.SSE
        with shared_budget(self._parent, session.id):
            async with contextlib.aclosing(run) as stream:
                async for event in stream:
                    if not event.partial:
                        self._events.append(event)  # what a run has used counts also if it fails
                    if streams or not event.partial:
                        emit(event)
        stored = await sessions.get_session(
            app_name=APP_NAME, user_id=USER_ID, session_id=session.id
        )
        self._events = stored.events if stored else []

    @property
    def questions(self) -> list[PendingApproval]:
        """The calls that wait for a person's decision, oldest first."""
        return pending_approvals(self.events)

    @property
    def text(self) -> str:
        """The child's answer, without its thoughts."""
        return answer_of(self._agent, self.events)

    @property
    def error(self) -> str | None:
        """Why the child's last reply is not an answer; None if it is."""
        last = last_reply(self.events)
        if last is not None and last.error_code:
            return last.error_message or say_ending(last.error_code)
        return None if self.text.strip() else say_ending(None)


def resumable_app(name: str, agent: BaseNode, **settings: Any) -> App:
    """Return an ADK app whose runs can be resumed.

    Args:
        name: The app's name.
        agent: Its agent.
        settings: Further fields of `App`.
    """
    return App(name=name, root_agent=agent, resumability_config=_resumability(), **settings)


@cache
def _resumability() -> ResumabilityConfig:
    with warnings.catch_warnings():
        # ADK marks it so; our tests pin the behaviour that we rely on.
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")
        return ResumabilityConfig(is_resumable=True)


def task_message(description: str, context: str, *, forked: bool = False) -> types.Content:
    """Return a child's first message.

    Args:
        description: The task.
        context: Further information that its parent gave.
        forked: It stands below its parent's conversation.
    """
    text = f"{description}\n\n<context>\n{context}\n</context>" if context.strip() else description
    text = FORKED_TASK.format(task=text) if forked else text
    return types.Content(role="user", parts=[types.Part(text=text)])


def answers_message(answers: Mapping[str, JsonValue]) -> types.Content:
    """Return the message with a person's answers to a child's questions, given by their ids."""
    responses = [
        types.FunctionResponse(
            id=asked, name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME, response=answer
        )
        for asked, answer in answers.items()
    ]
    return types.Content(
        role="user", parts=[types.Part(function_response=answer) for answer in responses]
    )
