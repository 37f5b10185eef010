"""The `fanout …` commands in shell texts, checked against the application without running them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import typer

from docs.generate.command_line import commands, context
from fanout.orchestrator.cli.app import app

SEPARATORS = set("();|&<>")


def fanout_commands(script: str) -> Iterator[list[str]]:
    """The arguments of each command of ours in a shell script, also in substitutions."""
    for line in script.replace("\\\n", " ").splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars="();|&<>")
        reader.whitespace_split = True
        words: list[str] = []
        for token in [*reader, ";"]:
            if set(token) <= SEPARATORS:
                yield from _ours(words)
                words = []
            else:
                words.append(token)


def complaint(arguments: list[str]) -> str | None:
    """Why the command line would refuse these arguments; None: it knows all of them."""
    if not arguments or arguments[0].startswith("-"):
        known = {"--help", "--version", "--config"}
        return None if set(arguments[:1]) <= known else f"{arguments[0]} is no option"
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if name in made():
            return _parsed(name, arguments[length:])
    return f"{arguments[0]} is no command"


@cache
def made() -> dict[str, Any]:
    return dict(commands())


def groups() -> set[str]:
    return {name for name, one in _root().commands.items() if getattr(one, "commands", None)}


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def _ours(words: list[str]) -> Iterator[list[str]]:
    while words and (words[0] in ("export", "exec") or "=" in words[0]):
        words = words[1:]
    if words and PurePosixPath(words[0]).name == "fanout":
        yield words[1:]


def _parsed(name: str, arguments: list[str]) -> str | None:
    given = context(name, made()[name])
    try:
        given.command.make_parser(given).parse_args(list(arguments))
    except typer.TyperException as error:
        return f"fanout {name}: {error.format_message()}"
    return None
