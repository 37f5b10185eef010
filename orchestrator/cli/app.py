"""The command line, put together; a failure becomes words and an exit code in `endings`."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.metadata import version as distribution_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.cli.commands import (
    approving,
    demo,
    doctor,
    example,
    installation,
    merging,
    processes,
    reading,
    running,
    submitting,
    waiting,
)
from orchestrator.cli.terminal.endings import ExitCode, debugging, report
from orchestrator.cli.terminal.output import payload

_COMMANDS = (
    *(
        demo.demo,
        example.example,
        running.run_,
        submitting.submit,
        reading.ps,
        reading.tree,
        reading.show,
        reading.result,
    ),
    *(reading.logs, waiting.watch, waiting.wait, merging.diff, merging.apply, submitting.cancel),
    *(approving.approvals, approving.approve, approving.reject),
    *(
        submitting.tell,
        submitting.retry,
        processes.worker,
        processes.flower,
        processes.up,
        processes.down,
    ),
    *(installation.agents, installation.config, doctor.doctor),
)


class _Commands(TyperGroup):
    """Keeps the order in which the commands are listed, and ends every one of them the same way."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands' names in the order of their registration."""
        del ctx
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; whatever it raises ends in one place."""
        try:
            answer = super().invoke(ctx)
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
        return answer


app = typer.Typer(
    name="fanout",
    help="Runs many isolated AI sub-agents at once: one sandbox each, results merged.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
for _command in _COMMANDS:
    app.command(_command.__name__.rstrip("_"))(_command)
app.add_typer(processes.images, name="images")


def _print_version(asked: bool) -> None:
    if asked:
        payload(distribution_version("fanout-orchestrator"))
        raise typer.Exit


@app.callback()
def _fanout(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line; ends the process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a locale without UTF-8 shows what it can
    _quiet_libraries()
    app()


def _quiet_libraries() -> None:
    """What libraries log and warn of is for engineers: FANOUT_LOG_LEVEL=debug shows it."""
    if debugging():
        return
    logging.getLogger().addHandler(logging.NullHandler())
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _silence_stdout() -> None:
    """Nobody reads on: what is left in the buffer goes nowhere, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
