"""Asks the person at the terminal to decide a coordinator's own tool calls.

Imports ADK, which takes seconds, so commands import it when they need it.
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
"""Of a call's arguments: one or two screens. A note reports how much was omitted."""

SetAside = Callable[[], AbstractContextManager[object]]
"""Removes a live view from the screen while the context is open."""


def decider(*, yes: bool, set_aside: SetAside = nullcontext) -> Decide:
    """Return how a run's approvals are decided: by a person at the terminal, else rejected.

    Args:
        yes: approve every call without asking.
        set_aside: removes a live view while a question is asked.
    """
    if yes:
        return _approve
    if output.stdin_is_terminal() and output.stderr_is_terminal():
        return _Asker(set_aside).decide
    return reject_unasked


async def _approve(pending: PendingApproval) -> ApprovalAnswer:
    if "approve" not in pending.decisions:
        return ApprovalAnswer(
            decision="reject", message="--yes approves, and approving is not allowed for this call."
        )
    return ApprovalAnswer(decision="approve")


class _Asker:
    """Asks a person, one question at a time."""

    def __init__(self, set_aside: SetAside) -> None:
        self._set_aside = set_aside

    async def decide(self, pending: PendingApproval) -> ApprovalAnswer:
        """Print the call and return the person's decision; end of input rejects the call."""
        with self._set_aside():
            output.notice(_format_call(pending))
            try:
                return await self._ask(pending)
            except EOFError:
                return ApprovalAnswer(decision="reject", message="Nobody answered.")

    async def _ask(self, pending: PendingApproval) -> ApprovalAnswer:
        choices = ", ".join(pending.decisions)
        while True:
            decision = _chosen(await _line(f"{choices}? "), pending.decisions)
            if decision is None:
                output.notice(f"Type one of {choices}, or a prefix of it.")
                continue
            answer = await self._completed(decision)
            if answer is not None:
                return answer

    async def _completed(self, decision: Decision) -> ApprovalAnswer | None:
        """Ask for what a decision needs; None if the input is invalid."""
        if decision == "approve":
            return ApprovalAnswer(decision=decision)
        if decision == "reject":
            why = await _line("Why (may be empty)? ")
            return ApprovalAnswer(decision=decision, message=why)
        if decision == "respond":
            response = await _line("Result for the agent instead: ")
            return ApprovalAnswer(decision=decision, response=response)
        edited = _object(await _line("All arguments as JSON, on one line: "))
        if edited is None:
            output.notice("That is not a JSON object.")
            return None
        return ApprovalAnswer(decision=decision, arguments=edited)


def _format_call(pending: PendingApproval) -> str:
    arguments = json.dumps(pending.arguments, indent=2, ensure_ascii=False)
    more = len(arguments) - SHOWN_CHARACTERS
    shown = (
        arguments if more <= 0 else f"{arguments[:SHOWN_CHARACTERS]}… ({more:,} more characters)"
    )
    hint = f"{pending.hint}\n" if pending.hint else ""
    return f"{hint}{pending.agent} wants to call {pending.tool} with\n{shown}"


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
    """Return a line that the person types. No thread, because its wait could not be interrupted.

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
