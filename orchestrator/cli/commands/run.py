"""`run` and `attach`: start a run on a folder, follow it, and land what it changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.changes import print_stat
from orchestrator.cli.commands.processes import announce_sandbox
from orchestrator.cli.commands.submission import MaxReworksOption, VerifyOption
from orchestrator.cli.terminal import formatting, held_back, output
from orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem, exit_code_of_results
from orchestrator.cli.terminal.ids import resolve_job
from orchestrator.cli.terminal.included_files import (
    IncludeOption,
    included_files,
    left_at_home_document,
    print_left_at_home,
)
from orchestrator.cli.terminal.options import AsJson, JobArgument, SandboxOption, chosen_sandbox
from orchestrator.cli.terminal.run_view import follow
from orchestrator.cli.terminal.session import open_client
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import Embedded
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.store.journal import EventType
from orchestrator.runs import Landing, Runs, land
from orchestrator.workspace.merge import MergeReport
from orchestrator.workspace.repositories.repository import is_clean_checkout

YesOption = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Do not ask: the folder may be changed and the agent's own calls are approved.",
    ),
]


@dataclass(frozen=True)
class Unmerged:
    """A change of a child that could not be merged into its parent's files."""

    job_id: str
    path: str
    reason: str


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, and what of it landed."""

    result: JobResult
    usage: Usage
    """What all jobs of the run have used."""
    landed: MergeReport | None
    """None when nothing was to be merged, or the run failed."""
    unmerged: tuple[Unmerged, ...]
    """The conflicts between the agents of the run, of which the root agent was told."""


def run_(
    goal: Annotated[str, typer.Argument(help="The agent's task, in plain language.")],
    *,
    workspace: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to work on; default: the current one.")
    ] = Path(),
    include: IncludeOption = None,
    agent: Annotated[str, typer.Option(help="The agent that coordinates.")] = COORDINATOR,
    model: Annotated[
        str | None, typer.Option(help="Its model; default: the agent's own, else FANOUT_MODEL.")
    ] = None,
    verify: VerifyOption = None,
    max_reworks: MaxReworksOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the run's id and do not wait for its end.")
    ] = False,
    no_land: Annotated[
        bool,
        typer.Option("--no-land", help="Change nothing in DIR; `fanout apply` merges it later."),
    ] = False,
    sandbox: SandboxOption = None,
    yes: YesOption = False,
    include_executable_config: Annotated[
        bool, typer.Option(held_back.OPTION, help=held_back.OPTION_HELP)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an agent on GOAL, with other agents to help it, and merge what they changed into DIR.

    The run works on a copy of DIR and goes on without this command: Ctrl-C, or a closed terminal,
    ends the view only, and `fanout attach` continues it. Exit code 1 if the run fails or if
    conflicts remain. If no Redis is configured (FANOUT_REDIS_URL) or running (`fanout up`), a
    private Redis and a worker are started, and end by themselves when they are not used any more.
    """
    settings = load_settings(**chosen_sandbox(sandbox))
    if not workspace.is_dir():
        raise UsageProblem(f"--workspace {str(workspace)!r} is not a folder.")
    folder = workspace.resolve()
    included = included_files(include or (), folder)
    if not (yes or no_land):
        _confirm(folder)
    chosen = model or (settings.model if "model" in settings.model_fields_set else None)
    given = {"model": chosen, "verify": verify, "max_reworks": max_reworks}
    landing = Landing(
        workspace=folder, lands=not no_land, include_executable_config=include_executable_config
    )
    asyncio.run(
        _run(
            settings,
            {"agent": agent, "description": goal, **given},
            landing,
            included,
            detach=detach,
            yes=yes,
            as_json=as_json,
        )
    )


async def _run(
    settings: Settings,
    spec: Mapping[str, Any],
    landing: Landing,
    included: frozenset[str],
    *,
    detach: bool,
    yes: bool,
    as_json: bool,
) -> None:
    async with services(settings) as reachable, JobClient.from_settings(reachable) as client:
        workers = await client.workers()
        if workers:
            announce_sandbox(workers)
        else:
            output.notice("No worker is running, so jobs will wait; start one: fanout worker")
        root_id = await start_run(client, spec, landing, included)
        Runs(reachable.state_dir).remember(root_id, landing)
        at_home = client.workspace(landing.workspace).left_at_home
        if detach:
            if as_json:
                left = left_at_home_document(at_home)
                output.document({"job_ids": [root_id], "left_at_home": left})
            else:
                print_left_at_home(at_home)
                output.payload(root_id)
            return
        output.notice(f"Run {root_id}")
        outcome = await finish_run(client, root_id, landing, yes=yes, ask=not (yes or as_json))
        document = {"left_at_home": left_at_home_document(at_home)}
        print_outcome(outcome, landing, document if as_json else None)
        if not as_json:
            print_left_at_home(at_home)
    raise typer.Exit(exit_code_of(outcome))


def attach(job: JobArgument, *, yes: YesOption = False, as_json: AsJson = False) -> None:
    """Follow a run until its end, answer its approvals, and merge what it changed as `run` would.

    Any number of terminals can do so at once; merging twice changes nothing. A run that was started
    on another machine is followed, and not merged.
    """
    asyncio.run(_attach(job, yes=yes, as_json=as_json))


async def _attach(prefix: str, *, yes: bool, as_json: bool) -> None:
    async with open_client() as client:
        job_id = await resolve_job(client, prefix)
        landing = Runs(load_settings().state_dir).landing(job_id)
        outcome = await finish_run(client, job_id, landing, yes=yes, ask=not (yes or as_json))
        print_outcome(outcome, landing, {} if as_json else None)
    raise typer.Exit(exit_code_of(outcome))


@asynccontextmanager
async def services(settings: Settings) -> AsyncIterator[Settings]:
    """Yield settings with a reachable Redis, which is started with a worker if there is none.

    They outlive this process, and end by themselves when they are not used any more.

    Args:
        settings: The settings of this process.

    Raises:
        LedgerUnavailable: They cannot be started.
    """
    if settings.redis_url is not None:
        yield settings
        return
    async with Embedded(
        settings, keep=True, idle_seconds=settings.embedded_idle_seconds, notice=output.notice
    ) as embedded:
        yield embedded.settings


async def start_run(
    client: JobClient,
    spec: Mapping[str, Any],
    landing: Landing,
    included: frozenset[str] = frozenset(),
) -> str:
    """Submit a run on a copy of its folder, and return the id of its root job.

    Args:
        client: The connected client.
        spec: The fields of the root job.
        landing: The run's folder.
        included: Files that the copy has even if they seem to be secret.

    Raises:
        UnknownAgent: The agent does not exist.
        InvalidJob: The specification cannot be stored.
        WorkspaceUnusable: The folder cannot be read, or is too large.
    """
    given = {name: value for name, value in spec.items() if value is not None}
    snapshot = await client.snapshot(landing.workspace, str(spec["agent"]), included)
    return await client.submit(JobSpec.model_validate({**given, "snapshot": snapshot}))


async def finish_run(
    client: JobClient,
    root_id: str,
    landing: Landing | None,
    *,
    yes: bool = False,
    ask: bool = False,
) -> RunOutcome:
    """Follow a run to its end and land what it changed.

    Args:
        client: The connected client.
        root_id: The run's root job.
        landing: Where it lands; None: it is not known here.
        yes: Approve the root agent's own calls without asking.
        ask: Ask at a terminal whether changes that are held back may land.

    Raises:
        JobFailure: The run cannot be followed, or not be landed.
    """
    result = await follow(client, root_id, yes=yes)
    landed = None if landing is None else await land(client, result, landing)
    if landing and landed and held_back.may_land(landed.held_back, ask=ask):
        with_code = landing.model_copy(update={"include_executable_config": True})
        landed = await land(client, result, with_code)
    usage = await client.tree_usage((await client.get(root_id)).root_id)
    return RunOutcome(result, usage, landed, await _conflicts_between_agents(client, root_id))


async def _conflicts_between_agents(client: JobClient, root_id: str) -> tuple[Unmerged, ...]:
    """Return the conflicts of the merges into the root agent's files."""
    found = [
        Unmerged(str(event.data["id"]), str(conflict["path"]), str(conflict["reason"]))
        async for event in client.events(root_id, follow=False)
        if event.type is EventType.CHILD_MERGED
        for conflict in formatting.dicts(event.data, "conflicts")
    ]
    return tuple(found)


def exit_code_of(outcome: RunOutcome) -> ExitCode:
    """Return the exit code of a run: 1 if it failed, or if conflicts remain."""
    if outcome.result.success and outcome.landed is not None and outcome.landed.conflicts:
        return ExitCode.WORK_FAILED
    return exit_code_of_results([outcome.result])


def print_outcome(
    outcome: RunOutcome, landing: Landing | None, document: Mapping[str, Any] | None
) -> None:
    """Print how a run ended: its answer, what landed, what did not and why, and what it used.

    Args:
        outcome: The end of the run.
        landing: Where it landed; None: that is not known here.
        document: Further keys of a JSON document; None prints text.
    """
    result, landed = outcome.result, outcome.landed
    if document is not None:
        output.document({**_document(outcome), **document})
    elif result.summary:
        output.payload(output.printable(result.summary))
    if result.error is not None:
        output.notice(f"{result.error.type}: {result.error.message}")
    if landed is not None and landed.applied:
        output.notice(f"\nMerged into {landing.workspace if landing else ''}:")
        merged = {file.path for file in landed.applied}
        print_stat([file for file in result.files_modified if file.path in merged], output.notice)
    for line in _left_out(outcome, landing):
        output.notice(line)
    output.notice(f"{formatting.used(outcome.usage)}, {formatting.span(result.execution_seconds)}")


def _document(outcome: RunOutcome) -> dict[str, Any]:
    result, landed = outcome.result, outcome.landed
    job_id = result.job_id
    return {
        "success": result.success,
        "text": result.summary,
        "root_id": job_id,
        "error": result.error.model_dump() if result.error else None,
        "verified": result.verified.model_dump() if result.verified else None,
        "landed": None if landed is None else [file.path for file in landed.applied],
        "conflicts": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (landed.conflicts if landed else ())
        ],
        "conflicts_between_agents": [vars(one) for one in outcome.unmerged],
        "held_back": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (landed.held_back if landed else ())
        ],
        "usage": outcome.usage.model_dump(exclude_none=True),
    }


def _left_out(outcome: RunOutcome, landing: Landing | None) -> list[str]:
    """Return the lines about what did not land, with the next command."""
    result, landed = outcome.result, outcome.landed
    lines = [
        f"WARNING: {output.one_line(one.path)} of job {one.job_id} was not merged, and the agent "
        f"was told: {output.one_line(one.reason)}. See: fanout diff {one.job_id}"
        for one in outcome.unmerged
    ]
    if not result.changes:
        return lines
    if landed is None:
        folder = "DIR" if landing is None else str(landing.workspace)
        see = f"fanout diff {result.job_id} --stat"
        merge = f"fanout apply {result.job_id} --into {folder}"
        count = f"{result.files_count} changed files were not merged"
        return [*lines, f"{count}. To see them: {see} · to merge them: {merge}"]
    if landed.conflicts:
        named = ", ".join(output.one_line(conflict.path) for conflict in landed.conflicts)
        count = "1 conflict" if len(landed.conflicts) == 1 else f"{len(landed.conflicts)} conflicts"
        see = f"fanout diff {result.job_id}"
        lines.append(f"WARNING: {count}, changes not merged: {named}. See: {see}")
    for kind in ("refused", "failed", "skipped"):
        lines += [
            f"{kind}  {output.one_line(entry.path)}: {output.one_line(entry.reason)}"
            for entry in getattr(landed, kind)
        ]
    if landed.held_back:
        lines += held_back.lines(landed.held_back)
        lines.append(f"To land what is held back: fanout apply {result.job_id} {held_back.OPTION}")
    return lines


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
