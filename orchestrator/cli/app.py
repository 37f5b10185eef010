"""The `fanout` command line: all commands in one application.

`terminal.exit_codes` turns every failure into one sentence and an exit code.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.cli.commands import (
    approving,
    changes,
    cleaning,
    configuration,
    doctor,
    examples,
    inspection,
    processes,
    run,
    submission,
    waiting,
)
from orchestrator.cli.terminal.exit_codes import ExitCode, debugging, report
from orchestrator.cli.terminal.output import payload
from orchestrator.configuration.configuration_file import VARIABLE, absolute

_COMMANDS = (
    examples.demo,
    examples.example,
    run.run_,
    run.attach,
    submission.submit,
    inspection.ps,
    inspection.tree,
    inspection.show,
    inspection.result,
    inspection.logs,
    waiting.watch,
    waiting.wait,
    changes.diff,
    changes.apply,
    submission.cancel,
    approving.approvals,
    approving.approve,
    approving.reject,
    submission.tell,
    submission.fork,
    submission.retry,
    processes.worker,
    processes.flower,
    processes.up,
    processes.down,
    cleaning.clean,
    configuration.agents,
    configuration.config,
    doctor.doctor,
)
"""In the order in which `fanout --help` lists them."""


class _Commands(TyperGroup):
    """Lists commands in the order of registration and reports every failure in the same way.

    The option --config is understood before and after the name of a command.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for option in self.params:
            if "--config" in option.opts:
                for command in _leaf_commands(self):
                    command.params.append(option)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names in the order of their registration."""
        del ctx
        return list(self.commands)

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
            raise typer.Exit(report(error)) from None
        return result


def _leaf_commands(group: TyperGroup) -> Iterator[Any]:
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            yield from _leaf_commands(command)
        else:
            yield command


app = typer.Typer(
    name="fanout",
    help="Run many AI sub-agents at once, each in a sandbox of its own, and merge their changes.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
for _command in _COMMANDS:
    app.command(_command.__name__.rstrip("_"))(_command)
app.add_typer(processes.images, name="images")


def _print_version(requested: bool) -> None:
    if requested:
        payload(distribution_version("fanout-orchestrator"))
        raise typer.Exit


def _use_configuration(path: Path | None) -> None:
    """Set the variable that this process and all that it starts read."""
    if path is not None:
        os.environ[VARIABLE] = str(absolute(path))


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
            help="The configuration file, which may have a .env and agents/ beside it; "
            "default: FANOUT_CONFIG, else ~/.config/fanout/config.toml.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del version, config_file


def main() -> None:
    """Run the command line and end the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for a locale without UTF-8
    _quiet_libraries()
    app()


def _quiet_libraries() -> None:
    """Hide the libraries' log records and warnings unless FANOUT_LOG_LEVEL=debug."""
    if debugging():
        return
    logging.getLogger().addHandler(logging.NullHandler())
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _silence_stdout() -> None:
    """Redirect stdout to the null device: its reader is gone, and buffers are flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
