"""Asks a person when a rule says so, with the approvals' requests and answers.

A tool finds out what it touches while it runs. What needs a question raises; the call becomes a
request, and runs again, whole, when a person has approved exactly this call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.approvals import Decision, fingerprint
from fanout.orchestrator.deep_agent.approval.gate import (
    replacing_result,
    request_approval,
    response_to,
)
from fanout.orchestrator.deep_agent.approval.requests import PendingApproval, answer_in
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.failures import ApprovalRequired
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.permissions.permitted import Consent, permitted
from fanout.orchestrator.deep_agent.permissions.rules import Permission, Permissions
from fanout.orchestrator.deep_agent.prompts import RULES_AND_SHELL
from fanout.orchestrator.deep_agent.tool import CheckedTool

_DECISIONS: tuple[Decision, ...] = ("approve", "reject")


class PermissionGate(Middleware):
    """The permissions of one agent.

    Args:
        lists: Its own rules and those of the agents that delegated to it, a list for each.
    """

    def __init__(self, lists: Sequence[Sequence[Permission]]) -> None:
        self.permissions = Permissions(lists)
        self._approved: WeakSet[Any] = WeakSet()

    def check_shell(self) -> None:
        """Refuse rules for files beside a shell about which they say nothing.

        Raises:
            ValueError: There is no rule for execute.
        """
        if self.permissions.guard_files and not self.permissions.name_commands:
            raise ValueError(
                "These permissions do not keep a shell from files: a command reads and writes what "
                "it likes. Add a rule for it: Permission(mode='deny', operations=['execute']) takes "
                "the shell away, 'ask' lets a person see each command, and 'allow' says that you "
                "accept it."
            )

    def files(self, backend: Backend, context: Any) -> Backend:
        """Return an agent's files for a context of ADK, as far as the rules allow."""
        possible = bool(getattr(context, "function_call_id", None))
        consent = Consent(given=possible and context in self._approved, possible=possible)
        return permitted(backend, self.permissions, consent)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Say that commands are not a way around the rules."""
        del context
        has_shell = "execute" in tools and not self.permissions.allow_no_command
        return RULES_AND_SHELL if has_shell and self.permissions.guard_files else ""

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Carry out the answer to an earlier request of this call."""
        if tool_context.tool_confirmation is None or not isinstance(tool, CheckedTool):
            return None
        pending = _pending(tool, args, tool_context)
        response = response_to(pending, tool_context.session.events)
        if response is None:
            return None
        answer = answer_in(response, pending)
        if isinstance(answer, str):
            return request_approval(
                tool_context, pending, f"The answer was not accepted: {answer}."
            )
        if answer.decision == "approve":
            self._approved.add(tool_context)
        return replacing_result(answer)

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """Ask a person when a tool has met what needs it."""
        if not isinstance(error, ApprovalRequired):
            return None
        return request_approval(tool_context, _pending(tool, args, tool_context), str(error))


def _pending(tool: BaseTool, args: dict[str, Any], context: ToolContext) -> PendingApproval:
    return PendingApproval(
        confirmation_id="",
        call_id=str(context.function_call_id),
        tool=tool.name,
        arguments=args,
        decisions=_DECISIONS,
        sha256=fingerprint(tool.name, args),
        agent=context.agent_name,
    )
