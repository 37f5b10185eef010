"""Guarded calls, which run only after a person's decision.

It uses ADK's confirmation protocol. A guarded call requests confirmation before it runs. ADK turns
the request into a call of `adk_request_confirmation`, which a front end answers with a function
response of the same id, and then makes the original call again. Requests and answers are events of
the session, so another process can resume the run. A request identifies the call by a fingerprint
of the tool and its exact arguments; without a valid answer for that fingerprint the tool does not
run and the request is repeated.

A front end calls `pending_approvals` with a session's events, and sends `answers_message` as the
next message. The vocabulary is in `orchestrator.approvals`.

A policy about one tool holds for the others that do the same: which tools an agent changes files
with depends on its model, and what a person approves must not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows.functions import (
    REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
    generate_request_confirmation_event,
)
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import ValidationError

from ..approvals import (
    DECISIONS,
    ApprovalAnswer,
    ApprovalRequest,
    Decision,
    InterruptOn,
    fingerprint,
    merge_policies,
)
from .failures import UnknownGuardedTool
from .messages import event_with_call
from .middleware import Middleware

AWAITING = {
    "status": "waiting_for_approval",
    "message": "A person was asked to approve this call; it has not run.",
}
"""The call's result until it is answered. The model sees it only if a person sends another message
instead of an answer."""

NOTED_CHARACTERS = 2_000
"""The length of edited arguments that is repeated to the model next to the result."""

COVERED_BY: Mapping[str, tuple[str, ...]] = {
    "multi_edit": ("multi_edit", "edit_file"),
    "apply_patch": ("apply_patch", "edit_file", "write_file", "delete_file"),
}
"""The tools whose policies apply to a tool; for all other tools only their own policy applies."""

_OVERWRITING = ("write_file", "edit_file")
"""The names of policies for write_file when it overwrites."""

KNOWN = frozenset({"edit_file", "write_file", "delete_file", *COVERED_BY})
"""Names that a policy may have although an agent has other tools in their place."""


class PendingApproval(ApprovalRequest):
    """A request in a session that is not answered yet."""

    confirmation_id: str
    """The id of ADK's confirmation call, to which the answer is given."""

    def payload(self) -> dict[str, Any]:
        """Return the payload of ADK's confirmation request; a parent passes on that of a child."""
        return self.model_dump(
            mode="json", include={"tool", "arguments", "decisions", "sha256", "agent"}
        )


def confirmation_calls(event: Event) -> list[types.FunctionCall]:
    """Return the calls in an event that request a confirmation from a person.

    ADK marks its own calls as long-running; a model's call of that name is not one of them.
    """
    marked = event.long_running_tool_ids or ()
    return [
        call
        for call in event.get_function_calls()
        if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME and call.id in marked
    ]


def confirmation_answers(event: Event) -> list[types.FunctionResponse]:
    """Return a person's answers to confirmation calls in an event."""
    if event.author != "user":
        return []
    responses = event.get_function_responses()
    return [found for found in responses if found.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME]


def pending_approvals(events: Iterable[Event]) -> list[PendingApproval]:
    """Return the requests in a session's events that are not answered, oldest first."""
    waiting: dict[str, PendingApproval] = {}
    for event in events:
        for answer in confirmation_answers(event):
            waiting.pop(answer.id or "", None)
        for call in confirmation_calls(event):
            waiting[str(call.id)] = confirmation_request(call, event.author)
    return list(waiting.values())


def answers_message(
    answers: Iterable[tuple[PendingApproval, ApprovalAnswer]],
) -> types.Content:
    """Return the message that resumes a run.

    Args:
        answers: All pending requests of the run with their answers; with fewer it stays paused.
    """
    return types.Content(
        role="user",
        parts=[
            types.Part(
                function_response=types.FunctionResponse(
                    id=pending.confirmation_id,
                    name=REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
                    response=_as_response(pending, answer),
                )
            )
            for pending, answer in answers
        ],
    )


def _as_response(pending: PendingApproval, answer: ApprovalAnswer) -> dict[str, Any]:
    """Return the response to ADK's confirmation call, with the fingerprint of the shown call."""
    given = answer.model_dump(mode="json", exclude={"by", "person"}) | {"sha256": pending.sha256}
    payload = {name: value for name, value in given.items() if value not in (None, "")}
    return {"confirmed": answer.decision in ("approve", "edit"), "payload": payload}


def confirmation_request(call: types.FunctionCall, author: str) -> PendingApproval:
    """Return the request that a confirmation call of ADK makes.

    A tool that requests a confirmation itself, without a policy, allows `approve` and `reject`.

    Args:
        call: The confirmation call, as of `confirmation_calls`.
        author: The author of its event; the agent, if the call does not name one.
    """
    made = (call.args or {}).get("originalFunctionCall") or {}
    confirmation = (call.args or {}).get("toolConfirmation") or {}
    payload: Any = confirmation.get("payload")
    known = {
        "confirmation_id": str(call.id),
        "call_id": str(made.get("id")),
        "hint": str(confirmation.get("hint") or ""),
        "agent": author,
    }
    try:
        return PendingApproval.model_validate({**known, **payload})
    except (TypeError, ValidationError):  # no payload of ours
        tool, arguments = str(made.get("name")), made.get("args") or {}
        return PendingApproval(
            **known,
            tool=tool,
            arguments=arguments,
            decisions=("approve", "reject"),
            sha256=fingerprint(tool, arguments),
        )


def read_answer(
    response: Mapping[str, Any] | None, pending: PendingApproval
) -> ApprovalAnswer | str:
    """Return the answer in a confirmation's response, or the reason why it is not valid.

    A front end that knows only ADK sends `confirmed`, with the payload that it got or without one:
    `confirmed` with other arguments than the call's own is an edit.

    Args:
        response: The response to the confirmation call.
        pending: The request.
    """
    given = response or {}
    confirmed, payload = given.get("confirmed") is True, given.get("payload") or {}
    if not isinstance(payload, Mapping):
        return "its payload is not an object"
    edited: Any = payload.get("arguments")
    decision: Any = payload.get("decision")
    if decision is None:
        changed = edited is not None and edited != pending.arguments
        decision = ("edit" if changed else "approve") if confirmed else "reject"
    if fault := _fault(decision, payload, confirmed=confirmed):
        return fault
    if payload.get("sha256") not in (None, pending.sha256):
        return "it was given for other arguments"
    if decision not in pending.decisions:
        return f"{decision} is not allowed for {pending.tool}"
    return ApprovalAnswer(
        decision=decision,
        message=str(payload.get("message") or ""),
        arguments=dict(edited) if decision == "edit" else None,
        response=payload.get("response") if decision == "respond" else None,
    )


def _fault(decision: Any, payload: Mapping[str, Any], *, confirmed: bool) -> str | None:
    if decision not in DECISIONS:
        return f"{decision!r} is not a decision"
    if confirmed != (decision in ("approve", "edit")):
        return f"its decision is {decision}, but confirmed={str(confirmed).lower()}"
    if decision == "edit" and not isinstance(payload.get("arguments"), Mapping):
        return "edit needs the arguments, as an object"
    if decision == "respond" and payload.get("response") is None:
        return "respond needs a response"
    return None


class ApprovalGate(Middleware):
    """Runs a guarded call only after a person's decision.

    A policy about edit_file holds for every tool that does the same; see `coverage`. It has to be
    the last part, so that it checks the call as it would run.

    Args:
        interrupt_on: The agent's own policy; it must name tools that exist.
        inherited: A parent's policy, which holds as well and may name tools that this agent does
            not have.
        known: The names of the tools that the agent has or could have.
        more_later: Whether toolsets may add tools, which are known at the first model call.

    Raises:
        ValueError: A policy is invalid, or names a tool that does not exist.
    """

    def __init__(
        self,
        interrupt_on: InterruptOn,
        inherited: InterruptOn,
        *,
        known: Collection[str],
        more_later: bool = False,
    ) -> None:
        self._policy = merge_policies(inherited, interrupt_on)
        self._known = {*known, *KNOWN}
        self._unproven = set(interrupt_on) - self._known
        if self._unproven and not more_later:
            raise ValueError(_unknown_tools(self._unproven, self._known))

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Check, when all tools are known, that every tool of the agent's policy exists.

        Raises:
            UnknownGuardedTool: The policy names a tool that the agent does not have.
        """
        del callback_context
        if unknown := self._unproven - llm_request.tools_dict.keys():
            raise UnknownGuardedTool(
                _unknown_tools(unknown, self._known | llm_request.tools_dict.keys())
            )

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Request an approval, or carry out the answer to an earlier request.

        Returns the call's result if the tool must not run now, else None.
        """
        decisions = decisions_for(self._policy, tool.name, args)
        if decisions is None:
            return None
        pending = PendingApproval(
            confirmation_id="",
            call_id=str(tool_context.function_call_id),
            tool=tool.name,
            arguments=args,
            decisions=decisions,
            sha256=fingerprint(tool.name, args),
            agent=tool_context.agent_name,
        )
        if tool_context.tool_confirmation is None:
            return request_approval(tool_context, pending)
        response = find_response(pending, tool_context.session.events)
        missing = "it was given for another call"
        answer = missing if response is None else read_answer(response, pending)
        if isinstance(answer, str):
            hint = f"The answer was not accepted: {answer}. Allowed are {', '.join(decisions)}."
            return request_approval(tool_context, pending, hint)
        if answer.decision == "edit":
            args.clear()
            args.update(answer.arguments or {})
        return replacing_result(answer)


class ApprovalFlow(Middleware):
    """Emits requests, pauses the run until all are answered, and reports edits to the model.

    It has to be the first part, so that no other changes a session that waits. An agent without a
    policy needs it as well: its tools may request approvals themselves, or for a child.
    """

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """Emit the requests that ADK does not emit, and pause the run while one is open.

        ADK itself emits those for the calls of a model's reply.
        """
        del request
        events = _own_events(context)
        missing = _missing_requests(context, events)
        if pending_approvals([*events, *missing]):
            context.end_invocation = True
        return missing

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> None:
        """Add a note to the result of a call that ran with other arguments than the model's."""
        del tool
        call_id = str(tool_context.function_call_id)
        is_pause = call_id in tool_context.actions.requested_tool_confirmations
        was_asked = tool_context.tool_confirmation is not None and not is_pause
        if not was_asked or not isinstance(tool_response, dict):
            return
        made = event_with_call(tool_context.session.events, call_id)
        calls = made.get_function_calls() if made is not None else []
        if any(call.id == call_id and (call.args or {}) != args for call in calls):
            shown = json.dumps(args, ensure_ascii=False)[:NOTED_CHARACTERS]
            tool_response["approval"] = f"A person changed the arguments; the call ran with {shown}"


def _own_events(context: InvocationContext) -> list[Event]:
    """Return the events of this run: open requests of an earlier run do not pause this one."""
    return [
        event for event in context.session.events if event.invocation_id == context.invocation_id
    ]


def _missing_requests(context: InvocationContext, events: Sequence[Event]) -> list[Event]:
    """Return an event for each request in a tool result that has none yet.

    ADK emits one right after the model's reply. It emits none when a repeated call requests an
    approval again, and could not if the process was killed in between.
    """
    asked = [
        confirmation_request(call, event.author).call_id
        for event in events
        for call in confirmation_calls(event)
    ]
    asking: list[Event | None] = []
    for result in events:
        for call_id, request in result.actions.requested_tool_confirmations.items():
            if call_id in asked:
                asked.remove(call_id)
                continue
            actions = result.actions.model_copy(
                update={"requested_tool_confirmations": {call_id: request}}
            )
            alone = result.model_copy(update={"actions": actions})
            made = event_with_call(events, call_id)
            asking += [generate_request_confirmation_event(context, made, alone)] if made else []
    return [event for event in asking if event is not None]


def request_approval(
    context: ToolContext, pending: PendingApproval, hint: str = ""
) -> dict[str, Any]:
    """Request a person's decision about a call, and return the call's result until it is given."""
    context.request_confirmation(hint=hint, payload=pending.payload())
    context.actions.skip_summarization = True  # the model must not continue with this result
    return dict(AWAITING)


def find_response(pending: PendingApproval, events: Sequence[Event]) -> Mapping[str, Any] | None:
    """Return the newest response to a request with this call's fingerprint; None if there is none.

    ADK passes the confirmation with the call's id. That may be a request that a child's call made
    through this one, and a provider may use an id twice, so the events are searched.
    """
    requests: set[str] = set()
    found: Mapping[str, Any] | None = None
    for event in events:
        if any(call.id == pending.call_id for call in event.get_function_calls()):
            requests, found = set(), None
        asked = [confirmation_request(call, event.author) for call in confirmation_calls(event)]
        requests |= {
            request.confirmation_id
            for request in asked
            if (request.call_id, request.sha256) == (pending.call_id, pending.sha256)
        }
        for response in confirmation_answers(event):
            found = response.response if response.id in requests else found
    return found


def replacing_result(answer: ApprovalAnswer) -> dict[str, Any] | None:
    """Return the result of a call that a person rejected or answered; None if it has to run."""
    remark = f" They say: {answer.message}" if answer.message else ""
    if answer.decision == "reject":
        message = (
            f"A person rejected this call, so it did not run.{remark} "
            "Do not make the same call again."
        )
        return {"status": "rejected", "message": message}
    if answer.decision == "respond":
        message = f"The tool did not run: a person answered in its place.{remark}"
        return {"status": "answered", "answer": answer.response, "message": message}
    return None


def _unknown_tools(names: Collection[str], known: Collection[str]) -> str:
    return (
        f"interrupt_on names no tool of this agent: {', '.join(sorted(names))}. "
        f"There are {', '.join(sorted(known))}."
    )


def decisions_for(
    policy: Mapping[str, tuple[Decision, ...]], tool: str, args: Mapping[str, Any]
) -> tuple[Decision, ...] | None:
    """Return the decisions that a person is offered about a call; None if it is not guarded.

    Args:
        policy: The agent's.
        tool: The tool's name.
        args: The call's arguments.
    """
    names = COVERED_BY.get(tool, (tool,))
    if tool == "write_file" and args.get("overwrite"):
        names = _OVERWRITING
    found = [policy[name] for name in names if name in policy]
    if not found:
        return None
    return tuple(each for each in found[0] if all(each in other for other in found)) or ("reject",)
