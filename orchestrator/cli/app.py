"""The `fanout` command line: all commands in one application.

`failure_report` turns every failure into one sentence and an exit code.
"""

from __future__ import annotations

import ast
import copy
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from ..configuration.absent_packages import absent
from ..tracing.collectors import PARENT, choose_exporter, has_exporter
from ..version import VERSION
from .terminal.exit_codes import ExitCode, debugging
from .terminal.output import payload

COMMANDS_PACKAGE = "fanout.orchestrator.cli.commands"
COMMANDS_FOLDER = Path(__file__).parent / "commands"
NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Pydantic's variable that disables plugins."""
FOR_OTHER_PROGRAMS = {"adk"}
"""Commands that pass on all arguments, including options, after their first one."""
SERVICE = "fanout"
SERVER = "serve"
"""The command that serves other programs, whose traces it continues."""
WORKER = "worker"
"""The command that becomes a worker, which exports its own spans."""
COMMANDS = {
    "init": "init.init",
    "demo": "examples.demo",
    "example": "examples.example",
    "run": "run.run_",
    "attach": "run.attach",
    "submit": "submission.submit",
    "ps": "inspection.ps",
    "tree": "inspection.tree",
    "show": "inspection.show",
    "result": "inspection.result",
    "logs": "inspection.logs",
    "watch": "waiting.watch",
    "wait": "waiting.wait",
    "diff": "diff.diff",
    "apply": "apply.apply",
    "history": "history.history",
    "cost": "cost.cost",
    "top": "top.top",
    "cancel": "submission.cancel",
    "approvals": "approving.approvals",
    "approve": "approving.approve",
    "reject": "approving.reject",
    "tell": "submission.tell",
    "fork": "submission.fork",
    "retry": "submission.retry",
    "worker": "processes.worker",
    "serve": "processes.serve",
    "flower": "processes.flower",
    "up": "up.up",
    "down": "up.down",
    "clean": "images.clean",
    "adk": "processes.adk",
    "completion": "completion.completion",
    "config": "configuration.config",
    "doctor": "doctor.doctor",
}
"""The functions of the commands."""

SECTIONS = {
    "Run": (
        *("run", "attach", "script", "submit", "cancel", "retry", "fork", "tell"),
        *("approvals", "approve", "reject"),
    ),
    "Look": ("ps", "tree", "show", "result", "logs", "watch", "wait", "top", "history", "cost"),
    "Land": ("diff", "apply"),
    "Serve": ("up", "down", "worker", "serve", "keys", "mcp", "flower", "adk"),
    "Set up": (
        *("init", "doctor", "demo", "example", "agents", "config"),
        *("images", "environment", "clean", "completion"),
    ),
}
"""The sections of `fanout --help` with their commands, in order."""

_ANYWHERE = {"--config", "--full-ids"}
"""The options that all commands have."""

MAX_SHORT_HELP = 200
"""The longest first sentence of a command in `fanout --help`: none is cut, and a test keeps each on
one line of a terminal."""

COMPLETION_VARIABLE = "_FANOUT_COMPLETE"
"""Typer's name for the variable with which a shell asks for completions."""

IMAGE_COMMANDS = {
    "build": "images.build",
    "ls": "images.ls",
    "check": "images.check",
}
"""The commands of `fanout images`."""

ENVIRONMENT_COMMANDS = {
    "ls": "environment.ls",
    "build": "environment.build",
    "rm": "environment.rm",
}
"""The commands of `fanout environment`."""

AGENT_COMMANDS = {"new": "new_agent.new", "add": "add_agent.add"}
"""The commands of `fanout agents`, which lists the agents without one."""

SCRIPT_COMMANDS = {"check": "scripts.check", "ls": "scripts.ls"}
"""The commands of `fanout script`."""

MCP_COMMANDS = {"serve": "mcp_serve.serve", "install": "mcp.install"}
"""The commands of `fanout mcp`."""


KEY_COMMANDS = {
    "create": "keys.create",
    "ls": "keys.ls",
    "revoke": "keys.revoke",
    "audit": "keys.audit",
}
"""The commands of `fanout keys`."""


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


@contextmanager
def traced() -> Iterator[None]:
    """Continue the trace of the calling program; export spans if that is configured.

    Nothing is imported for it otherwise.
    """
    command = next((one for one in sys.argv[1:] if not one.startswith("-")), "")
    parent = None if command == SERVER else os.environ.get(PARENT)
    is_exported = command != WORKER and choose_exporter(os.environ) is not None and has_exporter()
    if not parent and not is_exported:
        yield
        return
    from ..jobs.trace_context import read_traceparent  # noqa: PLC0415 - as above
    from ..tracing.spans import below  # noqa: PLC0415 - as above

    if is_exported:
        from ..tracing import export  # noqa: PLC0415 - takes tenths of a second

        export.start(f"{SERVICE}-server" if command == SERVER else SERVICE)
    try:
        with below(read_traceparent(parent)):
            yield
    finally:
        if is_exported:
            export.stop()


class _ImageCommands(LazyGroup):
    functions = IMAGE_COMMANDS


class _EnvironmentCommands(LazyGroup):
    functions = ENVIRONMENT_COMMANDS


class _AgentCommands(LazyGroup):
    functions = AGENT_COMMANDS


class _ScriptCommands(LazyGroup):
    functions = SCRIPT_COMMANDS


class _McpCommands(LazyGroup):
    functions = MCP_COMMANDS


class _KeyCommands(LazyGroup):
    functions = KEY_COMMANDS


class _Commands(LazyGroup):
    """Reports every failure in the same way.

    The options --config and --full-ids are accepted before and after the name of a command.
    """

    functions = COMMANDS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for option in self.params:
            if _ANYWHERE.intersection(option.opts):
                for command in _leaf_commands(self):
                    command.params.append(_inherited(option))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in sections, each with the first sentence of its help."""
        del ctx
        width = max(map(len, self.commands))
        listed = {name for names in SECTIONS.values() for name in names}
        more = tuple(name for name in self.commands if name not in listed)
        for section, names in {**SECTIONS, "More": more}.items():
            known = [(name, self.commands[name]) for name in names if name in self.commands]
            rows = [
                (name.ljust(width), command.get_short_help_str(MAX_SHORT_HELP))
                for name, command in known
                if not command.hidden
            ]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: the command failed; the failure has been reported on stderr.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter, KeyboardInterrupt):
            raise
        except BrokenPipeError:
            _silence_stdout()
            raise typer.Exit(ExitCode.DONE) from None
        except Exception as error:
            if isinstance(error, typer.TyperException):
                raise
            from .failure_report import report  # noqa: PLC0415 - see there

            raise typer.Exit(report(error)) from None
        return result


def _inherited(option: Any) -> Any:
    """Return an option of all commands for one command: only --config is in its help."""
    if "--config" in option.opts:
        return option
    inherited = copy.copy(option)
    inherited.hidden = True
    return inherited


def _leaf_commands(group: TyperGroup) -> Iterator[Any]:
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            yield from _leaf_commands(command)
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield command


app = typer.Typer(
    name="fanout",
    help="Run many AI sub-agents at once, each in its own sandbox, and merge their changes.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
agents = typer.Typer(cls=_AgentCommands, invoke_without_command=True)
app.add_typer(agents, name="agents")
images = typer.Typer(
    help="Build, list and check the images of sandboxes.", cls=_ImageCommands, no_args_is_help=True
)
app.add_typer(images, name="images")
environment = typer.Typer(
    help="List, prepare and remove the environments of this host.",
    cls=_EnvironmentCommands,
    no_args_is_help=True,
)
app.add_typer(environment, name="environment")
script = typer.Typer(
    help="Check a script, and list those that fanout brings along.",
    cls=_ScriptCommands,
    no_args_is_help=True,
)
app.add_typer(script, name="script")
mcp = typer.Typer(
    help="Let coding agents submit jobs, through MCP.", cls=_McpCommands, no_args_is_help=True
)
app.add_typer(mcp, name="mcp")
keys = typer.Typer(
    help="Make, list and revoke the service's keys; read its audit log.",
    cls=_KeyCommands,
    no_args_is_help=True,
)
app.add_typer(keys, name="keys")


@agents.callback()
def _agents(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the agents that can run jobs, or make one of your own.

    `fanout agents new NAME` writes a commented definition, `fanout agents add NAME` one of a coding
    agent: opencode, gemini-cli, codex or claude-code.

    Each line has the name, the model (of a remote agent: a2a and its host), the sub-agents that it
    may call and the description.
    """
    if context.invoked_subcommand is None:
        function = import_command("configuration", "list_agents")
        function(as_json=as_json)


def _print_version(requested: bool) -> None:
    if requested:
        payload(VERSION)
        raise typer.Exit


def _use_configuration(path: Path | None) -> None:
    """Set the variable that this process and all that it starts read."""
    if path is not None:
        from ..configuration.configuration_file import (  # noqa: PLC0415 - only here
            VARIABLE,
            absolute,
        )

        os.environ[VARIABLE] = str(absolute(path))


def _use_full_ids(requested: bool) -> None:
    if requested:
        from .terminal.formatting import FULL_IDS  # noqa: PLC0415 - only here

        FULL_IDS.set(True)


@app.callback()
def _fanout(
    *,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            callback=_use_configuration,
            is_eager=True,
            expose_value=False,
            help="The configuration file, whose folder may also have .env and agents/; "
            "default: FANOUT_CONFIG, else ~/.config/fanout/config.toml.",
        ),
    ] = None,
    full_ids: Annotated[
        bool,
        typer.Option(
            "--full-ids",
            callback=_use_full_ids,
            is_eager=True,
            expose_value=False,
            help="Print complete ids, not their last 8 characters; --json always has them.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del version, config_file, full_ids


def main() -> None:
    """Run the command line and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for a locale without UTF-8
    _quiet_libraries()
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined] # noqa: PLC0415 - only here, and declared nowhere

        completion_init()
    with traced():
        app()


def _quiet_libraries() -> None:
    """Hide the libraries' log records and warnings unless FANOUT_LOG_LEVEL=debug."""
    if debugging():
        return
    logging.getLogger().addHandler(logging.NullHandler())
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _silence_stdout() -> None:
    """Redirect stdout to the null device: its reader has ended, and buffers are flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
