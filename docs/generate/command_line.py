"""The reference of the command line, from the Typer application."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from docs.generate.markdown import code, prose, table
from fanout.orchestrator.cli.app import app


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its full name, `images build` for example."""
    yield from _below(typer.main.get_command(app), "")


def context(name: str, command: Any) -> Any:
    """Return what a command needs to describe or parse its arguments."""
    return command.make_context(f"fanout {name}", [], resilient_parsing=True)


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for name, command in commands():
        made = context(name, command)
        described = made.command
        usage = described.get_usage(made).removeprefix("Usage: ")
        parts.append(f"\n## {name}\n\n```text\n{usage}\n```\n\n{_help(described)}\n")
        if rows := list(_rows(described, made)):
            parts.append("\n" + table(("argument or option", "meaning"), rows))
    return "".join(parts)


def _below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from _below(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _help(command: Any) -> str:
    return prose(inspect.cleandoc(command.help or ""))


def _rows(command: Any, made: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if "--config" in parameter.opts:
            continue
        record = parameter.get_help_record(made)
        if record is not None:
            yield code(record[0]), prose(record[1])


INTRODUCTION = """# Command line

Payload goes to stdout, everything else to stderr. Ids may be shortened while they are unique.
`--config FILE` is understood before and after a command's name: the configuration file, which may
have a `.env` and `agents/` beside it.

Exit codes: 0 done, 1 the work failed, 2 usage, 3 a service is unreachable, 4 not allowed, 5 timed out.
"""
