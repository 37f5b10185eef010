"""The sub-agents of one agent, ready to take tasks.

A child that forks sees its parent's conversation. The messages are those of another agent for it,
so ADK shows them as text: no call of the parent can be taken for one of its own, whatever tools and
model it has. It gets copies; nothing of what it does comes into the parent's conversation but its
result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeGuard
from weakref import WeakKeyDictionary

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event, EventActions
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..backends.local_shell import LocalShellBackend
from ..backends.protocol import Backend, Shell
from ..dangling_calls import (
    answered,
    is_frameworks,
    unanswered_calls,
)
from ..middleware import BackendSource
from ..prompts import FORKED_CALL, NO_HEIR
from .apply_changes import PathLock
from .child import Child, ChildRun, InheritedApproval
from .child_files import (
    ChildFiles,
    DirectFiles,
    OwnFiles,
    StagedFiles,
    StagedShellFiles,
    fits,
)
from .inherited_conversation import Inherit, conversation_of_call
from .roster import (
    GENERAL_PURPOSE,
    RosterMember,
    SubAgentLimits,
    SubAgentSpec,
    agent_identifier,
    inherited_built_in_tools,
)
from .task_tools import (
    SubagentType,
    first_fault,
    task_refusal,
)

ChildMaker = Callable[[SubAgentSpec, Backend], LlmAgent]
"""Creates a child that works on these files."""

PARENT = "parent"
"""The name under which a child sees the messages of its parent."""


class Task(BaseModel):
    """One task: the arguments of `task`, and an item of `tasks`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    description: str = Field(
        description="What to do, complete in itself: "
        "the sub-agent sees nothing of this conversation"
    )
    subagent_type: Annotated[SubagentType, Field(description="Which sub-agent does it")] = (
        GENERAL_PURPOSE
    )
    context: str = Field(
        default="",
        description="What it should know besides: findings, constraints, file paths",
    )
    timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="How long it may take; leave it out as a rule",
    )
    """None for the limit that the agent was made with."""
    inherit: Inherit | None = Field(
        default=None,
        description='"conversation" begins it with all of this conversation, paid for again; '
        "leave it out for work that can be told",
    )


@dataclass(frozen=True, kw_only=True)
class Team:
    """The sub-agents of one agent."""

    members: Mapping[str, RosterMember]
    """The members by their names as identifiers."""
    make: ChildMaker
    approval: InheritedApproval
    """The agent's approval policy, for sub-agents that were made elsewhere."""
    files: BackendSource
    """The agent's own files."""
    lock: PathLock
    """Held while one of these files is compared and written."""
    limits: SubAgentLimits
    fatal_errors: tuple[type[Exception], ...] = ()
    """What ends the agent's run as well."""
    built_in_tools: Collection[str] = ()
    """Those of the agent, which sub-agents inherit."""
    _slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(
        default_factory=WeakKeyDictionary
    )
    _turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(
        default_factory=WeakKeyDictionary
    )

    def task(self, item: Mapping[str, Any], number: int) -> Task | str:
        """Return a task, or why it cannot be done, for the model.

        Args:
            item: The task, as the model wrote it.
            number: Its index, for the reason.
        """
        try:
            task = Task.model_validate(item)
        except ValidationError as error:
            takes = ", ".join(Task.model_fields)
            return f"tasks[{number}]: {first_fault(error)}. It takes {takes}."
        member = self.members.get(agent_identifier(task.subagent_type))
        names = [known.name for known in self.members.values()]
        asked = member.name if member else task.subagent_type
        refused = task_refusal(task.description, asked, names)
        if not refused and task.inherit and member and not _takes_conversation(member):
            refused = NO_HEIR.format(agent=member.name)
        return refused or task

    async def child(self, task: Task, context: ToolContext, task_id: str) -> Child:
        """Return a sub-agent for a task that is not refused.

        Args:
            task: The task.
            context: The context of the agent's call.
            task_id: The id of the task in its record.
        """
        member = self.members[agent_identifier(task.subagent_type)]
        files = await self._child_files(member, context)
        parent = context.get_invocation_context()
        agent = self.agent(member, files.backend)
        given: Sequence[Event] = ()
        if task.inherit:
            given = conversation_of_call(context, agent.name)
        elif member.forks:
            given = copy_conversation(parent)
        run = ChildRun(
            agent,
            parent,
            given=given,
            plugins=[self.approval] if isinstance(member.made, BaseNode) else (),
        )
        return Child(
            member,
            run,
            files,
            task_id=task_id,
            call_id=str(context.function_call_id),
            follows_conversation=bool(given),
        )

    async def _child_files(self, member: RosterMember, context: ToolContext) -> ChildFiles:
        files = self.files(context)
        if isinstance(member.made, BaseNode):
            return OwnFiles(files, self.lock)
        if "execute" not in inherited_built_in_tools(member.made, self.built_in_tools):
            return StagedFiles(files, self.lock)
        if not isinstance(files, Shell):
            return StagedFiles(files, self.lock)
        if _runs_anywhere(files) and await asyncio.to_thread(fits, Path(files.search_root)):
            return StagedShellFiles(files, self.lock)
        return DirectFiles(files, self._turn())

    def agent(self, member: RosterMember, files: Backend) -> BaseNode:
        """Return a member's agent for one run on these files."""
        return member.made if isinstance(member.made, BaseNode) else self.make(member.made, files)

    def slots(self) -> asyncio.Semaphore:
        """Return the semaphore of the places in which children run, in order of arrival."""
        loop = asyncio.get_running_loop()
        return self._slots.setdefault(loop, asyncio.Semaphore(self.limits.max_concurrent))

    def _turn(self) -> asyncio.Semaphore:
        """Return what a child holds that works directly on the agent's files."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(1))

    def is_fatal(self, error: BaseException) -> bool:
        """Return whether an exception, or one of its causes, ends the agent's run too."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, self.fatal_errors):
                return True
            cause = cause.__cause__ or cause.__context__
        return False


def _runs_anywhere(files: Backend) -> TypeGuard[LocalShellBackend]:
    """Return whether commands may run in a copy: only if no class of the user's runs them."""
    return isinstance(files, LocalShellBackend) and (
        type(files).execute is LocalShellBackend.execute
    )


def _takes_conversation(member: RosterMember) -> bool:
    """Return whether a member is one agent with a model, which can go on from messages."""
    return isinstance(member.made, LlmAgent) or not isinstance(member.made, BaseNode)


def copy_conversation(parent: InvocationContext) -> list[Event]:
    """Return copies of a conversation's messages and summaries, with its open calls answered.

    Args:
        parent: The parent's run, in which the call was made that forks.
    """
    branch = parent.branch or ""
    visible = [event for event in parent.session.events if branch.startswith(event.branch or "")]
    events = [copy for event in visible if (copy := _copied(event)) is not None]
    # All of them are calls of the parent's last reply.
    open_calls = unanswered_calls(events)
    return [*events, answered(open_calls, FORKED_CALL)] if open_calls else events


def _copied(event: Event) -> Event | None:
    """Return a message or summary without what belongs to the parent's session only."""
    parts = [part for part in (event.content.parts if event.content else None) or [] if _kept(part)]
    compaction = event.actions.compaction
    if event.partial or not (parts or compaction):
        return None
    return Event(
        author="user" if event.author == "user" else PARENT,
        invocation_id=event.invocation_id,
        timestamp=event.timestamp,
        content=types.Content(role=event.content.role, parts=parts) if event.content else None,
        actions=EventActions(compaction=compaction),
    )


def _kept(part: types.Part) -> bool:
    """Return whether a part is no thought, and no question of ADK's to a person."""
    if part.function_call is not None:
        return not is_frameworks(part.function_call)
    if part.function_response is not None:
        name = part.function_response.name
        return not is_frameworks(types.FunctionCall(name=name))
    return not part.thought
