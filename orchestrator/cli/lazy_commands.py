"""A command whose module is imported when it is called, not when commands are listed."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from fanout.orchestrator.configuration.absent_packages import absent

COMMANDS_PACKAGE = "fanout.orchestrator.cli.commands"
COMMANDS_FOLDER = Path(__file__).parent / "commands"
NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Pydantic's variable that disables plugins."""
FOR_OTHER_PROGRAMS = {"adk"}
"""Commands that pass on all arguments, including options, after their first one."""


class LazyCommand(TyperCommand):
    """Represents a command in its group, until it is called or its own help is requested.

    Args:
        name: Its name on the command line.
        function: Its module below `commands/` and the function in it, separated by dots.
    """

    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)
        self._module, _, self._function = function.rpartition(".")

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return a context of the command itself, which has its own options and help text."""
        return self._load().make_context(info_name, args, parent, **extra)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the beginning of the help text, read from the source file without running it."""
        source = COMMANDS_FOLDER.joinpath(*self._module.split(".")).with_suffix(".py").read_bytes()
        self.help = next(
            inspect.cleandoc(ast.get_docstring(node) or "")
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef) and node.name == self._function
        )
        return super().get_short_help_str(limit)

    def _load(self) -> Any:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        function = import_command(self._module, self._function)
        settings = {"allow_interspersed_args": self.name not in FOR_OTHER_PROGRAMS}
        single.command(self.name, context_settings=settings)(function)
        command = typer.main.get_command(single)
        command.params += self.params  # those that the group gives to all of its commands
        return command


class LazyGroup(TyperGroup):
    """A group of lazy commands, which it lists before those that are registered with Typer."""

    functions: ClassVar[Mapping[str, str]]
    """The commands: name on the command line → module and function, as `LazyCommand` takes it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        lazy = {name: LazyCommand(name, function) for name, function in self.functions.items()}
        self.commands = {**lazy, **self.commands}


def import_command(module: str, function: str) -> Any:
    """Return the function of a command.

    Args:
        module: Its module below `commands/`.
        function: Its name.
    """
    # redis-py imports OpenTelemetry for metrics that no command exports.
    with absent("opentelemetry"), _without_plugins():
        return getattr(import_module(f"{COMMANDS_PACKAGE}.{module}"), function)


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Let Pydantic look for no plugins: it would search all installed packages for them."""
    before = os.environ.get(NO_PLUGINS)
    os.environ[NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[NO_PLUGINS]
        if before is not None:
            os.environ[NO_PLUGINS] = before
