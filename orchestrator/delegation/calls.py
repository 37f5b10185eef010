"""What a call of `task` or `tasks` asks for, understood alike by a coordinator and an agent on a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.jobs.failures import InvalidJob

DEFAULT_SUBAGENT = "general-purpose"


@dataclass(frozen=True)
class TaskCall:
    """One task that an agent wants done.

    Raises:
        InvalidJob: there is nothing to do in it.
    """

    description: str
    subagent_type: str = DEFAULT_SUBAGENT
    context: str = ""
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no agent could do."""
        if not self.description.strip():
            raise InvalidJob("description is empty: say completely what to do.")

    @classmethod
    def of_item(cls, item: Mapping[str, Any], number: int) -> TaskCall:
        """An item of `tasks`.

        Raises:
            InvalidJob: it is no such item.
        """
        known = set(cls.__dataclass_fields__)
        if (
            not isinstance(item, dict)
            or not isinstance(item.get("description"), str)
            or item.keys() - known
        ):
            raise InvalidJob(
                f"tasks[{number}] takes description, and subagent_type, context, timeout_seconds."
            )
        return cls(**item)


def check_agent(name: str, agents: Mapping[str, str]) -> None:
    """Refuse an agent that may not be called.

    Raises:
        InvalidJob: the text lists those that may.
    """
    if name not in agents:
        raise InvalidJob(f"There is no subagent_type {name!r}; there are: {', '.join(agents)}.")


def agent_list(agents: Mapping[str, str]) -> str:
    """The agents that may be called, with their descriptions, as a prompt says it."""
    return "\n".join(
        ["Values of subagent_type:", *(f"- {name}: {text}" for name, text in agents.items())]
    )


def job_id_of_call(parent_id: str, call_id: str) -> str:
    """The job id of a tool call: the same call, made again after a crash, is the same job.

    A hash, so that four characters of it are mostly enough to name the job among its siblings.
    """
    return hashlib.sha256(f"{parent_id}/{call_id}".encode()).hexdigest()[:26]
