"""A task as an agent gives it to one of its sub-agents."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fanout.orchestrator.deep_agent.delegation.roster import GENERAL_PURPOSE
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.names import SubagentType


class Task(BaseModel):
    """One task."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    description: str
    subagent_type: SubagentType = GENERAL_PURPOSE
    context: str = ""
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """None for the limit that the agent was made with."""


def task_of(item: dict[str, Any], number: int) -> Task:
    """Return the task that an item of `tasks` describes.

    Args:
        item: The item, as the model wrote it.
        number: Its index, for the error's text.

    Raises:
        ToolMistake: A key is missing, unknown or of the wrong type.
    """
    try:
        return Task.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ToolMistake(
            f"tasks[{number}]: {fault}. It takes {', '.join(Task.model_fields)}."
        ) from None
