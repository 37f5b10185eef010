"""Summaries of messages by a model, with a fallback for when the model fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.context.decisions import decisions_text
from fanout.orchestrator.deep_agent.context.summary_content import shortened
from fanout.orchestrator.deep_agent.failures import ModelContextExceeded
from fanout.orchestrator.deep_agent.guards.budget import Budget
from fanout.orchestrator.deep_agent.messages import text_of
from fanout.orchestrator.deep_agent.models.size import CHARACTERS_PER_TOKEN
from fanout.orchestrator.deep_agent.models.usage import ModelUsage, reply_usage
from fanout.orchestrator.logs import Logger

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
