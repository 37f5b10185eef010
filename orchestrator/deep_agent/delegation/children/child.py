"""One delegated task in this process: a sub-agent's run, its files, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

from google.adk.events import Event
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from pydantic import JsonValue

from fanout.orchestrator.cancellation import cancel_or_abandon
from fanout.orchestrator.deep_agent.approval.requests import PendingApproval
from fanout.orchestrator.deep_agent.delegation.apply_changes import AppliedChanges
from fanout.orchestrator.deep_agent.delegation.children.child_files import ChildFiles
from fanout.orchestrator.deep_agent.delegation.children.child_run import (
    ChildRun,
    Emit,
    answers_message,
    task_message,
)
from fanout.orchestrator.deep_agent.delegation.limits import ABANDON_SECONDS
from fanout.orchestrator.deep_agent.delegation.roster import Member
from fanout.orchestrator.deep_agent.delegation.task_record import TaskRecord
from fanout.orchestrator.deep_agent.failures import ModelFailed, ToolMistake
from fanout.orchestrator.deep_agent.guards.budget import usage_of
from fanout.orchestrator.deep_agent.guards.structured_output import OutputMismatch, OutputSchema
from fanout.orchestrator.deep_agent.messages import text_of
from fanout.orchestrator.deep_agent.models.facts import price
from fanout.orchestrator.deep_agent.summary import summary_of
from fanout.orchestrator.logs import Logger, describe_error

log = Logger(__name__)

MAX_SUMMARY_CHARACTERS = 80_000
"""About the 20,000 tokens above which a tool result goes to a file: a longer message ran away."""

PROGRESS_AUTHOR = "task"
"""The author of the lines that name a child's tool calls."""


@dataclass(frozen=True)
class Question:
    """A child's question to a person, which its parent's run asks."""

    pending: PendingApproval
    saved: dict[str, JsonValue]
    """The child, to go on in any process."""


class Child:
    """A sub-agent at work on one task.

    Args:
        member: The sub-agent.
        run: Its run.
        files: Its files.
        task_id: The id of the task in its record.
        call_id: The parent's call.
    """

    def __init__(
        self, member: Member, run: ChildRun, files: ChildFiles, *, task_id: str, call_id: str
    ) -> None:
        self.task_id = task_id
        self._member = member
        self._run = run
        self._files = files
        self._call_id = call_id
        self._answers: dict[str, JsonValue] = {}
        self._started = time.monotonic()
        self._is_over = False

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return the context in which it may work."""
        return self._files.opened()

    def load(self, saved: Mapping[str, Any], answer: ToolConfirmation | None) -> None:
        """Go on from a question.

        Args:
            saved: `Question.saved`.
            answer: The person's answer; None if another child's question was answered.
        """
        self._run.load(saved["run"])
        self._files.load(saved["files"])
        self._answers = dict(saved["answers"])
        asked = self._unanswered()
        if asked is not None and answer is not None:
            self._answers[asked.confirmation_id] = answer.model_dump(mode="json", by_alias=True)

    async def work(
        self, description: str, context: str, seconds: float | None, emit: Emit
    ) -> TaskRecord | Question:
        """Work until the task is done, a person is asked, or the time is over.

        A child that does not end when it is stopped is left behind, and nothing that it still does
        is kept or shown.

        Args:
            description: The task.
            context: Further information that its parent gave.
            seconds: The time limit; None for no limit.
            emit: Called with each progress event.

        Raises:
            Exception: Whatever ended the run; `failed` makes a record of it.
        """
        self._started = time.monotonic()
        task = task_message(description, context, forked=self._member.forks)
        running = asyncio.create_task(self._go_on(task, emit))
        try:
            await asyncio.wait([running], timeout=seconds)
            in_time = running.done()
        finally:
            if not await cancel_or_abandon(ABANDON_SECONDS, running):
                self._is_over = True
                log.warning("sub-agent ignores its end and was left behind", task=self.task_id)
        if not in_time:
            return await self.failed(f"It was stopped after {seconds:g} seconds.")
        running.result()
        if asked := self._unanswered():
            saved: dict[str, JsonValue] = {
                "run": self._run.dump(),
                "files": self._files.dump(),
                "answers": self._answers,
            }
            return Question(asked, saved)
        return await self._finished()

    async def _go_on(self, task: types.Content, emit: Emit) -> None:
        questions = self._run.questions
        # A paused run needs all answers at once.
        if len(self._answers) == len(questions):
            message = answers_message(self._answers) if questions else task
            await self._run.resume(message, lambda event: self._report(event, emit))
            self._answers = {}

    def _unanswered(self) -> PendingApproval | None:
        """Return the oldest question without an answer."""
        asked = self._run.questions
        return next((one for one in asked if one.confirmation_id not in self._answers), None)

    async def _finished(self) -> TaskRecord:
        if self._run.error is not None:
            return await self.failed(self._run.error)
        text = self._run.text
        try:
            output = await asyncio.to_thread(self._output, text)
        except OutputMismatch as mismatch:
            return await self.failed(f"Its answer does not fit its output_schema: {mismatch}")
        # The time limit does not hold for this, so that all files are merged or none.
        done = await self._files.finish()
        return await self._record(summary=text, output=output, done=done, note=self._files.note)

    async def failed(self, reason: str | Exception) -> TaskRecord:
        """Return the record of a failure.

        The text of an unexpected exception is left out, because it may contain anything.
        """
        if isinstance(reason, Exception):
            known = isinstance(reason, (ModelFailed, ToolMistake))
            log.warning("sub-agent failed", **describe_error(reason))
            unexpected = f"The sub-agent failed unexpectedly ({type(reason).__name__})."
            reason = str(reason) if known else unexpected
        return await self._record(
            error=reason,
            done=await self._files.left_behind(),
            note=self._files.note_on_failure,
        )

    def _output(self, text: str) -> JsonValue:
        schema = self._member.output_schema
        value: JsonValue = OutputSchema(schema).parse(text) if schema is not None else None
        return value

    async def _record(
        self, *, summary: str = "", done: AppliedChanges, **more: JsonValue
    ) -> TaskRecord:
        usage = asdict(await asyncio.to_thread(usage_of, self._run.events, price))
        return TaskRecord.model_validate(
            {
                "task_id": self.task_id,
                "summary": summary_of(summary, MAX_SUMMARY_CHARACTERS),
                "files_modified": [
                    {"path": file.path, "change": file.change} for file in done.applied
                ],
                "merge": {
                    "applied": [file.path for file in done.applied],
                    "conflicts": [asdict(conflict) for conflict in done.conflicts],
                },
                "execution_seconds": round(time.monotonic() - self._started, 3),
                "usage": {name: value for name, value in usage.items() if value is not None},
                **more,
            }
        )

    def _report(self, event: Event, emit: Emit) -> None:
        """Emit the names of the child's tool calls, and its text while it streams."""
        if self._is_over:
            return
        if not event.partial:
            for call in event.get_function_calls():
                emit(self._progress(PROGRESS_AUTHOR, f"{self._member.name} {call.name}\n"))
        elif text := text_of(event):
            known = event.custom_metadata or {}
            emit(self._progress(event.author or self._member.name, text, known))

    def _progress(self, author: str, text: str, known: Mapping[str, Any] | None = None) -> Event:
        mine = {"subagent": self._member.name, "call_id": self._call_id, "task_id": self.task_id}
        return Event(
            author=author,
            partial=True,
            # What a child's own child says keeps the name of that one.
            custom_metadata={**mine, **(known or {})},
            content=types.Content(role="model", parts=[types.Part(text=text)]),
        )


def not_begun(task_id: str, error: str) -> TaskRecord:
    """Return the record of a task that was never begun.

    Args:
        task_id: The id of the task.
        error: Why, as a sentence for the model.
    """
    return TaskRecord(task_id=task_id, error=error)
