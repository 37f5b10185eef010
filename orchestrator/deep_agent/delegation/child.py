"""One delegated task in this process: a sub-agent's run in its own session, and what came of it.

An agent that a program made itself is bound by its parent's approval policy, and so is every
LlmAgent below it. In those that ADK's own agents run, the gate comes after the agent's callbacks,
so that it sees a call as it would run. A plugin checks all others: agents that a custom agent keeps
in its fields, nodes of a workflow, agents that are tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any
from uuid import uuid4

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import JsonValue

from ...approvals import InterruptOn
from ...cancellation import cancel_or_abandon
from ...logs import Logger, describe_error
from ..adk_internals import StreamingMode, keep_failures, kept_failure
from ..approval import (
    ApprovalGate,
    PendingApproval,
    pending_approvals,
)
from ..budget import shared_budget, usage_of
from ..failures import ModelFailed, ToolMistake
from ..interruptible_tools import interruptible
from ..messages import last_reply, summary_of, text_of
from ..models.facts import price
from ..models.replies import say_ending
from ..prompts import FORKED_TASK
from ..structured_output import OutputMismatch, OutputSchema
from .apply_changes import AppliedChanges
from .child_files import ChildFiles
from .roster import ABANDON_SECONDS, RosterMember
from .task_record import TaskRecord
from .task_tools import Emit

log = Logger(__name__)

MAX_SUMMARY_CHARACTERS = 80_000
"""About the 20,000 tokens above which a tool result goes to a file: a longer message ran away."""

PROGRESS_AUTHOR = "task"
"""The author of the lines that name a child's tool calls."""

APP_NAME = "subagent"
USER_ID = "parent"

_COPIED = (LlmAgent, LoopAgent, ParallelAgent, SequentialAgent)
"""Agents that find their sub-agents only in `sub_agents`, so that copies may take their place."""


@dataclass(frozen=True)
class Question:
    """A child's question to a person, which its parent's run asks."""

    pending: PendingApproval
    saved: dict[str, JsonValue]
    """The child, to go on in any process."""


class Child:
    """A sub-agent at work on one task.

    Args:
        member: The sub-agent.
        run: Its run.
        files: Its files.
        task_id: The id of the task in its record.
        call_id: The parent's call.
        follows_conversation: Whether its task follows its parent's conversation.
    """

    def __init__(
        self,
        member: RosterMember,
        run: ChildRun,
        files: ChildFiles,
        *,
        task_id: str,
        call_id: str,
        follows_conversation: bool,
    ) -> None:
        self.task_id = task_id
        self._member = member
        self._run = run
        self._files = files
        self._call_id = call_id
        self._follows_conversation = follows_conversation
        self._answers: dict[str, JsonValue] = {}
        self._started = time.monotonic()
        self._is_over = False

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return the context in which it may work."""
        return self._files.opened()

    def load(self, saved: Mapping[str, Any], answer: ToolConfirmation | None) -> None:
        """Go on from a question.

        Args:
            saved: `Question.saved`.
            answer: The person's answer; None if another child's question was answered.
        """
        self._run.load(saved["run"])
        self._files.load(saved["files"])
        self._answers = dict(saved["answers"])
        asked = self._unanswered()
        if asked is not None and answer is not None:
            self._answers[asked.confirmation_id] = answer.model_dump(mode="json", by_alias=True)

    async def work(
        self, description: str, context: str, seconds: float | None, emit: Emit
    ) -> TaskRecord | Question:
        """Work until the task is done, a person is asked, or the time is over.

        A child that does not end when it is stopped is left behind, and nothing that it still does
        is kept or shown.

        Args:
            description: The task.
            context: Further information that its parent gave.
            seconds: The time limit; None for no limit.
            emit: Called with each progress event.

        Raises:
            Exception: Whatever ended the run; `failed` makes a record of it.
        """
        self._started = time.monotonic()
        task = task_message(description, context, forked=self._follows_conversation)
        running = asyncio.create_task(self._continue_run(task, emit))
        try:
            await asyncio.wait([running], timeout=seconds)
            in_time = running.done()
        finally:
            if not await cancel_or_abandon(ABANDON_SECONDS, running):
                self._is_over = True
                log.warning("sub-agent ignores its end and was left behind", task=self.task_id)
        if not in_time:
            return await self.failed(f"It was stopped after {seconds:g} seconds.")
        running.result()
        if asked := self._unanswered():
            saved: dict[str, JsonValue] = {
                "run": self._run.dump(),
                "files": self._files.dump(),
                "answers": self._answers,
            }
            return Question(asked, saved)
        return await self._finished()

    async def _continue_run(self, task: types.Content, emit: Emit) -> None:
        questions = self._run.questions
        # A paused run needs all answers at once.
        if len(self._answers) == len(questions):
            message = answers_message(self._answers) if questions else task
            await self._run.resume(message, lambda event: self._report(event, emit))
            self._answers = {}

    def _unanswered(self) -> PendingApproval | None:
        """Return the oldest question without an answer."""
        asked = self._run.questions
        return next((one for one in asked if one.confirmation_id not in self._answers), None)

    async def _finished(self) -> TaskRecord:
        if self._run.error is not None:
            return await self.failed(self._run.error)
        text = self._run.text
        try:
            output = await asyncio.to_thread(self._output, text)
        except OutputMismatch as mismatch:
            return await self.failed(f"Its answer does not fit its output_schema: {mismatch}")
        # The time limit does not hold for this, so that all files are merged or none.
        done = await self._files.finish()
        return await self._record(summary=text, output=output, done=done, note=self._files.note)

    async def failed(self, reason: str | Exception) -> TaskRecord:
        """Return the record of a failure.

        The text of an unexpected exception is left out, because it may contain anything.
        """
        if isinstance(reason, Exception):
            known = isinstance(reason, (ModelFailed, ToolMistake))
            log.warning("sub-agent failed", **describe_error(reason))
            unexpected = f"The sub-agent failed unexpectedly ({type(reason).__name__})."
            reason = str(reason) if known else unexpected
        return await self._record(
            error=reason,
            done=await self._files.left_behind(),
            note=self._files.note_on_failure,
        )

    def _output(self, text: str) -> JsonValue:
        schema = self._member.output_schema
        value: JsonValue = OutputSchema(schema).parse(text) if schema is not None else None
        return value

    async def _record(
        self, *, summary: str = "", done: AppliedChanges, **more: JsonValue
    ) -> TaskRecord:
        usage = asdict(await asyncio.to_thread(usage_of, self._run.events, price))
        return TaskRecord.model_validate(
            {
                "task_id": self.task_id,
                "agent": self._member.name,
                "summary": summary_of(summary, MAX_SUMMARY_CHARACTERS),
                "files_modified": [
                    {"path": file.path, "change": file.change} for file in done.applied
                ],
                "merge": {
                    "applied": len(done.applied),
                    "conflicts": [asdict(conflict) for conflict in done.conflicts],
                },
                "execution_seconds": round(time.monotonic() - self._started, 3),
                "usage": {name: value for name, value in usage.items() if value is not None},
                **more,
            }
        )

    def _report(self, event: Event, emit: Emit) -> None:
        """Emit the names of the child's tool calls, and its text while it streams."""
        if self._is_over:
            return
        if not event.partial:
            for call in event.get_function_calls():
                emit(self._progress(PROGRESS_AUTHOR, f"{self._member.name} {call.name}\n"))
        elif text := text_of(event):
            known = event.custom_metadata or {}
            emit(self._progress(event.author or self._member.name, text, known))

    def _progress(self, author: str, text: str, known: Mapping[str, Any] | None = None) -> Event:
        mine = {"subagent": self._member.name, "call_id": self._call_id, "task_id": self.task_id}
        return Event(
            author=author,
            partial=True,
            # What a child's own child says keeps the name of that one.
            custom_metadata={**mine, **(known or {})},
            content=types.Content(role="model", parts=[types.Part(text=text)]),
        )


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
        with shared_budget(self._parent, session.id), kept_failure(self._agent) as kept:
            async with contextlib.aclosing(run) as stream:
                async for event in stream:
                    if not event.partial:
                        self._events.append(event)  # what a run has used counts also if it fails
                    if streams or not event.partial:
                        emit(event)
        if kept.error is not None:
            raise kept.error
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
        return final_answer(self._agent, self.events)

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
        forked: It follows its parent's conversation.
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


class InheritedApproval(BasePlugin):
    """Applies a parent's approval policy to a ready agent and all below it.

    Args:
        policy: The parent's policy.
    """

    def __init__(self, policy: InterruptOn) -> None:
        # A ready agent's own sub-agents have the plugins of both, and ADK wants unique names.
        super().__init__(name=f"inherited_approval_{uuid4().hex}")
        self._gate = ApprovalGate({}, policy, known=())

    def guarded(self, node: BaseNode) -> BaseNode:
        """Return an agent whose calls the gate checks as they would run, and a limit can end."""
        if not isinstance(node, _COPIED):
            return node
        below = [self.guarded(agent) for agent in node.sub_agents]
        update: dict[str, Any] = {"sub_agents": below} if below else {}
        if isinstance(node, LlmAgent):
            callbacks = node.canonical_before_tool_callbacks
            update["before_tool_callback"] = [*callbacks, self._gate.before_tool]
            update["tools"] = [interruptible(tool) for tool in node.tools]
        guarded = node.clone(update)
        if isinstance(guarded, LlmAgent):
            keep_failures(guarded)
        return guarded

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Check the calls of agents that could not be guarded."""
        agent = tool_context.get_invocation_context().agent
        if isinstance(agent, LlmAgent):
            gates = (
                getattr(each, "__self__", None) for each in agent.canonical_before_tool_callbacks
            )
            if any(gate is self._gate for gate in gates):
                return None
        return await self._gate.before_tool(tool, tool_args, tool_context)


def final_answer(node: BaseNode, events: Sequence[Event]) -> str:
    """Return the answer that an agent's run ended with; empty if there is none.

    It is the last message; of a ParallelAgent the last one of each branch; of a workflow the output
    of its last node, if it has one.

    Args:
        node: The agent.
        events: What its run has made.
    """
    if isinstance(node, ParallelAgent):
        parts = {
            branch.name: final_answer(branch, _list_events(branch, events))
            for branch in node.sub_agents
        }
        return "\n\n".join(f"{name}:\n{text}" for name, text in parts.items() if text)
    if not isinstance(node, BaseAgent):
        outputs = (event.output for event in reversed(events) if event.output is not None)
        if (output := next(outputs, None)) is not None:
            return output if isinstance(output, str) else json.dumps(output, default=str)
    return text_of(last_reply(events))


def _list_events(agent: BaseAgent, events: Sequence[Event]) -> list[Event]:
    names = {agent.name, *(below.name for below in _all_below(agent))}
    return [event for event in events if event.author in names]


def _all_below(agent: BaseAgent) -> list[BaseAgent]:
    return [each for below in agent.sub_agents for each in (below, *_all_below(below))]
