"""Questions to a person at the terminal, on stderr, so that stdout has only the result.

They include those about tool calls of a run that wait for an approval.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from getpass import getpass
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from ...approvals import ApprovalAnswer, Decision
from ...cancellation import cancel_and_wait
from ...jobs.approvals import Approval
from ...jobs.failures import ApprovalRefused, LedgerUnavailable
from ...valid_text import escape_hidden
from . import formatting, output
from .waiting import speaking

if TYPE_CHECKING:
    from ...client import JobClient

SHOWN_CHARACTERS = 4_000
"""The longest part of a call's arguments that is shown: one or two screens. Of longer ones both
ends are shown, and the number of characters between them."""
SHOWN_BLANKS = 40
"""The most spaces in a row: more of them are counted, because they could move the rest off the
screen."""
POLL_SECONDS = 0.5
"""The time between two checks for approvals, and for answers of other terminals: not noticeable."""

_BLANKS = re.compile(rf" {{{SHOWN_BLANKS},}}")

SetAside = Callable[[], AbstractContextManager[object]]
"""Removes a live view from the screen while the context is open."""


class Choice(NamedTuple):
    """One answer to a question."""

    name: str
    what: str
    """The effect of the answer, in a few words."""


def may_ask() -> bool:
    """Whether a person sees questions and can answer them."""
    return output.stdin_is_terminal() and output.stderr_is_terminal()


def choose(question: str, choices: Sequence[Choice]) -> str:
    """Return the name of the answer that a person chooses; the first one is the default.

    Raises:
        typer.Abort: the input has ended.
    """
    output.notice(question)
    for number, choice in enumerate(choices, start=1):
        output.notice(f"  {number}  {choice.name}: {choice.what}")
    names = ", ".join(choice.name for choice in choices)
    while True:
        typed = ask("Choose", default=choices[0].name)
        chosen = _chosen(typed, choices)
        if chosen is not None:
            return chosen
        output.notice(f"Type one of {names}, the beginning of one, or its number.")


def ask(question: str, *, default: str | None = None) -> str:
    """Return what a person types, without the space around it.

    Args:
        question: The question.
        default: The meaning of an empty line; None: the question is repeated.

    Raises:
        typer.Abort: the input has ended.
    """
    with speaking():
        return str(typer.prompt(question, default=default, err=True)).strip()


def confirm(question: str, *, default: bool = False) -> bool:
    """Return whether a person answers yes.

    Args:
        question: The question.
        default: The meaning of an empty line.

    Raises:
        typer.Abort: the input has ended.
    """
    with speaking():
        return bool(typer.confirm(question, default=default, err=True))


def ask_secret(question: str) -> str:
    """Return what a person types, which is not shown; the terminal is silent before it is asked.

    Raises:
        typer.Abort: the input has ended.
    """
    try:
        with speaking():
            return getpass(f"{question}: ", stream=sys.stderr)
    except (EOFError, KeyboardInterrupt):
        raise typer.Abort from None


def _chosen(typed: str, choices: Sequence[Choice]) -> str | None:
    if typed.isdecimal() and 0 < int(typed) <= len(choices):
        return choices[int(typed) - 1].name
    fitting = [one.name for one in choices if typed and one.name.startswith(typed.lower())]
    return fitting[0] if len(fitting) == 1 else None


async def answer_approvals(
    client: JobClient,
    root_id: str,
    *,
    yes: bool,
    set_aside: SetAside,
    jobs: Callable[[], Collection[str]],
) -> None:
    """Answer the approvals of a run until cancelled.

    Without a terminal nothing is asked: the approvals wait for `fanout approve`.

    Args:
        client: The connected client.
        root_id: The run's root job.
        yes: Approve the calls of all of the run's jobs without asking.
        set_aside: Removes a live view while a question is asked.
        jobs: Returns the ids of the run's jobs.
    """
    may_ask = output.stdin_is_terminal() and output.stderr_is_terminal()
    prompt = _Prompt(client, set_aside)
    while True:
        for approval in await _waiting(client):
            if approval.job_id != root_id and approval.job_id not in jobs():
                continue
            if yes:
                await _answer(client, approval, _consent(approval))
            elif may_ask:
                await prompt.ask(approval)
        await asyncio.sleep(POLL_SECONDS)


async def _waiting(client: JobClient) -> list[Approval]:
    try:
        return await client.approvals()
    except LedgerUnavailable:  # the live view shows it
        return []


async def _answer(client: JobClient, approval: Approval, answer: ApprovalAnswer) -> None:
    try:
        await client.answer(
            approval.id,
            answer.decision,
            arguments=answer.arguments,
            response=answer.response,
            message=answer.message,
        )
    except ApprovalRefused as refused:  # another terminal was faster
        output.notice(str(refused))
    except LedgerUnavailable:  # the question is repeated
        output.notice("Redis does not answer; the decision was not stored.")


def _consent(approval: Approval) -> ApprovalAnswer:
    if "approve" not in approval.decisions:
        return ApprovalAnswer(
            decision="reject", message="--yes approves, and approving is not allowed for this call."
        )
    return ApprovalAnswer(decision="approve")


class _Prompt:
    """Asks a person, one question at a time."""

    def __init__(self, client: JobClient, set_aside: SetAside) -> None:
        self._client = client
        self._set_aside = set_aside
        self._input_ended = False

    async def ask(self, approval: Approval) -> None:
        """Print the call and store the person's decision, unless another person answers first."""
        if self._input_ended:
            return
        with self._set_aside():
            output.notice(format_call(approval))
            asking = asyncio.create_task(self._decision(approval))
            elsewhere = asyncio.create_task(self._until_answered(approval.id))
            try:
                await asyncio.wait((asking, elsewhere), return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    output.notice("\nIt was answered elsewhere.")
                    return
                answer = asking.result()
            except EOFError:
                self._input_ended = True
                output.notice(
                    f"\nNo answer. To answer later: fanout approve {formatting.short_approval(approval.id)}"
                )
                return
            finally:
                await cancel_and_wait(asking, elsewhere)
        await _answer(self._client, approval, answer)

    async def _until_answered(self, approval_id: str) -> None:
        while any(  # noqa: ASYNC110 - another process answers
            one.id == approval_id for one in await _waiting(self._client)
        ):
            await asyncio.sleep(POLL_SECONDS)

    async def _decision(self, approval: Approval) -> ApprovalAnswer:
        choices = ", ".join(approval.decisions)
        while True:
            decision = _chosen_decision(await _line(f"{choices}? "), approval.decisions)
            if decision is None:
                output.notice(f"Type one of {choices}, or a prefix of it.")
                continue
            answer = await self._completed(decision)
            if answer is not None:
                return answer

    async def _completed(self, decision: Decision) -> ApprovalAnswer | None:
        """Ask for the values of a decision; None if the input is invalid."""
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


def format_call(approval: Approval) -> str:
    """Return the question about a call: text that could hide a part of it is escaped or counted."""
    arguments = escape_hidden(json.dumps(approval.arguments, indent=2, ensure_ascii=False))
    shown = _BLANKS.sub(lambda found: f"⟨{len(found[0]):,} spaces⟩", arguments)
    more = len(shown) - SHOWN_CHARACTERS
    if more > 0:
        half = SHOWN_CHARACTERS // 2
        shown = (
            f"{shown[:half]}\n⟨{more:,} more characters; `fanout approvals --json` prints all⟩\n"
            f"{shown[-half:]}"
        )
    hint = f"{approval.hint}\n" if approval.hint else ""
    who = f"{approval.agent} (job {formatting.short_id(approval.job_id)})"
    return f"{hint}{who} wants to call {output.one_line(approval.tool)} with\n{shown}"


def _chosen_decision(typed: str, decisions: Collection[Decision]) -> Decision | None:
    fitting = [decision for decision in decisions if typed and decision.startswith(typed.lower())]
    return fitting[0] if len(fitting) == 1 else None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
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
