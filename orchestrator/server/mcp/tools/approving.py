"""The tools for decisions of the client's user."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import InputRequiredResult, ToolAnnotations
from pydantic import Field

from fanout.orchestrator.approvals import Decision
from fanout.orchestrator.server.mcp.doors import Door, ToolContext
from fanout.orchestrator.server.mcp.tools import texts
from fanout.orchestrator.server.mcp.tools.elicitation import Elicitation
from fanout.orchestrator.server.mcp.tools.reports import Answered, WaitingCall, WaitingCalls

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
DECIDES = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)
MAX_LISTED = 50
"""Calls that are listed at once: each has its arguments."""

Remark = Annotated[str, Field(description="A remark of the user for the agent.", max_length=20_000)]
Arguments = Annotated[
    dict[str, Any] | None, Field(description="For edit: the complete arguments to run with.")
]
Response = Annotated[Any, Field(description="For respond: what the agent gets as the result.")]


class Approving:
    """Lists waiting calls, and passes on decisions about them.

    Args:
        door: Where the caller's jobs are found.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.list_approvals, None, "List approvals", texts.LIST_APPROVALS, READS)
        server.add_tool(
            self.respond_approval, None, "Pass on a decision", texts.RESPOND_APPROVAL, DECIDES
        )

    async def list_approvals(self, context: ToolContext) -> WaitingCalls:
        """Return the calls that wait, oldest first."""
        async with self._door.open(context) as opened:
            found = await opened.jobs.approvals()
        return WaitingCalls(
            approvals=[WaitingCall.of(one) for one in found[:MAX_LISTED]],
            omitted=len(found[MAX_LISTED:]),
        )

    async def respond_approval(
        self,
        context: ToolContext,
        *,
        approval_id: str,
        decision: Decision,
        message: Remark = "",
        arguments: Arguments = None,
        response: Response = None,
    ) -> Answered | InputRequiredResult:
        """Answer an approval, and return whose job goes on.

        Where the client can ask, its user confirms what would let the call run or answer it: a
        model may say that its user has decided when nobody has.
        """
        given = {"message": message, "arguments": arguments, "response": response}
        async with self._door.open(context) as opened:
            asking = Elicitation(context, opened.jobs)
            waiting = {one.id: one for one in await opened.jobs.approvals()}
            if decision != "reject" and asking.is_possible and approval_id in waiting:
                proposed = {name: value for name, value in given.items() if value}
                confirmed = await asking.confirm(
                    waiting[approval_id], {"decision": decision, **proposed}
                )
                if isinstance(confirmed, InputRequiredResult):
                    return confirmed
                if not confirmed:
                    raise ToolError("Your user did not confirm this, so nothing was decided.")
            job_id = await opened.jobs.answer(
                approval_id, decision, arguments=arguments, response=response, message=message
            )
        return Answered(approval_id=approval_id, job_id=job_id)
