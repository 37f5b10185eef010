"""The conversation of earlier attempts and of an earlier job, and its repair before it is resumed.

A worker may be lost between any two entries of the journal. A call that was running gets the result
that it was interrupted, because it may have had effects. A call that waits for a person has had
none, and continues to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from google.adk.events import Event, EventActions
from google.adk.tools.tool_confirmation import ToolConfirmation
from pydantic import JsonValue, ValidationError

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.deep_agent import (
    AWAITING,
    DanglingCall,
    PendingApproval,
    answered,
    confirmation_answers,
    confirmation_calls,
    confirmation_request,
    is_reply,
    pending_approvals,
    text_of,
    unanswered_calls,
    without_message_number,
)
from fanout.orchestrator.jobs.approvals import Approval, approval_id, waiting_approval
from fanout.orchestrator.jobs.failures import NotUnderstood
from fanout.orchestrator.jobs.result import Verification
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent

UNCHANGING_TOOLS = frozenset(
    {
        *("ls", "read_file", "glob", "grep", "read_todos", "write_todos", "compact_conversation"),
        *("task", "tasks", "run_script", "start_task", "check_task", "wait_tasks"),
        *("update_task", "cancel_task", "list_tasks"),
    }
)
"""Tools that change no file themselves. What tasks change lands after the call, and is verified."""

Decisions = list[tuple[PendingApproval, ApprovalAnswer]]
"""A person's answer for each call that waited."""


@dataclass
class History:
    """The conversation that an attempt resumes; empty for a new one."""

    earlier: list[Event] = field(default_factory=list)
    """The conversation of the job that this one continues. Its calls, answers and usage are not
    this job's: all else here is about this job's own events."""
    events: list[Event] = field(default_factory=list)
    started_calls: set[str] = field(default_factory=set)
    """Ids of calls whose tool was started and has not returned since."""
    answers: dict[str, ApprovalAnswer] = field(default_factory=dict)
    """The answers of people, by approval id."""
    lost: list[Event] = field(default_factory=list)
    """Events that are not part of the conversation any more, because the files that they are about
    were lost with their host. Their usage still counts."""
    checkpoints: list[str] = field(default_factory=list)
    """The blobs of the checkpoints, oldest first."""
    is_restored: bool = False
    """Whether the files come from a checkpoint, which does not hold everything."""
    verifications: list[Verification] = field(default_factory=list)
    """All runs of the job's `verify` command."""
    is_verified: bool = False
    """Whether the last one was after the last event: it was of the last answer."""
    children: dict[str, str] = field(default_factory=dict)
    """The children that have ended, by id, with the reason of a refusal; empty for one that ran."""
    landed: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    """What became of the changes of children, by id, as `child.landed` says."""
    merged: Verification | None = None
    """The job's `verify_merges` on its files as they are; None if it did not run on them."""
    landing: str | None = None
    """The blob that undoes a landing which has not ended."""
    _landing_children: frozenset[str] = frozenset()
    """The children whose changes it lands."""
    _merges: dict[frozenset[str], Verification] = field(default_factory=dict)
    """The verifications of the last landing, by whose changes were in."""

    def add(self, entry: JournalEvent, event: Event | None) -> None:
        """Add the next entry of the journal.

        Args:
            entry: The entry.
            event: The session event that it holds, if it holds one.

        Raises:
            NotUnderstood: The entry is of a type or of a form that this release does not know.
        """
        if not isinstance(entry.type, EventType):
            raise NotUnderstood(
                f"The job's journal has an event that this release does not know: {entry.type}."
            )
        try:
            self._add(entry, event)
        except (KeyError, ValidationError):
            raise NotUnderstood(
                f"The job's journal has an event of a form that this release does not know: "
                f"{entry.type}."
            ) from None

    def _add(self, entry: JournalEvent, event: Event | None) -> None:
        if entry.type is EventType.SANDBOX_READY and "checkpoint" in entry.data:
            self.is_restored = True
        if entry.type is EventType.CHECKPOINT:
            self.checkpoints.append(str(entry.data["changes"]))
        if entry.type is EventType.TOOL_CALL:
            self.started_calls.add(str(entry.data["id"]))
            if entry.data.get("tool") not in UNCHANGING_TOOLS:
                self.merged = None
        if entry.type is EventType.APPROVAL_RESOLVED:
            answer = {name: value for name, value in entry.data.items() if name != "id"}
            self.answers[str(entry.data["id"])] = ApprovalAnswer.model_validate(answer)
        if entry.type is EventType.VERIFY:
            self._add_verification(entry)
        if entry.type is EventType.LANDING:
            self._begin_landing(entry)
        if str(entry.type).startswith("child."):
            self._add_of_child(entry)
        if event is not None:
            self.is_verified = False
            self.events.append(event)
            self.started_calls -= {str(answer.id) for answer in event.get_function_responses()}
            self.started_calls -= self._calls_decided_by(event)

    def _add_verification(self, entry: JournalEvent) -> None:
        data = {name: entry.data.get(name) for name in Verification.model_fields}
        verification = Verification.model_validate(data)
        if "children" not in entry.data:
            self.add_verification(verification)
        elif entry.data.get("at_end"):
            self.merged = verification
        else:
            self._merges[_ids(entry.data["children"])] = verification

    def _begin_landing(self, entry: JournalEvent) -> None:
        """Begin a landing; one that had not ended has been undone."""
        self.undo_landing()
        self.merged, self._merges = None, {}
        self._landing_children = _ids(entry.data["children"])
        self.landing = str(entry.data["before"]) if self._landing_children else None

    def undo_landing(self) -> None:
        """Forget a landing that has not ended: what it touched was put back."""
        if self.landing is not None:
            for child in self._landing_children:
                self.landed.pop(child, None)
        self.landing = None

    def _add_of_child(self, entry: JournalEvent) -> None:
        child = str(entry.data["id"])
        if entry.type is EventType.CHILD_LANDED:
            self.landed[child] = {key: value for key, value in entry.data.items() if key != "id"}
            if self.landing is not None and self._landing_children <= self.landed.keys():
                self.landing = None
                landed = {one for one in self._landing_children if self._is_in(one)}
                self.merged = self._merges.get(frozenset(landed))
        elif entry.type is EventType.CHILD_FINISHED:
            self.children[child] = str(entry.data.get("reason") or "")

    def _is_in(self, child: str) -> bool:
        return self.landed[child]["outcome"] == "in"

    def add_verification(self, verification: Verification) -> None:
        """Add the verification of the last answer."""
        self.verifications.append(verification)
        self.is_verified = True

    def _calls_decided_by(self, event: Event) -> set[str]:
        """Return the ids of the calls for which an event holds a person's answer."""
        answered = {answer.id for answer in confirmation_answers(event)}
        if not answered:
            return set()
        asked = [call for earlier in self.events for call in confirmation_calls(earlier)]
        return {confirmation_request(call, "").call_id for call in asked if call.id in answered}

    @property
    def final_answer_index(self) -> int | None:
        """The index of the agent's final answer; None if it gave none.

        If it gave one, only the end of its run is missing.
        """
        indexes = [
            index for index, event in enumerate(self.events) if event.content or event.error_code
        ]
        last = self.events[indexes[-1]] if indexes else None
        if last is None or last.error_code or not is_reply(last):
            return None
        return indexes[-1] if text_of(last) and not last.get_function_calls() else None

    def decisions(self, job_id: str) -> Decisions | None:
        """Return the answers to all pending approvals; None while one is missing."""
        found = []
        for pending in pending_approvals(self.events):
            answer = self.answers.get(approval_id(job_id, pending.confirmation_id))
            if answer is None:
                return None
            found.append((pending, answer))
        return found


def _ids(listed: JsonValue) -> frozenset[str]:
    return frozenset(map(str, listed if isinstance(listed, list) else ()))


def earlier_events(conversation: bytes) -> list[Event]:
    """Return the events of an earlier job's conversation.

    Messages that were sent to the earlier job do not count as messages to this one.

    Args:
        conversation: The blob of the specification's `conversation`: a line of JSON for each event.

    Raises:
        NotUnderstood: Another release wrote an event in a form that this one does not know.
    """
    try:
        events = [Event.model_validate_json(line) for line in conversation.splitlines()]
    except ValidationError:
        raise NotUnderstood(
            "The earlier conversation has an event of a form that this release does not know."
        ) from None
    return [without_message_number(event) for event in events]


def repair_events(history: History) -> list[Event]:
    """Return the events to append, so that every call has a result or waits for a person."""
    events, calls = history.events, _calls(history.events)
    responses = {response.id for event in events for response in event.get_function_responses()}
    waiting = {pending.call_id for pending in pending_approvals(events)}
    interrupted = [found for found in unanswered_calls(events) if found.call.id not in waiting]
    # An approved call has a placeholder as its result, until its tool has returned.
    restarted = [found for found in calls if found.call.id in history.started_calls & responses]
    results = [
        answered(list(of_event))
        for _, of_event in groupby([*interrupted, *restarted], lambda found: found.event.id)
    ]
    without_placeholder = [found for found in calls if found.call.id in waiting - responses]
    return results + [_placeholder(events, found) for found in without_placeholder]


def waiting_approvals(job_id: str, events: Sequence[Event]) -> tuple[Approval, ...]:
    """Return the approvals for which a run that ended waits."""
    return tuple(
        waiting_approval(job_id, request.confirmation_id, request)
        for request in pending_approvals(events)
    )


def _calls(events: Sequence[Event]) -> list[DanglingCall]:
    """Return all calls; of several with the same id the newest."""
    found = {
        call.id: DanglingCall(event, call)
        for event in events
        for call in event.get_function_calls()
    }
    return list(found.values())


def _placeholder(events: Sequence[Event], waiting: DanglingCall) -> Event:
    """Return the result that ADK gives a call that waits for a person.

    It is missing if the worker was lost before ADK could append it.
    """
    asked = [call for event in events for call in confirmation_calls(event)]
    (request,) = [
        call for call in asked if confirmation_request(call, "").call_id == waiting.call.id
    ]
    confirmation = ToolConfirmation.model_validate((request.args or {})["toolConfirmation"])
    event = answered([waiting], AWAITING["message"])
    event.actions = EventActions(requested_tool_confirmations={str(waiting.call.id): confirmation})
    return event
