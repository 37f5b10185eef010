"""Questions to a person at the terminal; on stderr, so that stdout stays the result's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from getpass import getpass
from typing import NamedTuple

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.live.waiting import speaking


class Choice(NamedTuple):
    """One answer to a question."""

    name: str
    what: str
    """What it does, in a few words."""


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
        default: What an empty line means; None: it is asked again.

    Raises:
        typer.Abort: the input has ended.
    """
    with speaking():
        return str(typer.prompt(question, default=default, err=True)).strip()


def confirm(question: str, *, default: bool = False) -> bool:
    """Return whether a person says yes.

    Args:
        question: The question.
        default: What an empty line means.

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
