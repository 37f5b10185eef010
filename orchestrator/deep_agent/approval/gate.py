"""Approval: a call that a person decides on before it runs.

Built on ADK's confirmation protocol. A guarded call asks before it runs; ADK turns that into a call
of `adk_request_confirmation`, which a front end answers with a function response of the same id,
and then makes the original call again. What is asked and what was answered stand in the session's
events, so another process can go on with them. Without an answer that counts the tool does not run
and the person is asked again.

A front end needs `pending_approvals` on a session's events and `answers_message` as the next
message.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows.functions import generate_request_confirmation_event
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from orchestrator.approvals import ApprovalAnswer, InterruptOn, fingerprint, merge_policies
from orchestrator.deep_agent.approval.requests import (
    PendingApproval,
    answer_in,
    confirmation_answers,
    confirmation_calls,
    pending_approvals,
    request_of,
)
from orchestrator.deep_agent.failures import UnknownGuardedTool
from orchestrator.deep_agent.part import Part

AWAITING = {
    "status": "waiting_for_approval",
    "message": "A person was asked to approve this call; it has not run.",
}
"""Stands as the call's result until the answer is there. The model sees it only where a person goes
on with another message instead of an answer."""

NOTED_CHARACTERS = 2_000
"""How much of edited arguments is repeated to the model beside the result."""


class ApprovalGate(Part):
    """Lets a guarded call run only when a person said so.

    Stands last: it sees what would really run.

    Args:
        interrupt_on: the agent's own policy; it must name tools that exist.
        inherited: a parent's policy, which binds as well and may name tools that this agent does
            not have.
        known: the names of the tools that the agent has or could have.
        more_later: whether toolsets may bring others, which are known with the first model call
            only.

    Raises:
        ValueError: the policy names a tool that does not exist, or is not understood.
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
        self._known = set(known)
        self._unproven = set(interrupt_on) - self._known
        if self._unproven and not more_later:
            raise ValueError(_unknown_tools(self._unproven, self._known))

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Refuse to go on with a policy that guards a tool nobody has: it is misspelt."""
        del callback_context
        if unknown := self._unproven - llm_request.tools_dict.keys():
            raise UnknownGuardedTool(
                _unknown_tools(unknown, self._known | llm_request.tools_dict.keys())
            )

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Ask, or do what was answered."""
        decisions = self._policy.get(tool.name)
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
            return _ask(tool_context, pending)
        response = _response_to(pending, tool_context.session.events)
        missing = "it was given for another call"
        answer = missing if response is None else answer_in(response, pending)
        if isinstance(answer, str):
            hint = f"The answer was not taken: {answer}. Allowed are {', '.join(decisions)}."
            return _ask(tool_context, pending, hint)
        if answer.decision == "edit":
            args.clear()
            args.update(answer.arguments or {})
        return _in_place_of_result(answer)


class ApprovalFlow(Part):
    """Asks a person, does not call the model until all is answered, and reports edits to it.

    Stands first among the parts, so that nothing is done to a session that waits. An agent without
    a policy needs it too: its tools may ask by themselves, or for a child.
    """

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """Ask what was not asked, and do not call the model while a request is open.

        ADK itself asks for the calls of a model's reply.
        """
        del request
        events = _own_events(context)
        asking = _unasked(context, events)
        if pending_approvals([*events, *asking]):
            context.end_invocation = True
        return asking

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> None:
        """Say so where the call ran with other arguments than the model gave."""
        del tool
        call_id = str(tool_context.function_call_id)
        is_pause = call_id in tool_context.actions.requested_tool_confirmations
        was_asked = tool_context.tool_confirmation is not None and not is_pause
        if not was_asked or not isinstance(tool_response, dict):
            return
        made = _event_with_call(tool_context.session.events, call_id)
        calls = made.get_function_calls() if made is not None else []
        if any(call.id == call_id and (call.args or {}) != args for call in calls):
            shown = json.dumps(args, ensure_ascii=False)[:NOTED_CHARACTERS]
            tool_response["approval"] = f"A person changed the arguments; the call ran with {shown}"


def _own_events(context: InvocationContext) -> list[Event]:
    """The events of this run: what an earlier one left open does not hold up a new message."""
    return [
        event for event in context.session.events if event.invocation_id == context.invocation_id
    ]


def _unasked(context: InvocationContext, events: Sequence[Event]) -> list[Event]:
    """An event for each request in a result that was not put before a person.

    ADK does that right after the model's reply. It does not when a call that is made again asks
    again, and it could not when the process died in between.
    """
    asked = [
        request_of(call, event.author).call_id
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
            made = _event_with_call(events, call_id)
            asking += [generate_request_confirmation_event(context, made, alone)] if made else []
    return [event for event in asking if event is not None]


def _event_with_call(events: Sequence[Event], call_id: str) -> Event | None:
    """The newest event that holds the call."""
    holders = (
        event
        for event in reversed(events)
        if any(call.id == call_id for call in event.get_function_calls())
    )
    return next(holders, None)


def _ask(context: ToolContext, pending: PendingApproval, hint: str = "") -> dict[str, Any]:
    context.request_confirmation(hint=hint, payload=pending.payload())
    context.actions.skip_summarization = True  # a pause is no result for the model to go on with
    return dict(AWAITING)


def _response_to(pending: PendingApproval, events: Sequence[Event]) -> Mapping[str, Any] | None:
    """Return the newest answer to the request with this call's fingerprint; None if none counts.

    ADK passes the confirmation of the call's id. That may be one that a child's call asked for
    through this one, and a provider may use an id twice: so it is looked up.
    """
    requests: set[str] = set()
    found: Mapping[str, Any] | None = None
    for event in events:
        if any(call.id == pending.call_id for call in event.get_function_calls()):
            requests, found = set(), None
        asked = [request_of(call, event.author) for call in confirmation_calls(event)]
        requests |= {
            request.confirmation_id
            for request in asked
            if (request.call_id, request.sha256) == (pending.call_id, pending.sha256)
        }
        for response in confirmation_answers(event):
            found = response.response if response.id in requests else found
    return found


def _in_place_of_result(answer: ApprovalAnswer) -> dict[str, Any] | None:
    """What the model is told where the tool does not run."""
    said = f" They say: {answer.message}" if answer.message else ""
    if answer.decision == "reject":
        message = f"A person rejected this call, so it did not run.{said}"
        return {"status": "rejected", "message": f"{message} Do not make the same call again."}
    if answer.decision == "respond":
        message = f"The tool did not run: a person answered in its place.{said}"
        return {"status": "answered", "answer": answer.response, "message": message}
    return None


def _unknown_tools(names: Collection[str], known: Collection[str]) -> str:
    return (
        f"interrupt_on names no tool of this agent: {', '.join(sorted(names))}. "
        f"There are {', '.join(sorted(known))}."
    )
