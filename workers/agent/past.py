"""What earlier attempts left of a conversation, and how it is made whole again before it goes on.

A worker may be lost between any two entries of the journal. A call that was running is answered as
interrupted: its effects may be there. A call that only waits for a person has none, and goes on
waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from google.adk.events import Event, EventActions
from google.adk.tools.tool_confirmation import ToolConfirmation

from orchestrator.approvals import ApprovalAnswer
from orchestrator.deep_agent import (
    AWAITING,
    DanglingCall,
    PendingApproval,
    answered,
    confirmation_answers,
    confirmation_calls,
    is_reply,
    pending_approvals,
    request_of,
    text_of,
    unanswered_calls,
)
from orchestrator.jobs.approvals import Approval, approval_id, waiting_approval
from orchestrator.jobs.failures import NotUnderstood
from orchestrator.jobs.store.journal import EventType, JournalEvent

LASTING = frozenset(
    {
        EventType.JOB_STATE,
        EventType.APPROVAL_REQUESTED,
        EventType.APPROVAL_RESOLVED,
        EventType.CHILD_SUBMITTED,
        EventType.CHILD_FINISHED,
        EventType.MESSAGE,
    }
)
"""What holds whatever became of a host: the ledger, people and other jobs said it."""

Decisions = list[tuple[PendingApproval, ApprovalAnswer]]
"""What people decided on each call that waited."""


@dataclass
class Past:
    """The conversation that an attempt goes on with; empty for a new one."""

    events: list[Event] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    """Ids of calls whose tool was started after the last that was said of them."""
    answers: dict[str, ApprovalAnswer] = field(default_factory=dict)
    """What people decided, by approval id."""
    lost: list[Event] = field(default_factory=list)
    """What was said and paid for, and is no part of it: the files that it was about went with their
    host."""
    checkpoint: str | None = None
    """The blob of the newest."""
    is_restored: bool = False
    """Whether its files come from a checkpoint, which does not hold everything."""
    children: dict[str, str] = field(default_factory=dict)
    """The children that have ended, by id: why one was refused, empty for one that ran."""

    def note(self, entry: JournalEvent, event: Event | None) -> None:
        """Take in the next entry of the journal, with the session event that it holds."""
        if not isinstance(entry.type, EventType):
            raise NotUnderstood(
                f"The job's journal has an event that this release does not know: {entry.type}."
            )
        if entry.type is EventType.SANDBOX_READY and "checkpoint" in entry.data:
            self.is_restored = True
        if entry.type is EventType.CHECKPOINT:
            self.checkpoint = str(entry.data["changes"])
        if entry.type is EventType.TOOL_CALL:
            self.begun.add(str(entry.data["id"]))
        if entry.type is EventType.APPROVAL_RESOLVED:
            given = {name: value for name, value in entry.data.items() if name != "id"}
            self.answers[str(entry.data["id"])] = ApprovalAnswer.model_validate(given)
        if entry.type is EventType.CHILD_FINISHED:
            self.children[str(entry.data["id"])] = str(entry.data.get("reason") or "")
        if event is not None:
            self.events.append(event)
            self.begun -= {str(response.id) for response in event.get_function_responses()}
            self.begun -= self._decided_in(event)

    def _decided_in(self, event: Event) -> set[str]:
        """The calls on which an event's answers decide."""
        answered = {answer.id for answer in confirmation_answers(event)}
        if not answered:
            return set()
        asked = [call for earlier in self.events for call in confirmation_calls(earlier)]
        return {request_of(call, "").call_id for call in asked if call.id in answered}

    @property
    def answer_at(self) -> int | None:
        """Where the agent's final answer stands, if it gave one.

        Only the end of its run is missing then.
        """
        said = [
            place for place, event in enumerate(self.events) if event.content or event.error_code
        ]
        last = self.events[said[-1]] if said else None
        if last is None or last.error_code or not is_reply(last):
            return None
        return said[-1] if text_of(last) and not last.get_function_calls() else None

    def decisions(self, job_id: str) -> Decisions | None:
        """The answers to all that waits, empty when nothing does; None while one is missing."""
        found = []
        for pending in pending_approvals(self.events):
            answer = self.answers.get(approval_id(job_id, pending.confirmation_id))
            if answer is None:
                return None
            found.append((pending, answer))
        return found


def of_conversation(
    entries: Sequence[JournalEvent],
) -> tuple[list[JournalEvent], list[JournalEvent]]:
    """The entries of the conversation that goes on, and those of work whose files were lost with their host.

    After a checkpoint was restored it goes on from there. What people decided since, and which
    children have ended, still counts. Where there was none, it begins anew.
    """
    kept: list[JournalEvent] = []
    lost: list[JournalEvent] = []
    for entry in entries:
        if entry.type is EventType.SANDBOX_READY:
            since = _since_its_files(kept, entry)
            lost += since
            gone = {other.id for other in since}
            kept = [other for other in kept if other.id not in gone]
        kept.append(entry)
    return kept, lost


def _since_its_files(entries: Sequence[JournalEvent], ready: JournalEvent) -> list[JournalEvent]:
    """The entries that speak of files which a new sandbox does not have."""
    if ready.data.get("resumed") is False:
        return list(entries)
    checkpoint = ready.data.get("checkpoint")
    if checkpoint is None:
        return []
    ids = [entry.id for entry in entries]
    after = entries[ids.index(str(checkpoint)) + 1 :]
    return [entry for entry in after if entry.type not in LASTING]


def mended(past: Past) -> list[Event]:
    """Events to append, so that every call has an answer or waits for a person."""
    responses = {
        response.id for event in past.events for response in event.get_function_responses()
    }
    waiting = {pending.call_id for pending in pending_approvals(past.events)}
    lost = [
        dangling for dangling in unanswered_calls(past.events) if dangling.call.id not in waiting
    ]
    decided = [
        dangling for dangling in _calls(past.events) if dangling.call.id in past.begun & responses
    ]
    mending = [
        answered(list(calls))
        for _, calls in groupby([*lost, *decided], lambda found: found.event.id)
    ]
    unplaced = [found for found in _calls(past.events) if found.call.id in waiting - responses]
    return mending + [_placeholder(past.events, found) for found in unplaced]


def approvals_of(job_id: str, events: Sequence[Event]) -> tuple[Approval, ...]:
    """What a run that ended waits for."""
    return tuple(
        waiting_approval(job_id, request.confirmation_id, request)
        for request in pending_approvals(events)
    )


def _calls(events: Sequence[Event]) -> list[DanglingCall]:
    """All calls; of those with one id the newest."""
    found = {
        call.id: DanglingCall(event, call)
        for event in events
        for call in event.get_function_calls()
    }
    return list(found.values())


def _placeholder(events: Sequence[Event], waiting: DanglingCall) -> Event:
    """The result that ADK gives a call for which a person was asked, where a worker was lost before it."""
    asked = [call for event in events for call in confirmation_calls(event)]
    (request,) = [call for call in asked if request_of(call, "").call_id == waiting.call.id]
    confirmation = ToolConfirmation.model_validate((request.args or {})["toolConfirmation"])
    event = answered([waiting], AWAITING["message"])
    event.actions = EventActions(requested_tool_confirmations={str(waiting.call.id): confirmation})
    return event
