"""Summaries: they replace the older part of a conversation that grows too long for its model.

A summary is one event of the session, written once, with which any process can resume. The messages
stay in the session's events and in files that the agent can read.

Long arguments of old calls are shortened in requests, never in the session: what was written to a
file is in the file. Which calls are old is decided once between two summaries, at the first reply
after which the conversation has reached a certain size: so requests keep the same beginning, which
providers cache.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from ...logs import Logger
from .. import prompts
from ..budget import budget_of
from ..failures import ModelContextExceeded, ToolMistake
from ..messages import summary_text
from ..middleware import BackendSource, Middleware
from ..models.facts import context_window
from ..models.tokens import (
    DEFAULT_WINDOW_TOKENS,
    count_message_tokens,
    count_tokens,
    counted_tokens,
    counts_since_summary,
    fixed_tokens,
    messages_since_summary,
    reported_tokens,
)
from ..prompts import OLD_ARGUMENT
from ..tool import MethodTool
from ..unusable_replies import TOO_LONG, as_placeholder_call
from . import eviction
from .compaction import (
    MAX_FILES,
    AgentConversation,
    ContextSummary,
    agent_conversation,
    compaction_event,
    put_in_order,
    tail_start,
)
from .eviction import (
    CONVERSATION_HISTORY,
    LARGE_TOOL_RESULTS,
)
from .summarizer import (
    MAX_SUMMARY_CHARACTERS,
    SideCallAccount,
    Summarizer,
    changed_files,
    key_decisions,
    share_characters,
    summary_content,
    task_text,
    without_model,
)

log = Logger(__name__)

Size = tuple[Literal["fraction", "tokens", "messages"], float]
"""A share of the model's window, a number of tokens, or a number of messages."""

DEFAULT_TRIGGER: Size = ("fraction", 0.85)
"""It leaves room for one long result and for a reply."""

DEFAULT_KEEP: Size = ("fraction", 0.10)
"""The newest messages, with the agent's current step."""

MIN_GAIN_SHARE = 0.1
"""Share of the trigger: after a summary that replaces less, the next one would follow at once."""

COMPACT_SHARE = 0.5
"""Share of the trigger that a conversation must reach before the agent may ask for a summary."""

REJECTED_KEEP_SHARE = 0.5
"""Share of the usual amount that is kept after the service rejected the request as too long."""

OLD_ARGUMENTS_SHARE = 0.5
"""Share of the trigger from which long arguments of old calls are shortened."""

MAX_OLD_ARGUMENT_CHARACTERS = 2_000
"""Longer texts among an old call's arguments are shortened."""

OLD_ARGUMENT_HEAD_CHARACTERS = 200
"""How much of one is kept: enough to recognize the text."""


@dataclass(frozen=True)
class SummarizationConfig:
    """When a conversation is summarized, how much of it is kept unchanged, and by which model.

    Raises:
        ValueError: A size or the prefix is impossible.
    """

    model: str | BaseLlm | None = None
    """The model that writes the summary; the agent's own when None: another one may need a key of
    another provider, and may have a window that is too small."""
    trigger: Size = DEFAULT_TRIGGER
    keep: Size = DEFAULT_KEEP
    """The part that is kept. By default it is a share of the window and not a number of messages:
    six messages are three steps of an agent that calls tools, whether they are long or short."""
    history_path_prefix: str = CONVERSATION_HISTORY
    """The folder in which the file tools find the messages that summaries replaced."""
    window_tokens: int | None = None
    """The window of the agent's model; looked up in a table when None."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name, (kind, amount) in (("trigger", self.trigger), ("keep", self.keep)):
            if kind not in {"fraction", "tokens", "messages"}:
                raise ValueError(
                    f"summarization: {name} is by fraction, tokens or messages, not by {kind}."
                )
            if amount <= 0 or (kind == "fraction" and amount > 1):
                raise ValueError(f"summarization: {name} cannot be {kind} {amount:g}.")
        if self.trigger[0] == self.keep[0] and self.keep[1] >= self.trigger[1]:
            raise ValueError("summarization: keep must be less than trigger.")
        if self.window_tokens is not None and self.window_tokens <= 0:
            raise ValueError("summarization: window_tokens must be above 0.")
        prefix = self.history_path_prefix.rstrip("/")
        is_normal = prefix.startswith("/") and posixpath.normpath(prefix) == prefix
        if not is_normal or f"{prefix}/".startswith((f"{LARGE_TOOL_RESULTS}/", "//")):
            raise ValueError(
                "summarization: history_path_prefix must be a normalised absolute path of a folder "
                f"of its own below /, not {self.history_path_prefix!r}."
            )
        object.__setattr__(self, "history_path_prefix", prefix)


class Summarization(Middleware):
    """Summarizes one agent's conversation when it is due, or when the agent asks for it.

    Args:
        config: When and how.
        model: The agent's model.
        summarizer: The model that writes the summaries; the agent's own when None.
        files_of: The agent's files, whose changes a summary lists.
    """

    def __init__(
        self,
        config: SummarizationConfig,
        model: BaseLlm,
        summarizer: BaseLlm | None,
        files_of: BackendSource,
    ) -> None:
        self._config = config
        self._list_files = files_of
        window = config.window_tokens or context_window(model.model) or DEFAULT_WINDOW_TOKENS
        self._window_tokens = window
        other_window = window if summarizer is None else context_window(summarizer.model)
        self._summarizer = Summarizer(summarizer or model, other_window or DEFAULT_WINDOW_TOKENS)
        in_tokens = config.trigger if config.trigger[0] != "messages" else DEFAULT_TRIGGER
        self._old_arguments_tokens = int(self._tokens(in_tokens) * OLD_ARGUMENTS_SHARE)
        self._fixed_tokens = 0

    def tools(self) -> Sequence[BaseTool]:
        """Return `compact_conversation`."""
        return [MethodTool(self.compact_conversation)]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain when to use the tool."""
        del context
        return prompts.COMPACT if "compact_conversation" in tools else ""

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Shorten long arguments of old calls in the request."""
        context, name = callback_context.get_invocation_context(), callback_context.agent_name
        counts = list(counts_since_summary(context.session.events, name, context.isolation_scope))
        if not counts or max(counts) >= self._old_arguments_tokens:
            tail = partial(self._tail_start, share=1.0)
            shown = agent_conversation(context, shown_only=True)
            shorten(llm_request.contents, old_calls(shown, name, self._old_arguments_tokens, tail))
        return None

    async def on_model_error(
        self, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Continue with a summary after a request that was too long; only once."""
        del llm_request
        if not isinstance(error, ModelContextExceeded):
            return None
        names, _ = _last_calls(callback_context.session.events)
        if TOO_LONG in names:
            return None
        return as_placeholder_call(LlmResponse(), TOO_LONG, prompts.CONTEXT_TOO_LONG)

    async def compact_conversation(self, *, tool_context: ToolContext) -> dict[str, Any]:
        """Replace the older part of this conversation by a summary, to make room.

        The newest messages stay as they are, and everything can be read again in files.
        """
        context = tool_context.get_invocation_context()
        conversation = agent_conversation(context)
        size, most = await self._size(context, conversation, None)
        if size < most * COMPACT_SHARE:
            raise ToolMistake(
                f"Not needed yet: the conversation has {size} of the {most} {self._unit} at which "
                "it is summarized automatically; below half of them a summary is not worth it. "
                "Go on working."
            )
        if self._cut(conversation, share=1.0) <= conversation.shown_from:
            raise ToolMistake(
                "There is nothing to sum up: all messages are among the newest, which are kept."
            )
        return {"status": "success", "message": prompts.COMPACTING}

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """Write a summary if the conversation is too long, or if the agent asked for one.

        It is in the session when this returns.
        """
        await self._compact_if_due(context, request)
        return ()

    async def _compact_if_due(self, context: InvocationContext, request: LlmRequest) -> None:
        events = context.session.events
        put_in_order(events)
        names, is_done = _last_calls(events)
        is_too_long = TOO_LONG in names and not is_done
        is_asked = is_too_long or ("compact_conversation" in names and not is_done)
        if not is_asked and self._is_surely_short(context):
            return
        conversation = agent_conversation(context)
        cut = self._cut(conversation, share=REJECTED_KEEP_SHARE if is_too_long else 1.0)
        if cut <= conversation.shown_from:
            return
        if not is_asked:
            size, most = await self._size(context, conversation, request)
            gain = conversation.messages[conversation.shown_from : cut]
            gained = len(gain) if self._unit == "messages" else count_tokens(gain)
            if size < most or gained < most * MIN_GAIN_SHARE:
                return
        await self._compact(context, conversation, cut)

    async def _compact(
        self, context: InvocationContext, conversation: AgentConversation, cut: int
    ) -> None:
        replaced = conversation.messages[conversation.shown_from : cut]
        session, calls = context.session, SideCallAccount(budget_of(context))
        number = 1 + sum(event.actions.compaction is not None for event in session.events)
        entries = await asyncio.to_thread(eviction.as_entries, replaced)
        earlier = summary_text(conversation.summary_content)
        most = share_characters(self._window_tokens, MAX_SUMMARY_CHARACTERS)
        task = task_text(conversation.messages)
        written = await self._summarizer.summary(
            entries, task=task, earlier=earlier, most=most, calls=calls
        )
        decisions = await asyncio.to_thread(key_decisions, replaced, earlier)
        summary = written or without_model(entries, earlier, most, decisions)
        changed = await changed_files(
            self._list_files(CallbackContext(context)),
            conversation.messages,
            history=self._config.history_path_prefix,
        )
        paths = [
            eviction.part_path(session.id, part, self._config.history_path_prefix)
            for part in range(1, number + 1)
        ]
        content = summary_content(
            messages=conversation.messages[:cut],
            summary=summary,
            state=session.state,
            window_tokens=self._window_tokens,
            history=paths,
            changed=changed,
        )
        document = eviction.as_document(entries, session.id, number)
        event = compaction_event(
            context,
            conversation,
            cut,
            content=content,
            state_delta=await eviction.written(session.state, paths[-1], document),
            calls=calls,
            statistics=ContextSummary(
                messages_summarized=len(replaced),
                original_token_count=count_message_tokens(conversation.summary_content)
                + count_tokens(replaced),
                summarized_token_count=count_message_tokens(content),
                key_decisions=decisions,
                files_modified=tuple(changed)[-MAX_FILES:],
                by_model=written is not None,
            ),
            threshold=self._tokens(self._config.trigger) if self._unit == "tokens" else None,
        )
        await context.session_service.append_event(session=session, event=event)
        log.info("conversation summed up", messages=len(replaced), model_calls=calls.count)

    @property
    def _unit(self) -> str:
        return "messages" if self._config.trigger[0] == "messages" else "tokens"

    def _tokens(self, size: Size) -> int:
        kind, amount = size
        return int(amount * self._window_tokens if kind == "fraction" else amount)

    def _tail_start(self, messages: Sequence[Event], *, share: float) -> int:
        kind, amount = self._config.keep
        if kind == "messages":
            return max(len(messages) - max(int(amount * share), 1), 0)
        return tail_start(messages, int(self._tokens(self._config.keep) * share))

    def _cut(self, conversation: AgentConversation, *, share: float) -> int:
        return conversation.safe_cut(self._tail_start(conversation.messages, share=share))

    def _counted(self, context: InvocationContext) -> int | None:
        name = context.agent.name if context.agent else ""
        return counted_tokens(context.session.events, name, context.isolation_scope)

    def _is_surely_short(self, context: InvocationContext) -> bool:
        """Return whether it is certain without reading all messages that no summary is due."""
        if self._unit == "messages":
            shown = messages_since_summary(context.session.events, context.isolation_scope)
            return shown < self._config.trigger[1]
        counted = self._counted(context)
        return counted is not None and counted < self._tokens(self._config.trigger)

    async def _size(
        self,
        context: InvocationContext,
        conversation: AgentConversation,
        request: LlmRequest | None,
    ) -> tuple[int, int]:
        """Return the conversation's size and the size of the trigger, in the trigger's unit."""
        most = self._tokens(self._config.trigger)
        if self._unit == "messages":
            return len(conversation.shown), most
        counted = self._counted(context)
        if counted is not None:
            return counted, most
        if request is not None:
            self._fixed_tokens = await fixed_tokens(context, request)
        return conversation.tokens + self._fixed_tokens, most


def _last_calls(events: Sequence[Event]) -> tuple[set[str], bool]:
    """Return the names of the last reply's accepted calls, and whether a summary followed."""
    rejected: set[str | None] = set()
    is_summarized = False
    for event in reversed(events):
        is_summarized = is_summarized or event.actions.compaction is not None
        responses = event.get_function_responses()
        rejected |= {
            found.id for found in responses if (found.response or {}).get("status") == "error"
        }
        if event.content and not responses:
            calls = event.get_function_calls()
            names = {
                str(call.name) for call in calls if call.name == TOO_LONG or call.id not in rejected
            }
            return names, is_summarized
    return set(), is_summarized


def old_calls(
    conversation: AgentConversation,
    agent_name: str,
    limit_tokens: int,
    tail_start: Callable[[Sequence[Event]], int],
) -> int:
    """Return how many calls, from the first that the model sees, are to be shortened.

    Args:
        conversation: The agent's messages.
        agent_name: The agent whose replies report the size of this context.
        limit_tokens: No call is shortened before the conversation has this size.
        tail_start: Returns the index of the first message that is kept as it is.
    """
    grown = _reached(conversation, agent_name, limit_tokens)
    if grown is None:
        return 0
    old = conversation.shown[: tail_start(conversation.shown[: grown + 1])]
    return sum(len(event.get_function_calls()) for event in old)


def shorten(contents: Sequence[types.Content], calls: int) -> None:
    """Shorten the arguments of the first `calls` calls.

    The parts are replaced in the contents; the original values are not changed.
    """
    left = calls
    for content in contents:
        for index, part in enumerate(content.parts or []):
            if left and part.function_call and content.parts:
                left -= 1
                arguments = _shortened(part.function_call.args)
                call = part.function_call.model_copy(update={"args": arguments})
                content.parts[index] = part.model_copy(update={"function_call": call})


def _reached(conversation: AgentConversation, agent_name: str, limit: int) -> int | None:
    """Return the index of the first message after which the conversation has this size, or None."""
    summarized_at = conversation.summary.timestamp if conversation.summary else 0.0
    size = count_message_tokens(conversation.summary_content)
    for index, event in enumerate(conversation.shown):
        size += count_message_tokens(event.content)
        if event.timestamp > summarized_at:  # an earlier count is of a longer conversation
            size = reported_tokens(event, agent_name) or size
        if size >= limit:
            return index
    return None


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_OLD_ARGUMENT_CHARACTERS:
        left_out = len(value) - OLD_ARGUMENT_HEAD_CHARACTERS
        return value[:OLD_ARGUMENT_HEAD_CHARACTERS] + OLD_ARGUMENT.format(left_out=left_out)
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    return value
