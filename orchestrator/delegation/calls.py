"""The arguments of `task` and `tasks`, and the job that one task becomes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..configuration.agent_definitions import GENERAL_PURPOSE
from ..deep_agent import Inherit, SubagentType, task_refusal
from ..jobs.failures import InvalidJob
from ..jobs.spec import JobSpec

WAIT_TOOL = "wait_tasks"
SCRIPT_TOOL = "run_script"
UPDATE_TOOL = "update_task"


class JobTask(BaseModel):
    """One task that becomes a job: the arguments of `task`, and an item of `tasks`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    description: str
    subagent_type: SubagentType = GENERAL_PURPOSE
    context: str = ""
    timeout_seconds: float | None = None
    verify: str = ""
    inherit: Inherit | None = None

    @classmethod
    def of_item(
        cls,
        item: Mapping[str, Any],
        number: int,
        agents: Collection[str],
        *,
        caller: str | None = None,
    ) -> JobTask:
        """Return the task that an item of `tasks` describes.

        Args:
            item: The item, as the model wrote it.
            number: Its index, for the error's text.
            agents: The names of the agents that may be called.
            caller: The name of the agent that calls, which may always call a copy of itself that
                inherits its conversation. None: no definition describes it.

        Raises:
            InvalidJob: A key is missing or unknown, the description is empty, or the agent may not
                be called.
            ValidationError: A value has the wrong type.
        """
        try:
            task = cls.model_validate(item)
        except ValidationError as error:
            faults = error.errors()
            if all(_is_of_a_value(fault["loc"], fault["type"]) for fault in faults):
                raise
            raise InvalidJob(
                f"tasks[{number}] takes description, and subagent_type, context, timeout_seconds, "
                "verify, inherit."
            ) from None
        if task.inherit and caller is not None:
            agents = {*agents, caller}
            if "subagent_type" not in task.model_fields_set:
                task = task.model_copy(update={"subagent_type": caller})
        if reason := task_refusal(task.description, task.subagent_type, agents):
            raise InvalidJob(reason)
        return task

    def job_spec(
        self, call_id: str, *, root_id: str, parent_id: str | None = None, **fields: Any
    ) -> JobSpec:
        """Return the job that runs this task.

        The same call, made again after a crash, has the same job id.

        Args:
            call_id: The tool call, unique within its job or session.
            root_id: The tree of the job.
            parent_id: The job that delegates; None for a coordinator.
            fields: The other fields of the job, such as its limits.

        Raises:
            ValidationError: A field is not allowed.
        """
        return JobSpec(
            id=job_id_of_call(parent_id or root_id, call_id),
            root_id=root_id,
            parent_id=parent_id,
            agent=self.subagent_type,
            description=self.description,
            context=self.context or None,
            verify=self.verify or None,
            inherit=self.inherit,
            **fields,
        )


def _is_of_a_value(where: tuple[int | str, ...], kind: str) -> bool:
    """Return whether a fault is that of an optional value, and not of the item's keys."""
    return bool(where) and where != ("description",) and kind != "extra_forbidden"


def agent_list(agents: Mapping[str, str]) -> str:
    """Return the text for an instruction that lists callable agents with their descriptions."""
    return "\n".join(
        ["Values of subagent_type:", *(f"- {name}: {text}" for name, text in agents.items())]
    )


def name_of_call(event_id: str, call_id: str | None) -> str:
    """Return a call's name within its job: a provider may use the id of a call twice.

    Args:
        event_id: The id of the reply that has the call.
        call_id: The call's id.
    """
    return f"{event_id}/{call_id}"


def job_id_of_call(parent_id: str, call_id: str) -> str:
    """Return the id of the job that a tool call starts: a hash of its arguments.

    Four characters of a hash are mostly enough to name the job among its siblings.
    """
    return hashlib.sha256(f"{parent_id}/{call_id}".encode()).hexdigest()[:26]
