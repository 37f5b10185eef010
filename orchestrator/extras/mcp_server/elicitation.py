"""Questions to the person in front of the client: the client shows a form and returns the decision.

Since protocol version 2026-07-28 a question is the result of a call, which the client repeats with
the answers; a server that keeps nothing can ask in this way. Earlier clients are asked during the
call, if their connection has a way back, as stdio has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import is_version_at_least
from pydantic import JsonValue

from ...approvals import DECISIONS, Decision
from ...configuration.api_settings import Scope
from ...jobs.approvals import Approval
from ...jobs.bounds import fit
from ...jobs.failures import AnsweredAlready, InvalidAnswer
from ...server.owned_jobs import OwnedJobs
from ...shortening import one_line
from ...valid_text import escape_hidden, printable
from . import texts
from .doors import ToolContext

ASKS_BY_RESULT = "2026-07-28"
"""The first protocol version in which a question is a result."""
MAX_ARGUMENT_BYTES = 4 * 1024
"""The largest arguments of a call in a question, which a person has to read."""
MAX_QUESTIONS = 5
"""The most forms that a person gets at once."""


class Elicitation:
    """The questions of one call.

    Args:
        context: The call.
        jobs: The caller's jobs.
    """

    def __init__(self, context: ToolContext, jobs: OwnedJobs) -> None:
        self._context = context
        self._jobs = jobs
        self._is_declined = False

    @property
    def is_possible(self) -> bool:
        """Whether the client can ask its user, who may decide and did not refuse to."""
        client = self._context.client_capabilities
        asked = client.elicitation if client is not None else None
        if asked is None or (asked.url is not None and asked.form is None):
            return False
        has_way = self._by_result or self._context.session.can_send_request
        return has_way and not self._is_declined and Scope.APPROVE in self._jobs.caller.scopes

    @property
    def _by_result(self) -> bool:
        return is_version_at_least(self._context.protocol_version or "", ASKS_BY_RESULT)

    async def take_answers(self) -> None:
        """Pass on the answers with which the client repeats its call.

        Raises:
            UnknownApproval: One is for a call that does not exist, or of another owner's job.
            InvalidAnswer, DecisionNotAllowed: One is not among the decisions that were offered.
        """
        for approval_id, answer in (self._context.input_responses or {}).items():
            if isinstance(answer, ElicitResult):
                await self._take(approval_id, answer)

    async def ask(self, approvals: Sequence[Approval]) -> InputRequiredResult | None:
        """Ask about waiting calls; None when the person has answered or refused to.

        Args:
            approvals: The calls.

        Raises:
            InvalidAnswer, DecisionNotAllowed: An answer is not among the decisions offered.
        """
        approvals = approvals[:MAX_QUESTIONS]
        if self._by_result:
            return InputRequiredResult(
                input_requests={one.id: ElicitRequest(params=form(one)) for one in approvals}
            )
        for one in approvals:
            question = form(one)
            answer = await self._context.session.elicit_form(
                question.message, question.requested_schema, self._context.request_id
            )
            await self._take(one.id, answer)
            if self._is_declined:
                break
        return None

    async def confirm(
        self, approval: Approval, proposed: Mapping[str, JsonValue]
    ) -> InputRequiredResult | bool:
        """Ask whether a decision from the client's model is the person's.

        Args:
            approval: The call.
            proposed: The decision, with its values.
        """
        question = _confirmation(approval, proposed)
        key = f"confirm {approval.id}"
        if self._by_result:
            answer = (self._context.input_responses or {}).get(key)
            if not isinstance(answer, ElicitResult):
                return InputRequiredResult(input_requests={key: ElicitRequest(params=question)})
        else:
            answer = await self._context.session.elicit_form(
                question.message, question.requested_schema, self._context.request_id
            )
        return answer.action == "accept" and (answer.content or {}).get("confirm") is True

    async def _take(self, approval_id: str, answer: ElicitResult) -> None:
        if answer.action != "accept":
            self._is_declined = True
            return
        content = answer.content or {}
        decision = read_decision(content.get("decision"))
        message = str(content.get("message") or "")
        is_response = decision == "respond"
        with suppress(AnsweredAlready):  # by another person meanwhile
            await self._jobs.answer(
                approval_id,
                decision,
                response=message if is_response else None,
                message="" if is_response else message,
            )


def read_decision(value: object) -> Decision:
    """Return a decision.

    Raises:
        InvalidAnswer: The value is not a decision.
    """
    found = next((one for one in DECISIONS if one == value), None)
    if found is None:
        raise InvalidAnswer(f"The answer has no decision: give one of {', '.join(DECISIONS)}.")
    return found


def form(approval: Approval) -> ElicitRequestFormParams:
    """Return the form for a call; `edit` needs the arguments as JSON, so no form offers it."""
    decisions = [one for one in approval.decisions if one != "edit"] or ["reject"]
    message: dict[str, JsonValue] = {
        "type": "string",
        "title": "Message",
        "description": "A remark for the agent; of respond: the call's result.",
    }
    properties: Mapping[str, JsonValue] = {
        "decision": {"type": "string", "title": "Decision", "enum": list(decisions)},
        "message": message,
    }
    return ElicitRequestFormParams(
        message=question_text(approval),
        requested_schema={
            "type": "object",
            "properties": dict(properties),
            "required": ["decision"],
        },
    )


def _confirmation(approval: Approval, proposed: Mapping[str, JsonValue]) -> ElicitRequestFormParams:
    confirm: dict[str, JsonValue] = {"type": "boolean", "title": "This is my decision"}
    return ElicitRequestFormParams(
        message=f"{question_text(approval)}\n{texts.CONFIRM} {_plain(proposed)}",
        requested_schema={
            "type": "object",
            "properties": {"confirm": confirm},
            "required": ["confirm"],
        },
    )


def question_text(approval: Approval) -> str:
    """Return the question about a call; text that could hide a part of it is escaped."""
    return texts.ASK.format(
        agent=one_line(printable(approval.agent)),
        job_id=approval.job_id,
        tool=one_line(printable(approval.tool)),
        arguments=_plain(approval.arguments),
    )


def _plain(value: Mapping[str, JsonValue]) -> str:
    return escape_hidden(
        json.dumps(fit(dict(value), MAX_ARGUMENT_BYTES), ensure_ascii=False, indent=1)
    )
