"""Asking the person at the terminal about a coordinator's own calls.

Imports ADK, so it is imported late.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from orchestrator.approvals import ApprovalAnswer, Decision
from orchestrator.cli.terminal import output
from orchestrator.coordinator.coordinator import Decide, reject_unasked
from orchestrator.deep_agent import PendingApproval

SHOWN_CHARACTERS = 4_000
"""Of a call's arguments: a screenful or two. What is cut off is said."""

SetAside = Callable[[], AbstractContextManager[object]]
"""Takes a live picture off the screen while the context lasts."""


def decider(*, yes: bool, set_aside: SetAside = nullcontext) -> Decide:
    """How a run's approvals are decided.

    All approved, asked at the terminal, or rejected without one.
    """
    if yes:
        return _approve
    if output.stdin_is_terminal() and output.stderr_is_terminal():
        return _Asker(set_aside).decide
    return reject_unasked


async def _approve(pending: PendingApproval) -> ApprovalAnswer:
    if "approve" not in pending.decisions:
        return ApprovalAnswer(
            decision="reject", message="--yes approves, and that is not allowed here."
        )
    return ApprovalAnswer(decision="approve")


class _Asker:
    """Asks one question at a time."""

    def __init__(self, set_aside: SetAside) -> None:
        self._set_aside = set_aside

    async def decide(self, pending: PendingApproval) -> ApprovalAnswer:
        """Show the call, and take what the person types; the end of the input rejects it."""
        with self._set_aside():
            output.notice(_told(pending))
            try:
                return await self._ask(pending)
            except EOFError:
                return ApprovalAnswer(decision="reject", message="Nobody answered.")

    async def _ask(self, pending: PendingApproval) -> ApprovalAnswer:
        choices = ", ".join(pending.decisions)
        while True:
            decision = _chosen(await _line(f"{choices}? "), pending.decisions)
            if decision is None:
                output.notice(f"Type one of {choices}, or how it begins.")
                continue
            answer = await self._completed(decision)
            if answer is not None:
                return answer

    async def _completed(self, decision: Decision) -> ApprovalAnswer | None:
        """The answer with what it needs; None when that was not understood."""
        if decision == "approve":
            return ApprovalAnswer(decision=decision)
        if decision == "reject":
            why = await _line("Why (may be empty)? ")
            return ApprovalAnswer(decision=decision, message=why)
        if decision == "respond":
            said = await _line("What is the agent told instead? ")
            return ApprovalAnswer(decision=decision, response=said)
        edited = _object(await _line("All arguments as JSON, on one line: "))
        if edited is None:
            output.notice("That is not a JSON object.")
            return None
        return ApprovalAnswer(decision=decision, arguments=edited)


def _told(pending: PendingApproval) -> str:
    arguments = json.dumps(pending.arguments, indent=2, ensure_ascii=False)
    more = len(arguments) - SHOWN_CHARACTERS
    shown = (
        arguments if more <= 0 else f"{arguments[:SHOWN_CHARACTERS]}… ({more:,} more characters)"
    )
    again = f"{pending.hint}\n" if pending.hint else ""
    return f"{again}{pending.agent} wants to call {pending.tool} with\n{shown}"


def _chosen(typed: str, decisions: tuple[Decision, ...]) -> Decision | None:
    fitting = [decision for decision in decisions if typed and decision.startswith(typed.lower())]
    return fitting[0] if len(fitting) == 1 else None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _line(question: str) -> str:
    """A line that the person types. Not in a thread: nobody could interrupt the wait there.

    Raises:
        EOFError: the input has ended.
    """
    print(question, end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        loop.remove_reader(sys.stdin)
        if not typed.done():
            typed.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, read)
    try:
        text = await typed
    finally:
        loop.remove_reader(sys.stdin)
    if not text:
        raise EOFError
    return text.strip()
