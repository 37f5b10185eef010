"""What a run may cost: model calls, tokens, tool calls, money.

The run is ended in order: with the last reply that fits, the model is told to sum up, and calls in that reply
are dropped; where not even that fits, no model is called. Tokens and money are known only after a call, so
they may be passed by what one call grows over the one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.deep_agent.prompts import LAST_REPLY
from orchestrator.deep_agent.tool import mistake_result


@dataclass(frozen=True, kw_only=True)
class ModelUsage:
    """What a run has consumed."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input tokens, those that the provider had in its cache."""
    tool_calls: int = 0
    cost_usd: float | None = None
    """None while no price is known."""

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: ModelUsage) -> ModelUsage:
        """The sum of two usages."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return ModelUsage(
            model_calls=self.model_calls + other.model_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            tool_calls=self.tool_calls + other.tool_calls,
            cost_usd=sum(costs) if costs else None,
        )


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """The most that a run may consume; None is no limit."""

    max_model_calls: int | None = None
    max_tokens: int | None = None
    """Input and output tokens together."""
    max_tool_calls: int | None = None
    max_cost_usd: float | None = None


Price = Callable[[str, ModelUsage], float | None]
"""What a model's call cost in US dollars; None when its price is not known."""


class Budget:
    """The running account of one run; give `used` to go on with an earlier one."""

    def __init__(
        self,
        limits: BudgetLimits | None = None,
        *,
        used: ModelUsage | None = None,
        price: Price | None = None,
    ) -> None:
        self.limits = limits or BudgetLimits()
        self.usage = used or ModelUsage()
        """What is used up to now."""
        self.reached: str | None = None
        """The sentence that names the limit which ended the run, or made it sum up."""
        self._price = price
        self._last_call = ModelUsage()

    def start_model_call(self) -> str:
        """Ask for one more call: `go`, `last` (it has to sum up) or `stop` (it does not fit)."""
        reason, room = self._tightest()
        if reason is not None:
            self.reached = reason
        if room == "stop":
            return room
        self.usage = replace(self.usage, model_calls=self.usage.model_calls + 1)
        return room

    def add_model_reply(self, model: str, used: ModelUsage) -> None:
        """Book what a reply cost."""
        if self._price is not None:
            used = replace(used, cost_usd=self._price(model, used))
        self._last_call = used
        self.usage = self.usage.plus(used)

    def take_tool_call(self) -> bool:
        """Book one tool call; False when none is left."""
        most = self.limits.max_tool_calls
        if most is not None and self.usage.tool_calls >= most:
            return False
        self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + 1)
        return True

    def _tightest(self) -> tuple[str | None, str]:
        rooms = [
            _room("max_model_calls", self.limits.max_model_calls, self.usage.model_calls, 1),
            _room("max_tokens", self.limits.max_tokens, self.usage.tokens, self._last_call.tokens),
            _room(
                "max_cost_usd",
                self.limits.max_cost_usd,
                self.usage.cost_usd or 0,
                self._last_call.cost_usd or 0,
            ),
        ]
        most = self.limits.max_tool_calls
        if most is not None and self.usage.tool_calls >= most:
            rooms.append((_sentence("max_tool_calls", most, self.usage.tool_calls), "last"))
        for wanted in ("stop", "last"):
            for reason, room in rooms:
                if room == wanted:
                    return reason, room
        return None, "go"


def _room(name: str, most: float | None, used: float, next_call: float) -> tuple[str | None, str]:
    """Whether there is room for the next call, taken to be like the one before, and for one more after it."""
    if most is None or used + 2 * next_call <= most:
        return (None, "go") if most is None or used < most else (_sentence(name, most, used), "stop")
    room = "last" if used + next_call <= most else "stop"
    return _sentence(name, most, used), room


def _sentence(name: str, most: float, used: float) -> str:
    return f"The limit {name}={most:g} is reached ({used:g} used)."


class BudgetPlugin(BasePlugin):
    """Keeps a run within its budget."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(name="budget")
        self._budget = budget
        self._last_reply_of: set[str] = set()

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Let the call go, ask it to sum up, or answer in its place."""
        room = self._budget.start_model_call()
        if room == "stop":
            return _text_response(f"{self._budget.reached} The work ended here, before it was finished.")
        if room == "last":
            llm_request.append_instructions([LAST_REPLY])
            self._last_reply_of.add(callback_context.invocation_id)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Book what the reply cost; a reply that had to be the last loses its calls."""
        if llm_response.partial:
            return None
        self._budget.add_model_reply(llm_response.model_version or "", _used(llm_response))
        if callback_context.invocation_id in self._last_reply_of and llm_response.get_function_calls():
            return self._without_calls(llm_response)
        return None

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Refuse a call when none is left."""
        del tool_args, tool_context
        is_unknown = type(tool) is BaseTool  # ADK's stand-in for a name that no tool has: nothing will run
        if is_unknown or self._budget.take_tool_call():
            return None
        return mistake_result(
            f"Not done: the limit max_tool_calls={self._budget.limits.max_tool_calls} is reached. Sum up now."
        )

    def _without_calls(self, response: LlmResponse) -> LlmResponse:
        said = "".join(part.text or "" for part in (response.content and response.content.parts) or [])
        text = f"{said}\n\n{self._budget.reached} The work ended here, before it was finished."
        return response.model_copy(update={"content": _content(text.strip())})


def _used(response: LlmResponse) -> ModelUsage:
    metadata = response.usage_metadata
    if metadata is None:
        return ModelUsage()
    output = (metadata.candidates_token_count or 0) + (metadata.thoughts_token_count or 0)
    return ModelUsage(
        input_tokens=metadata.prompt_token_count or 0,
        output_tokens=output,
        cached_tokens=metadata.cached_content_token_count or 0,
    )


def _text_response(text: str) -> LlmResponse:
    return LlmResponse(content=_content(text), finish_reason=types.FinishReason.STOP)


def _content(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])
