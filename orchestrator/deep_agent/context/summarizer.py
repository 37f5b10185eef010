"""What a summary says: a model's text, or for a model that fails the decisions and changed files.

The task stays verbatim above it. A backend that knows its changes is asked for the changed files
(`TracksChanges`): a worker's sandbox, and the overlay of a sub-agent in process. On other backends
the changes by the file tools are joined with the files whose time is newer than the conversation,
which one bounded walk finds; a file that a command deleted is missed there, unless a file tool had
changed it before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from google.adk.events import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from ...logs import Logger
from .. import prompts
from ..backends.protocol import Backend
from ..budget import Budget
from ..failures import ModelContextExceeded
from ..messages import is_reply, is_request, list_parts, text_of
from ..models.tokens import (
    CHARACTERS_PER_TOKEN,
    ModelUsage,
    reply_usage,
)
from ..tools.todos import STATE_KEY as TODOS
from .eviction import CONVERSATION_HISTORY, is_artifact

log = Logger(__name__)

INPUT_SHARE = 0.8
"""Share of the summarizer's window for messages; the rest is for the prompt and the reply."""

MAX_TRIES = 4
"""Each try has half as much at once if the request was too long: the window may be smaller than
known."""

MIN_INPUT_CHARACTERS = 2_000
"""A smaller piece would be mostly prompt."""

SUMMARY_WORDS = 1_200
"""About 1,600 tokens, as much as a person would write at a handover."""

LAST_ENTRIES = 10
"""How many of the last messages are in a fallback summary: about five steps."""

LAST_ENTRY_CHARACTERS = 500
"""How much of each of them."""

MAX_TASK_CHARACTERS = 40_000
"""10,000 tokens: a task is repeated in full unless it contains whole documents."""

MAX_SUMMARY_CHARACTERS = 24_000
"""6,000 tokens, three times what is requested: a verbose model must not fill the room just made."""

MAX_WINDOW_SHARE = 0.1
"""Share of the model's window for the task, and the same share for the summary."""

MAX_TODO_CHARACTERS = 200
"""The length of one step of the plan; read_todos returns it in full."""

MAX_DECISIONS = 10
"""The newest; S1's limit."""

MAX_DECISION_CHARACTERS = 300
"""A long sentence; what is longer is a list or code without full stops."""

_WORDS = re.compile(
    r"\b(decid(e|ed|ing)|decision|will use|(going|go|went) with|cho(ose|osing|se|sen)|select(ed|ing)"
    r"|opt(ed)? for|settled on|agreed|instead of|rather than)\b",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_HEADING = re.compile(r"^#+\s*(.*)$", re.MULTILINE)

MAX_CHANGED_FILES = 200
"""The most changed files in a summary; all of them are among the workspace's changes anyway."""

MAX_WALKED_FILES = 20_000
"""The most files of a walk for newer files: a large repository; with more, the list is not
complete."""

WALK_SECONDS = 2.0
"""A summary takes a model call of many seconds; a walk of 20,000 files takes less than one."""

CHANGES_SECONDS = 15.0
"""How long a backend may take to list its changes; a sandbox compares what was written."""

BY_TOOL = {
    "write_file": "created",
    "edit_file": "edited",
    "multi_edit": "edited",
    "apply_patch": "patched",
    "delete_file": "deleted",
}


class NoSummary(Exception):
    """The model wrote no summary, or the budget has no room for one."""


class SideCallAccount:
    """The usage of the model calls for one summary, which count in the run's budget.

    Args:
        budget: The run's budget; None without one.
    """

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._usage = ModelUsage()
        self.model_version: str | None = None
        """The model of the last reply."""

    @property
    def count(self) -> int:
        """The number of replies."""
        return self._usage.model_calls

    @property
    def usage(self) -> types.GenerateContentResponseUsageMetadata | None:
        """Their total usage, in the form of an event's metadata; None without a reply."""
        if not self.count:
            return None
        return types.GenerateContentResponseUsageMetadata(
            prompt_token_count=self._usage.input_tokens,
            candidates_token_count=self._usage.output_tokens,
            cached_content_token_count=self._usage.cached_tokens,
            total_token_count=self._usage.tokens,
        )

    def check_budget(self) -> None:
        """Check that there is room for one more call.

        Raises:
            NoSummary: The budget is used up.
        """
        if self._budget is not None and not self._budget.has_room_for_side_call:
            raise NoSummary("the budget is used up")

    def add(self, response: LlmResponse) -> None:
        """Add what a reply used."""
        used = reply_usage(response)
        self.model_version = response.model_version
        if self._budget is not None:
            self._budget.add_side_call(response.model_version or "", used)
        self._usage = self._usage.plus(used).plus(ModelUsage(model_calls=1))


class Summarizer:
    """Summarizes messages with a model.

    Args:
        model: The model.
        window_tokens: The size of its context window.
    """

    def __init__(self, model: BaseLlm, window_tokens: int) -> None:
        self._model = model
        self._window_tokens = window_tokens

    async def summary(
        self, entries: Sequence[str], *, task: str, earlier: str, most: int, calls: SideCallAccount
    ) -> str | None:
        """Return a summary of all entries; None if the model writes none. It never raises.

        Args:
            entries: The messages.
            task: The user's task, for the model's understanding.
            earlier: The previous summary, which the new one includes.
            most: The length of the summary in characters, at most.
            calls: Counts the model calls.
        """
        room = int(self._window_tokens * CHARACTERS_PER_TOKEN * INPUT_SHARE)
        for _ in range(MAX_TRIES):
            try:
                room = max(room, MIN_INPUT_CHARACTERS)
                return shortened(await self._folded(entries, task, earlier, calls, room), most)
            except ModelContextExceeded:
                room = min(room, sum(map(len, entries))) // 2
            except Exception as error:  # noqa: BLE001 - the agent's run continues in any case
                log.warning("no summary from the model", error=type(error).__name__)
                break
        return None

    async def _folded(
        self, entries: Sequence[str], task: str, earlier: str, calls: SideCallAccount, room: int
    ) -> str:
        """Summarize piece by piece, each with the summary of the pieces before it."""
        for piece in _pieces(entries, room):
            earlier = await self._asked(_prompt(piece, shortened(task, room // 4), earlier), calls)
        return earlier

    async def _asked(self, prompt: str, calls: SideCallAccount) -> str:
        calls.check_budget()
        content = types.Content(role="user", parts=[types.Part(text=prompt)])
        request = LlmRequest(model=self._model.model, contents=[content])
        text = ""
        async for response in self._model.generate_content_async(request, stream=False):
            calls.add(response)
            text += text_of(response)
        if not text.strip():
            raise NoSummary("the reply is empty")
        return text.strip()


def without_model(
    entries: Sequence[str], earlier: str, most: int, decisions: Sequence[str] = ()
) -> str:
    """Return a fallback summary: the earlier summary, the key decisions and the last messages.

    Args:
        entries: The messages.
        earlier: The previous summary; may be empty.
        most: The length in characters, at most.
        decisions: The agent's key decisions, which have up to a quarter of it.
    """
    decided = shortened(decisions_text(decisions), most // 4)
    share = most - len(decided)
    of_each = min(LAST_ENTRY_CHARACTERS, share // 2 // LAST_ENTRIES)
    last = [shortened(entry.strip(), of_each) for entry in entries[-LAST_ENTRIES:]]
    before = [shortened(earlier, share // 2)] if earlier else []
    return "\n\n".join([*before, *([decided] if decided else []), prompts.NO_SUMMARY, *last])


def _prompt(piece: str, task: str, earlier: str) -> str:
    sections = [prompts.SUMMARIZE.format(words=SUMMARY_WORDS)]
    if task:
        sections += [prompts.SUMMARIZE_TASK, f"<task>\n{task}\n</task>"]
    if earlier:
        sections += [prompts.SUMMARIZE_EARLIER, f"<earlier>\n{earlier}\n</earlier>"]
    return "\n\n".join([*sections, f"<conversation>\n{piece}\n</conversation>"])


def _pieces(entries: Sequence[str], room: int) -> Iterator[str]:
    """Yield all entries in texts of at most `room` characters; longer entries are split."""
    piece = ""
    for entry in entries:
        rest = entry
        while rest:
            fitting = room - len(piece)
            if len(rest) > fitting and piece and len(rest) <= room:
                yield piece
                piece, fitting = "", room
            piece, rest = piece + rest[:fitting], rest[fitting:]
            if len(piece) >= room:
                yield piece
                piece = ""
    if piece:
        yield piece


def summary_content(
    *,
    messages: Sequence[Event],
    summary: str,
    state: dict[str, Any],
    window_tokens: int,
    history: Sequence[str],
    changed: Mapping[str, str],
) -> types.Content:
    """Return the content that replaces these messages.

    Args:
        messages: All from the conversation's beginning up to the cut.
        summary: Their summary.
        state: The session's state, which holds the plan.
        window_tokens: The window of the agent's model, which limits the task's length.
        history: The paths of the files with the messages.
        changed: The changed files by path, each with its change.
    """
    room = share_characters(window_tokens, MAX_TASK_CHARACTERS)
    asked = [event for event in messages if _has_request(event)]
    first, last = history[0], history[-1]
    files = first if first == last else f"{first} to {last}"
    facts = [
        _latest_request(asked, room),
        changed_files_text(changed),
        _plan(state),
        prompts.WHERE_HISTORY_IS.format(files=files),
    ]
    begins = prompts.SUMMARY_BEGINS.format(replies=sum(map(is_reply, messages)))
    texts = [f"{begins}\n\n{summary}", "\n\n".join(fact for fact in facts if fact)]
    task = _task_parts(asked[0], room) if asked else []
    return types.Content(role="user", parts=[*task, *(types.Part(text=text) for text in texts)])


def share_characters(window_tokens: int, most: int) -> int:
    """Return how many characters one part of such a content may have.

    Args:
        window_tokens: The window of the agent's model.
        most: The absolute limit in characters.
    """
    return min(int(window_tokens * CHARACTERS_PER_TOKEN * MAX_WINDOW_SHARE), most)


def task_text(messages: Sequence[Event]) -> str:
    """Return the user's first message."""
    return next((text_of(event, "\n") for event in messages if _has_request(event)), "")


def shortened(text: str, most: int) -> str:
    """Return the text, or its beginning and end with a note between them.

    Args:
        text: Any text.
        most: The length in characters above which it is shortened.
    """
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out} characters are left out here …]\n{text[-tail:]}"


def _has_request(event: Event) -> bool:
    return is_request(event) and bool(list_parts(event))


def _task_parts(event: Event, most: int) -> list[types.Part]:
    text = shortened(text_of(event, "\n"), most)
    media = [part for part in list_parts(event) if part.inline_data or part.file_data]
    return [*([types.Part(text=text)] if text else []), *media]


def _latest_request(asked: Sequence[Event], most: int) -> str:
    """Return the user's last message; empty if it is the task."""
    if len(asked) < 2:  # noqa: PLR2004 - the first is the task
        return ""
    text = shortened(text_of(asked[-1], "\n"), most)
    return f"{prompts.LATEST_REQUEST}\n\n{text}" if text else ""


def _plan(state: dict[str, Any]) -> str:
    todos = state.get(TODOS) or []
    lines = [
        f"- [{todo['status']}] {shortened(todo['content'], MAX_TODO_CHARACTERS)}" for todo in todos
    ]
    return "\n".join([prompts.PLAN_NOW, *lines]) if lines else ""


def key_decisions(events: Iterable[Event], earlier: str = "") -> tuple[str, ...]:
    """Return the agent's decisions in order, the newest ones if there are many.

    English words tell a decision; a section of decisions in the earlier summary counts as well,
    and without an earlier summary a decision in another language is not found.

    Args:
        events: The conversation's messages.
        earlier: The previous summary; may be empty.
    """
    found = dict.fromkeys(_in_summary(earlier))
    for event in events:
        if is_reply(event):
            for sentence in _SENTENCES.split(text_of(event, "\n")):
                if _WORDS.search(sentence) and (decision := _short(sentence)):
                    found.pop(decision, None)
                    found[decision] = None
    return tuple(found)[-MAX_DECISIONS:]


def decisions_text(decisions: Sequence[str]) -> str:
    """Return the decisions as a section of a summary; empty without one."""
    lines = [f"- {decision}" for decision in decisions]
    return "\n".join([prompts.DECISIONS_HEADING, *lines]) if lines else ""


def _in_summary(summary: str) -> Iterable[str]:
    """Yield the lines of the section of decisions, which the summarizer is asked to write."""
    for heading in _HEADING.finditer(summary):
        if heading[1].strip() == prompts.DECISIONS_HEADING.removeprefix("## "):
            section = summary[heading.end() :].partition("\n#")[0]
            lines = (_short(line.lstrip(" -*")) for line in section.splitlines())
            yield from (line for line in lines if line and line.lower().rstrip(".") != "none")


def _short(sentence: str) -> str:
    return sentence.strip()[:MAX_DECISION_CHARACTERS]


@runtime_checkable
class TracksChanges(Protocol):
    """A backend that knows what was changed since the agent's work began."""

    async def changed_files(self) -> Mapping[str, str]:
        """Return the changed files by absolute path, each with its change, such as `added`."""


async def changed_files(
    backend: Backend, messages: Sequence[Event], *, history: str = CONVERSATION_HISTORY
) -> dict[str, str]:
    """Return the changed files by path, each with its change, the last changed last.

    Files that the harness stores for itself are not among them: in a session's state they lie
    in addition to the agent's own. A backend that fails costs its part of the list, not the
    summary.

    Args:
        backend: The agent's files.
        messages: The conversation from its beginning.
        history: The folder of messages that summaries replaced.
    """
    found = await _found(backend, messages)
    return {path: change for path, change in found.items() if not is_artifact(path, history)}


async def _found(backend: Backend, messages: Sequence[Event]) -> dict[str, str]:
    by_tools = _by_tools(messages)
    try:
        async with asyncio.timeout(CHANGES_SECONDS):
            if isinstance(backend, TracksChanges):
                tracked = await backend.changed_files()
                known = {path: by_tools[path] for path in by_tools if path in tracked}
                return {
                    path: change for path, change in tracked.items() if path not in known
                } | known
            return await _with_newer(backend, by_tools, messages)
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("changed files are not listed", error=type(error).__name__)
        return by_tools


def changed_files_text(changed: Mapping[str, str]) -> str:
    """Return the changed files as a section of a summary, the last first; empty without one."""
    lines = [f"- {path} ({change})" for path, change in reversed(list(changed.items()))]
    if len(lines) > MAX_CHANGED_FILES:
        lines[MAX_CHANGED_FILES:] = [f"- and {len(lines) - MAX_CHANGED_FILES} more"]
    return "\n".join([prompts.CHANGED_FILES, *lines]) if lines else ""


def _by_tools(messages: Sequence[Event]) -> dict[str, str]:
    """Return the files that the file tools changed, read from their results."""
    changed: dict[str, str] = {}
    for event in messages:
        for response in event.get_function_responses():
            result = response.response or {}
            if response.name not in BY_TOOL or result.get("status") != "success":
                continue
            one = {"path": result.get("path"), "change": BY_TOOL[response.name]}
            for file in result.get("files", [one]):
                changed.pop(file["path"], None)  # the last change of a file counts
                changed[file["path"]] = file["change"]
    return changed


async def _with_newer(
    backend: Backend, by_tools: dict[str, str], messages: Sequence[Event]
) -> dict[str, str]:
    """Add the files that are newer than the conversation, and note those that are gone."""
    since = messages[0].timestamp if messages else 0.0
    walk = await backend.walk(
        backend.search_root, max_entries=MAX_WALKED_FILES, timeout_seconds=WALK_SECONDS
    )
    newer = {
        entry.path: "changed"
        for entry in sorted(walk.entries, key=lambda entry: entry.modified_at)
        if entry.modified_at > since and entry.path not in by_tools
    }
    if walk.complete:
        root, found = backend.search_root.rstrip("/") + "/", {entry.path for entry in walk.entries}
        gone = {path for path in by_tools if path.startswith(root) and path not in found}
        by_tools = by_tools | dict.fromkeys(gone, "deleted")
    return newer | by_tools
