"""The result of a delegated task: one record, for sub-agents in this process and for jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

TaskResult = dict[str, JsonValue]
"""What a tool that delegates returns to the model; its `status` is `success` or `error`."""


class TaskRecord(BaseModel):
    """What became of a task.

    A program that reads `answer()` finds the same keys wherever the task ran.
    """

    # A session of an earlier release may hold a record with fields that are gone.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    task_id: str = ""
    """The job's id, or the id of the tool call; empty for a task that was never begun."""
    agent: str | None = None
    """Who did it; None where it is not known."""
    summary: str = ""
    """The text under `## Summary` in the agent's last message, else the whole message."""
    files_modified: Sequence[Mapping[str, JsonValue]] = ()
    """The `path` of each file that differs in the task's workspace, and its `change`: `added`,
    `modified`, `deleted`, …"""
    execution_seconds: float = 0.0
    error: str | None = None
    """Why it failed; None if it succeeded."""
    merge: Mapping[str, JsonValue] | None = None
    """How many changes are in the caller's files now (`applied`), and those that are not
    (`conflicts`); None if nothing ran."""
    usage: Mapping[str, JsonValue] | None = None
    """Its model and tool calls, tokens and cost."""
    output: JsonValue = None
    """The structured answer of an agent with an `output_schema`."""
    files_omitted: int | None = None
    """The number of changed files beyond those of `files_modified`."""
    verified: Mapping[str, JsonValue] | None = None
    """The last run of the task's `verify` command."""
    unread_messages: Sequence[str] | None = None
    """Messages that came too late for its agent."""
    note: str | None = None
    """What the caller has to know about its files."""

    @property
    def success(self) -> bool:
        """Whether the task is done."""
        return self.error is None

    def answer(self) -> TaskResult:
        """Return the record as a tool result; what does not apply is left out."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        # The name that programs written for other orchestrators read.
        seconds = found.pop("execution_seconds")
        return {
            "status": "success" if self.success else "error",
            "success": self.success,
            **found,
            "execution_time": seconds,
        }


def combined_answer(answers: Sequence[TaskResult]) -> TaskResult:
    """Return the tool result of `tasks`: it succeeds only if every task did.

    Args:
        answers: The answers of the tasks, in their order.
    """
    done = sum(answer.get("success") is True for answer in answers)
    status = "success" if done == len(answers) else "partial" if done else "error"
    return {
        "status": status,
        "success": done == len(answers),
        "summary": f"Completed {done} of {len(answers)} tasks.",
        "results": [*answers],
    }
