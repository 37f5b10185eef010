"""Sub-agents in this process: delegation by one `task` tool, or by one tool for each sub-agent.

A child is a separate run: it sees the description and the context that it is given, but not its
parent's messages, plan or state, and only its last message is returned. Its changes to files are
staged, and merged into the parent's files when it has succeeded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

import structlog
from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import Field, JsonValue

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.deep_agent.approval.requests import PendingApproval
from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.delegation.apply_changes import (
    AppliedChanges,
    PathLock,
    apply_changes,
)
from fanout.orchestrator.deep_agent.delegation.child_run import (
    ChildRun,
    Emit,
    answers_message,
    task_message,
)
from fanout.orchestrator.deep_agent.delegation.roster import (
    GENERAL_PURPOSE,
    Member,
    SubAgentSpec,
    roster_of,
)
from fanout.orchestrator.deep_agent.failures import ModelFailed
from fanout.orchestrator.deep_agent.middleware import BackendSource, Middleware
from fanout.orchestrator.deep_agent.names import agent_identifier
from fanout.orchestrator.deep_agent.progress_tool import ProgressTool
from fanout.orchestrator.deep_agent.prompts import delegation_prompt
from fanout.orchestrator.deep_agent.tool import error_result

log = structlog.get_logger(__name__)

MAX_CHILDREN_AT_ONCE = 8
"""Children of one agent that run at the same time in this process; others wait in order. A few
agents already reach a provider's rate limit, and each holds its conversation in memory."""

MAX_DEPTH = 3
"""Levels of sub-agents below an agent: deeper trees multiply costs and lose the original task."""

PAUSED_CHILD_PREFIX = "subagent:"
"""Prefix of the state key of a paused child; the id of the call that started it follows."""

DelegationStyle = Literal["task", "agent_tools"]
"""One tool for all sub-agents, or one tool for each."""

Answer = dict[str, JsonValue]

Description = Annotated[
    str,
    Field(
        description="What to do, complete in itself: "
        "the sub-agent sees nothing of this conversation"
    ),
]
Context = Annotated[
    str, Field(description="What it should know besides: findings, constraints, file paths")
]
Seconds = Annotated[
    float | None, Field(gt=0, description="How long it may take; no limit of its own when left out")
]


ChildMaker = Callable[[SubAgentSpec, Backend], LlmAgent]
"""Creates a child that works on these files."""


class Subagents(Middleware):
    """The sub-agents of one agent.

    Args:
        subagents: Specifications or ready agents; a general-purpose one is added if it is missing.
        make: Creates a child from its specification.
        files: The parent's files.
        lock: Held while a file of the parent is compared and written.
        delegation: One `task` tool, or one tool for each sub-agent.
        taken: Names of the parent's other tools.
        fatal_errors: Exceptions that end the parent's run as well.

    Raises:
        ValueError: A specification is invalid, a name is taken, or the tree is too deep.
    """

    def __init__(
        self,
        subagents: Sequence[SubAgentSpec | LlmAgent],
        *,
        make: ChildMaker,
        files: BackendSource,
        lock: PathLock,
        delegation: DelegationStyle,
        taken: Collection[str],
        fatal_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._members = roster_of(subagents, taken)
        self._make = make
        self.files = files
        self.lock = lock
        self._delegation = delegation
        self._fatal = fatal_errors
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )
        no_files = StateBackend(DictState())
        probes = [(member, self.agent(member, no_files)) for member in self._members.values()]
        self.depth = 1 + max(_depth_of(probe) for _, probe in probes)
        """Levels of agents below the parent."""
        self._toolsets = [
            tool
            for member, probe in probes
            if isinstance(member.made, LlmAgent) or member.made.keys() & {"tools", "subagents"}
            for tool in probe.tools
            if isinstance(tool, BaseToolset)
        ]
        if self.depth > MAX_DEPTH:
            raise ValueError(f"Sub-agents are {self.depth} levels deep; {MAX_DEPTH} are allowed.")

    def tools(self) -> list[BaseTool]:
        """Return `task`, or one tool for each sub-agent."""
        if self._delegation == "task":
            return [_TaskTool(self)]
        return [_AgentTool(self, member) for member in self._members.values()]

    def all_tools(self) -> list[BaseTool | BaseToolset]:
        """Return the tools, and a toolset that closes the sub-agents' own toolsets."""
        return [*self.tools(), *([_ChildToolsets(self._toolsets)] if self._toolsets else [])]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain when to delegate, and to which sub-agents."""
        del context, tools
        listed = [(member.name, member.description) for member in self._members.values()]
        return delegation_prompt(listed if self._delegation == "task" else [])

    async def call(
        self,
        name: str,
        description: str,
        context: str,
        timeout_seconds: float | None,
        tool_context: ToolContext,
    ) -> AsyncGenerator[Event | Answer]:
        """Run a sub-agent: yield its progress events, then its result.

        Args:
            name: The sub-agent's name.
            description: The task.
            context: Further information for the child.
            timeout_seconds: The child's time limit; None for no limit.
            tool_context: The context of the parent's call.

        Raises:
            Exception: One of the fatal errors; every other failure is an error result.
        """
        member = self._members.get(agent_identifier(name))
        if member is None or not description.strip():
            names = ", ".join(known.name for known in self._members.values())
            yield error_result(
                "description is empty: say completely what to do."
                if member
                else f"There is no subagent_type {name!r}; there are: {names}."
            )
            return
        call = _Call(self, member, tool_context)
        steps: asyncio.Queue[Event | None] = asyncio.Queue()
        work = asyncio.create_task(
            call.run(task_message(description, context), timeout_seconds, steps.put_nowait)
        )
        work.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            while (event := await steps.get()) is not None:
                yield event
            yield await work
        finally:
            await cancel_and_wait(work)

    def agent(self, member: Member, files: Backend) -> LlmAgent:
        """Return a member's agent for one run on these files."""
        return member.made if isinstance(member.made, LlmAgent) else self._make(member.made, files)

    def slots(self) -> asyncio.Semaphore:
        """Return the semaphore of the slots in which children run, in order of arrival."""
        loop = asyncio.get_running_loop()
        return self._slots.setdefault(loop, asyncio.Semaphore(MAX_CHILDREN_AT_ONCE))

    def is_fatal(self, error: BaseException) -> bool:
        """Return whether an exception, or one of its causes, ends the parent's run too."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, self._fatal):
                return True
            cause = cause.__cause__ or cause.__context__
        return False


class _Call:
    """One call of a sub-agent, started or resumed."""

    def __init__(self, part: Subagents, member: Member, context: ToolContext) -> None:
        self._part = part
        self._member = member
        self._context = context
        self._key = f"{PAUSED_CHILD_PREFIX}{context.function_call_id}"

    async def run(self, task: types.Content, timeout_seconds: float | None, emit: Emit) -> Answer:
        """Run the child when a slot is free, and return its result."""
        async with self._part.slots():
            started = time.monotonic()
            try:
                async with asyncio.timeout(timeout_seconds) as limit:
                    answer = await self._run(task, emit)
            except Exception as error:
                if self._part.is_fatal(error):
                    raise
                timed_out = isinstance(error, TimeoutError) and limit.expired()
                answer = _failed(
                    f"It was stopped after {timeout_seconds:g} seconds." if timed_out else error
                )
        return {**answer, "execution_seconds": round(time.monotonic() - started, 3)}

    async def _run(self, task: types.Content, emit: Emit) -> Answer:
        files = self._part.files(self._context)
        overlay = OverlayBackend(files)
        paused = self._context.state.get(self._key)
        if paused:
            overlay.load(paused["files"])
        agent = self._part.agent(self._member, overlay)
        past = paused["events"] if paused else ()
        child = ChildRun(agent, self._context.get_invocation_context(), past)
        answers = self._answers(child, paused) if paused else {}
        # A paused run needs all answers at once.
        if len(answers) == len(child.questions):
            message = answers_message(answers) if paused else task
            await child.resume(message, lambda event: self._report(event, emit))
            answers = {}
        if asked := _unanswered(child, answers):
            return self._pause(asked, child, overlay, answers)
        if paused:
            self._context.state[self._key] = None
        if child.error is not None:
            return _failed(child.error)
        return _succeeded(child.text, await apply_changes(overlay, files, self._part.lock))

    def _answers(self, child: ChildRun, paused: Mapping[str, Any]) -> dict[str, JsonValue]:
        """Return the person's answers so far; the newest is the answer to this call."""
        answers: dict[str, JsonValue] = dict(paused["answers"])
        confirmation = self._context.tool_confirmation
        asked = _unanswered(child, answers)
        if asked is not None and confirmation is not None:
            answers[asked.confirmation_id] = confirmation.model_dump(mode="json", by_alias=True)
        return answers

    def _pause(
        self,
        asked: PendingApproval,
        child: ChildRun,
        overlay: OverlayBackend,
        answers: dict[str, JsonValue],
    ) -> Answer:
        """Ask the child's question in the parent's run; store the child in the parent's state."""
        self._context.state[self._key] = {
            "events": child.dump(),
            "files": overlay.dump(),
            "answers": answers,
        }
        self._context.request_confirmation(hint=asked.hint, payload=asked.payload())
        # The model must not continue with a pause as if it were a result.
        self._context.actions.skip_summarization = True
        return {
            "status": "waiting_for_approval",
            "message": f"{self._member.name} waits for an approval.",
        }

    def _report(self, event: Event, emit: Emit) -> None:
        """Emit the child's tool calls as progress events."""
        for call in event.get_function_calls():
            text = types.Part(text=f"{self._member.name} {call.name}\n")
            emit(
                Event(
                    author="task",
                    partial=True,
                    custom_metadata={
                        "subagent": self._member.name,
                        "call_id": self._context.function_call_id,
                    },
                    content=types.Content(role="model", parts=[text]),
                )
            )


class _TaskTool(ProgressTool):
    """The tool `task`, which calls any sub-agent by name."""

    def __init__(self, part: Subagents) -> None:
        self.part = part
        super().__init__(self.task)

    async def task(
        self,
        description: Description,
        subagent_type: Annotated[
            str, Field(description="Which sub-agent does it")
        ] = GENERAL_PURPOSE,
        context: Context = "",
        timeout_seconds: Seconds = None,
        *,
        tool_context: ToolContext,
    ) -> AsyncGenerator[Event | Answer]:
        """Delegate one self-contained task to a sub-agent and wait for its result.

        It works on your files; what it changed is put into them when it has succeeded, merged with
        what others changed meanwhile. Call this several times in one reply to run sub-agents at the
        same time.
        """
        async for step in self.part.call(
            subagent_type, description, context, timeout_seconds, tool_context
        ):
            yield step


class _AgentTool(ProgressTool):
    """One sub-agent as a tool."""

    def __init__(self, part: Subagents, member: Member) -> None:
        self.part = part
        self._member = member
        super().__init__(self.delegate)
        self.name = agent_identifier(member.name)
        self.description = (
            f"Delegate one self-contained task to the sub-agent {member.name} and wait for its "
            f"result. {member.description}"
        )

    async def delegate(
        self,
        description: Description,
        context: Context = "",
        timeout_seconds: Seconds = None,
        *,
        tool_context: ToolContext,
    ) -> AsyncGenerator[Event | Answer]:
        """Call the sub-agent."""
        async for step in self.part.call(
            self._member.name, description, context, timeout_seconds, tool_context
        ):
            yield step


class _ChildToolsets(BaseToolset):
    """A toolset without tools, with which a Runner closes the sub-agents' toolsets.

    They cannot be closed at the end of a child's run: its siblings, the next child of the same name
    and sometimes the parent use the same toolsets, and ADK cannot open one again.
    """

    def __init__(self, toolsets: Sequence[BaseToolset]) -> None:
        super().__init__()
        self._toolsets = toolsets

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return no tools."""
        del readonly_context
        return []

    async def close(self) -> None:
        """Close all of the sub-agents' toolsets.

        Raises:
            BaseException: The first exception of a toolset's `close`.
        """
        ended = await asyncio.gather(
            *(toolset.close() for toolset in self._toolsets), return_exceptions=True
        )
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure


def _depth_of(agent: LlmAgent) -> int:
    """Return the number of levels of sub-agents below an agent."""
    parts = [tool.part for tool in agent.tools if isinstance(tool, (_TaskTool, _AgentTool))]
    return max((part.depth for part in parts), default=0)


def _unanswered(child: ChildRun, answers: Mapping[str, JsonValue]) -> PendingApproval | None:
    """Return the child's oldest question without an answer."""
    open_questions = (asked for asked in child.questions if asked.confirmation_id not in answers)
    return next(open_questions, None)


def _succeeded(text: str, done: AppliedChanges) -> Answer:
    return {
        "status": "success",
        "result": text,
        "files_modified": [{"path": file.path, "change": file.change} for file in done.applied],
        "merge": {
            "applied": [file.path for file in done.applied],
            "conflicts": [asdict(conflict) for conflict in done.conflicts],
        },
    }


def _failed(reason: str | Exception) -> Answer:
    """Return a failure as an error result.

    The text of an unexpected exception is left out, because it may contain anything.
    """
    if isinstance(reason, Exception):
        known = isinstance(reason, ModelFailed)
        log.warning(
            "sub-agent failed", error=type(reason).__name__, exc_info=None if known else reason
        )
        unexpected = f"The sub-agent failed unexpectedly ({type(reason).__name__})."
        reason = str(reason) if known else unexpected
    return {"status": "error", "error": reason, "note": "None of its changes to files were kept."}
