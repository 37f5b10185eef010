"""`run`: a coordinator here, its jobs on the workers, their changes merged into a folder."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from orchestrator.cli.commands.processes import announce_sandbox
from orchestrator.cli.commands.waiting import live_console
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from orchestrator.cli.terminal.live import Board, Fetch, change_line, shown
from orchestrator.cli.terminal.options import AsJson
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import Embedded, attached
from orchestrator.jobs.failures import DeadlineExceeded, LedgerUnavailable, UnknownJob
from orchestrator.jobs.spec import new_job_id
from orchestrator.jobs.state import JobRecord

if TYPE_CHECKING:
    from orchestrator.coordinator.conflicts import OpenConflict
    from orchestrator.coordinator.coordinator import CoordinatorEvent, RunOutcome

GIT_SECONDS = 30.0
"""What `git status` of a large repository on a slow disk takes; without its answer a person is
asked."""


def run_(
    goal: Annotated[str, typer.Argument(help="What is to be reached.")],
    *,
    workspace: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder that is worked on.")
    ] = Path(),
    agent: Annotated[str, typer.Option(help="Who coordinates.")] = COORDINATOR,
    model: Annotated[str | None, typer.Option(help="Instead of the coordinator's model.")] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Ask nothing: files may be changed, calls are approved."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Reach a goal in a folder: a coordinator, its jobs, merges.

    Exit code 1 also when a conflict is left that nobody did anything about: what a
    job changed is not in the folder then.
    Without FANOUT_REDIS_URL it starts a Redis and a worker of its own for as long as it runs.
    """
    settings = load_settings()
    if not workspace.is_dir():
        raise UsageProblem(f"--workspace {str(workspace)!r} is not a folder.")
    folder = workspace.resolve()
    if not yes:
        _ask(folder)
    outcome = asyncio.run(
        _run(settings, goal=goal, workspace=folder, agent=agent, model=model, yes=yes)
    )
    if as_json:
        error = outcome.error.model_dump() if outcome.error else None
        told = {
            "success": outcome.success,
            "text": outcome.text,
            "root_id": outcome.root_id,
            "error": error,
        }
        output.document({**told, "conflicts": [vars(conflict) for conflict in outcome.conflicts]})
    elif outcome.text:
        output.payload(output.printable(outcome.text))
    if outcome.error is not None:
        output.notice(f"{outcome.error.type}: {outcome.error.message}")
    if outcome.conflicts:
        output.notice(_told_conflicts(outcome.conflicts))
    raise typer.Exit(_exit_code(outcome))


def _exit_code(outcome: RunOutcome) -> ExitCode:
    if outcome.success:
        is_left = any(not conflict.changed_since for conflict in outcome.conflicts)
        return ExitCode.WORK_FAILED if is_left else ExitCode.DONE
    is_late = outcome.error is not None and outcome.error.type == DeadlineExceeded.__name__
    return ExitCode.TIMED_OUT if is_late else ExitCode.WORK_FAILED


def _told_conflicts(conflicts: Sequence[OpenConflict]) -> str:
    """One line about what is not in the folder."""
    several = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
    named = ", ".join(
        f"{output.one_line(conflict.path)} (job {conflict.job_id}"
        f"{'; changed since, perhaps settled' if conflict.changed_since else ''})"
        for conflict in conflicts
    )
    return f"WARNING: {several}, changes not merged: {named}. See: fanout diff JOB"


async def _run(
    settings: Settings, *, goal: str, workspace: Path, agent: str, model: str | None, yes: bool
) -> RunOutcome:
    async with (
        _services(settings) as (reachable, look_back),
        JobClient.from_settings(reachable) as client,
    ):
        workers = await client.workers()
        if workers:
            announce_sandbox(workers)
        else:
            output.notice("No worker is alive, so jobs will wait: start one with `fanout worker`.")
        return await coordinate(
            client,
            goal=goal,
            workspace=workspace,
            agent=agent,
            model=model,
            default_model=settings.model,
            look_back=look_back,
            yes=yes,
        )


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
) -> RunOutcome:
    """Run the coordinator, with a live view of its tree where a person looks at stderr, else plain lines.

    Its last words are in the outcome and not shown. `look_back` is the command that
    shows its tree after an interruption, None where the tree is gone then. `yes` approves the
    coordinator's own calls without asking.
    """
    from orchestrator.cli.terminal.approval_prompt import decider  # noqa: PLC0415 - ADK takes seconds to import
    from orchestrator.coordinator.coordinator import run_goal  # noqa: PLC0415

    root_id = new_job_id()
    console = live_console()
    teller = _Teller(console)
    try:
        on_change = _say_change if console is None else None
        async with shown(
            client, _tree_of(client, root_id), console=console, on_change=on_change
        ) as watcher:
            teller.board = watcher.board
            return await run_goal(
                client,
                goal=goal,
                workspace=workspace,
                agent=agent,
                model=model,
                default_model=default_model,
                root_id=root_id,
                on_event=teller.tell,
                decide=decider(yes=yes, set_aside=watcher.set_aside),
                stream_text=console is not None,
            )
    except asyncio.CancelledError:
        output.notice("Interrupted: the coordinator ends, and so do the jobs that it waited for.")
        if look_back is not None:
            output.notice(f"What they had done: {look_back} {root_id}")
        raise


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[tuple[Settings, str]]:
    """The Redis and the workers that are there, or own ones while the context lasts.

    How to look back.
    """
    try:
        reachable = await asyncio.to_thread(attached, settings)
    except LedgerUnavailable:
        output.notice("Starting a Redis and a worker for this run …")
        async with Embedded(settings, notice=output.notice) as embedded:
            yield embedded.settings, "fanout up; fanout tree"
    else:
        yield reachable, "fanout tree"


class _Teller:
    """Prints what the coordinator says and calls; its jobs' progress is in the live view already.

    A text is held back until something follows it: the last one is the payload.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._held = ""
        self.board: Board | None = None
        """Shows a text as it comes."""

    def tell(self, event: CoordinatorEvent) -> None:
        """Take an event."""
        if event.kind == "partial":
            if self.board is not None:
                self.board.say(event.text)
            return
        text = output.printable(event.text).strip()
        if event.kind == "progress" or not text:
            return
        if self.board is not None:
            self.board.saying = ""
        self._print(self._held, "")
        self._held = text if event.kind == "text" else ""
        if event.kind == "tool":
            self._print(f"→ {text}", "dim")

    def _print(self, line: str, style: str) -> None:
        if not line:
            return
        if self._console is None:
            output.notice(line)
        else:
            self._console.print(Text(line, style=style))


def _say_change(record: JobRecord) -> None:
    output.notice(change_line(record))


def _tree_of(client: JobClient, root_id: str) -> Fetch:
    async def fetch() -> list[JobRecord]:
        try:
            return await client.tree(root_id)
        except UnknownJob:  # the coordinator has not submitted anything yet
            return []

    return fetch


def _ask(folder: Path) -> None:
    """A person at a terminal is asked once, unless Git can bring everything back."""
    if (
        not output.stderr_is_terminal()
        or not output.stdin_is_terminal()
        or _is_clean_checkout(folder)
    ):
        return
    if not typer.confirm(f"Agents will edit files in {folder}. Go on?", err=True):
        raise typer.Exit(ExitCode.NOT_ALLOWED)


def _is_clean_checkout(folder: Path) -> bool:
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "status", "--porcelain"]
    try:
        answer = subprocess.run(command, capture_output=True, check=False, timeout=GIT_SECONDS)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and not answer.stdout.strip()
