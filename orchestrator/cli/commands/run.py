"""`run`: run a coordinator in this process and merge its jobs' changes into a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from orchestrator.cli.commands.processes import announce_sandbox
from orchestrator.cli.commands.waiting import live_console
from orchestrator.cli.terminal import held_back, output
from orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from orchestrator.cli.terminal.included_files import (
    IncludeOption,
    included_files,
    left_at_home_document,
    print_left_at_home,
)
from orchestrator.cli.terminal.live import Board, Fetch, change_line, shown
from orchestrator.cli.terminal.options import AsJson, SandboxOption, chosen_sandbox
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import Embedded, attached_for_run
from orchestrator.jobs.changes import SkippedFile
from orchestrator.jobs.failures import DeadlineExceeded, LedgerUnavailable, UnknownJob
from orchestrator.jobs.spec import new_job_id
from orchestrator.jobs.state import JobRecord
from orchestrator.workspace.repositories.repository import is_clean_checkout

if TYPE_CHECKING:
    from orchestrator.coordinator.conflicts import HeldBackChange, OpenConflict
    from orchestrator.coordinator.coordinator import CoordinatorEvent, RunOutcome


def run_(
    goal: Annotated[str, typer.Argument(help="The coordinator's task, in plain language.")],
    *,
    workspace: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to work on; default: the current one.")
    ] = Path(),
    include: IncludeOption = None,
    agent: Annotated[str, typer.Option(help="The agent that coordinates.")] = COORDINATOR,
    model: Annotated[
        str | None, typer.Option(help="The coordinator's model; default: FANOUT_MODEL.")
    ] = None,
    sandbox: SandboxOption = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Do not ask: files may be changed and the coordinator's calls are approved.",
        ),
    ] = False,
    include_executable_config: Annotated[
        bool, typer.Option(held_back.OPTION, help=held_back.OPTION_HELP)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a coordinator agent on GOAL and merge its jobs' changes into DIR.

    Exit code 1 if the coordinator fails or if unresolved merge conflicts remain. If no Redis is
    configured (FANOUT_REDIS_URL) or running (`fanout up`), a private Redis and a worker run until
    the command ends.
    """
    settings = load_settings(**chosen_sandbox(sandbox))
    if not workspace.is_dir():
        raise UsageProblem(f"--workspace {str(workspace)!r} is not a folder.")
    folder = workspace.resolve()
    included = included_files(include or (), folder)
    if not yes:
        _confirm(folder)
    outcome, at_home = asyncio.run(
        _run(
            settings,
            goal=goal,
            workspace=folder,
            included=included,
            agent=agent,
            model=model,
            yes=yes,
            include_executable_config=include_executable_config,
            ask_to_land=not (yes or as_json),
        )
    )
    _print_outcome(outcome, at_home, as_json=as_json)
    raise typer.Exit(_exit_code(outcome))


def _print_outcome(outcome: RunOutcome, at_home: Sequence[SkippedFile], *, as_json: bool) -> None:
    if as_json:
        error = outcome.error.model_dump() if outcome.error else None
        report = {
            "success": outcome.success,
            "text": outcome.text,
            "root_id": outcome.root_id,
            "error": error,
            "conflicts": [vars(conflict) for conflict in outcome.conflicts],
            "left_at_home": left_at_home_document(at_home),
            "held_back": [vars(change) for change in outcome.held_back],
        }
        output.document(report)
    elif outcome.text:
        output.payload(output.printable(outcome.text))
    if outcome.error is not None:
        output.notice(f"{outcome.error.type}: {outcome.error.message}")
    if outcome.conflicts:
        output.notice(_format_conflicts(outcome.conflicts))
    if not as_json:
        print_left_at_home(at_home)
    if outcome.held_back:
        output.notice(_format_held_back(outcome.held_back))


def _exit_code(outcome: RunOutcome) -> ExitCode:
    if outcome.success:
        is_open = any(not conflict.changed_since for conflict in outcome.conflicts)
        return ExitCode.WORK_FAILED if is_open else ExitCode.DONE
    is_late = outcome.error is not None and outcome.error.type == DeadlineExceeded.__name__
    return ExitCode.TIMED_OUT if is_late else ExitCode.WORK_FAILED


def _format_conflicts(conflicts: Sequence[OpenConflict]) -> str:
    """Return a warning that names the changes that were not merged."""
    count = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
    named = ", ".join(
        f"{output.one_line(conflict.path)} (job {conflict.job_id}"
        f"{'; the file has changed since, perhaps resolving it' if conflict.changed_since else ''})"
        for conflict in conflicts
    )
    return f"WARNING: {count}, changes not merged: {named}. See: fanout diff JOB"


def _format_held_back(changes: Sequence[HeldBackChange]) -> str:
    """Return the lines about changes that wait for a person's word, with the command for each job.

    They are data of the run and no failure of it.
    """
    jobs = dict.fromkeys(change.job_id for change in changes)
    commands = [f"fanout apply {job_id} {held_back.OPTION}" for job_id in jobs]
    return "\n".join([*held_back.lines(changes), "To land what is held back:", *commands])


async def _run(
    settings: Settings,
    *,
    goal: str,
    workspace: Path,
    included: frozenset[str],
    agent: str,
    model: str | None,
    yes: bool,
    include_executable_config: bool,
    ask_to_land: bool,
) -> tuple[RunOutcome, Sequence[SkippedFile]]:
    async with (
        _services(settings) as (reachable, look_back),
        JobClient.from_settings(reachable) as client,
    ):
        workers = await client.workers()
        if workers:
            announce_sandbox(workers)
        else:
            output.notice("No worker is running, so jobs will wait; start one: fanout worker")
        client.workspace(workspace).included = included
        outcome = await coordinate(
            client,
            goal=goal,
            workspace=workspace,
            agent=agent,
            model=model,
            default_model=settings.model,
            look_back=look_back,
            yes=yes,
            include_executable_config=include_executable_config,
        )
        if held_back.may_land(outcome.held_back, ask=ask_to_land):
            outcome = await _land_held_back(client, outcome, workspace)
        return outcome, client.workspace(workspace).left_at_home


async def _land_held_back(client: JobClient, outcome: RunOutcome, workspace: Path) -> RunOutcome:
    """Merge what was held back, by a person's word, and return the outcome without it."""
    for job_id in dict.fromkeys(change.job_id for change in outcome.held_back):
        report = await client.apply(job_id, workspace, include_executable_config=True)
        for conflict in report.conflicts:
            output.notice(f"conflict  {output.one_line(conflict.path)} (job {job_id})")
    return replace(outcome, held_back=())


async def coordinate(
    client: JobClient,
    *,
    goal: str,
    workspace: Path,
    agent: str,
    model: str | None,
    default_model: str,
    look_back: str | None,
    yes: bool = False,
    include_executable_config: bool = False,
) -> RunOutcome:
    """Run the coordinator with a live view of its jobs, or plain lines without a terminal.

    Its final text is in the outcome and is not printed.

    Args:
        client: the connected client.
        goal: the coordinator's task.
        workspace: the folder that jobs start from and are merged into.
        agent: the name of the coordinator's definition.
        model: overrides the definition's model.
        default_model: used if neither `model` nor the definition names one.
        look_back: the command that shows the tree after an interruption; None if the tree does
            not outlive this process.
        yes: whether the coordinator's own calls are approved without asking.
        include_executable_config: whether what becomes code on the host is merged too.

    Raises:
        ModelNotConfigured: the model cannot be used; the message names what is missing.
        JobFailure: a service failed; see its subclasses.
    """
    from orchestrator.cli.terminal.approval_prompt import decider  # noqa: PLC0415 - slow import
    from orchestrator.coordinator.coordinator import run_goal  # noqa: PLC0415

    root_id = new_job_id()
    console = live_console()
    printer = _EventPrinter(console)
    try:
        on_change = _print_change if console is None else None
        async with shown(
            client, _tree_of(client, root_id), console=console, on_change=on_change
        ) as watcher:
            printer.board = watcher.board
            return await run_goal(
                client,
                goal=goal,
                workspace=workspace,
                agent=agent,
                model=model,
                default_model=default_model,
                root_id=root_id,
                on_event=printer.print,
                decide=decider(yes=yes, set_aside=watcher.set_aside),
                stream_text=console is not None,
                include_executable_config=include_executable_config,
            )
    except asyncio.CancelledError:
        output.notice("Interrupted: the coordinator and the jobs that it waited for are stopped.")
        if look_back is not None:
            output.notice(f"Their state: {look_back} {root_id}")
        raise


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[tuple[Settings, str]]:
    """Yield settings with a reachable Redis, and the command that shows a run's tree later.

    A private Redis and a worker run while the context is open if there is no other.
    """
    try:
        reachable = await asyncio.to_thread(attached_for_run, settings)
    except LedgerUnavailable:
        async with Embedded(settings, notice=output.notice) as embedded:
            yield embedded.settings, "fanout up; fanout tree"
    else:
        yield reachable, "fanout tree"


class _EventPrinter:
    """Prints the coordinator's texts and tool calls; the live view shows its jobs' progress.

    A text is held back until another event follows: the last one is the command's payload.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._held = ""
        self.board: Board | None = None
        """Shows a text while it is being written; None before the live view exists."""

    def print(self, event: CoordinatorEvent) -> None:
        """Print an event, or pass a partial text to the board."""
        if event.kind == "partial":
            if self.board is not None:
                self.board.say(event.text)
            return
        text = output.printable(event.text).strip()
        if event.kind == "progress" or not text:
            return
        if self.board is not None:
            self.board.saying = ""
        self._print_line(self._held, "")
        self._held = text if event.kind == "text" else ""
        if event.kind == "tool":
            self._print_line(f"→ {text}", "dim")

    def _print_line(self, line: str, style: str) -> None:
        if not line:
            return
        if self._console is None:
            output.notice(line)
        else:
            self._console.print(Text(line, style=style))


def _print_change(record: JobRecord) -> None:
    output.notice(change_line(record))


def _tree_of(client: JobClient, root_id: str) -> Fetch:
    async def fetch() -> list[JobRecord]:
        try:
            return await client.tree(root_id)
        except UnknownJob:  # the coordinator has not submitted anything yet
            return []

    return fetch


def _confirm(folder: Path) -> None:
    """Ask a person at a terminal for consent, unless Git can restore every file.

    Raises:
        typer.Exit: the person declined.
    """
    if (
        not output.stderr_is_terminal()
        or not output.stdin_is_terminal()
        or is_clean_checkout(folder)
    ):
        return
    if not typer.confirm(f"Agents will edit files in {folder}. Continue?", err=True):
        raise typer.Exit(ExitCode.NOT_ALLOWED)
