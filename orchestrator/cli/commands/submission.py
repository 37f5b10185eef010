"""`submit`, `retry`, `cancel` and `tell`: create jobs and act on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.job_files import PlannedJob, plan, read_job_file
from orchestrator.cli.commands.waiting import print_ends, wait_for_all
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from orchestrator.cli.terminal.ids import resolve_job, resolve_jobs
from orchestrator.cli.terminal.options import (
    AsJson,
    JobArgument,
    JobArguments,
    LabelOption,
    parse_labels,
)
from orchestrator.cli.terminal.session import open_client
from orchestrator.configuration.agent_definitions import load_agent_definitions
from orchestrator.configuration.settings import Settings, load_settings

FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="JOBS.JSONL",
        help="Submit the jobs of this file, one JSON object per line; - reads stdin.",
    ),
]
JobTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="Stop the job after this time, all attempts together; default: the agent's limit, "
        "else FANOUT_LIMITS__TIMEOUT_SECONDS.",
    ),
]


def submit(
    description: Annotated[str | None, typer.Argument(help="The task of the job's agent.")] = None,
    *,
    file: FileOption = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent; `fanout agents` lists them. Default: general-purpose."),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="The job starts from a copy of this folder; default: no files."
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Additional text for the agent.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model; default: the agent's own, else FANOUT_MODEL.")
    ] = None,
    timeout: JobTimeoutOption = None,
    label: LabelOption = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the jobs have ended; exit code 1 if one failed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit one job, or all jobs of a file, and print their ids.

    With --file the other options are defaults for each line; all lines form one job tree. Nothing
    is submitted unless every line is valid.
    """
    if (description is None) == (file is None):
        raise UsageProblem("Specify either a description or --file.")
    given = {"agent": agent, "workspace": workspace, "context": context, "model": model}
    defaults: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if timeout is not None:
        defaults["limits"] = {"timeout_seconds": timeout}
    if label:
        defaults["labels"] = parse_labels(label)
    settings = load_settings()
    agents = load_agent_definitions(settings.agents_dir)
    if file is not None:
        jobs = read_job_file(file, agents, defaults)
    else:
        jobs = [plan({"description": description}, agents, defaults)]
    raise typer.Exit(asyncio.run(_submit(settings, jobs, wait=wait, as_json=as_json)))


async def _submit(
    settings: Settings, jobs: Sequence[PlannedJob], *, wait: bool, as_json: bool
) -> ExitCode:
    async with open_client(settings) as client:
        if len(jobs) == 1:
            ids = [await client.submit(jobs[0].spec, workspace=jobs[0].workspace)]
        else:
            ids = await client.submit_many([(job.spec, job.workspace) for job in _one_tree(jobs)])
        if as_json:
            output.document({"job_ids": ids})
        else:
            output.payload("\n".join(ids))
        if not wait:
            return ExitCode.DONE
        output.flush()
        results = await wait_for_all(client, list(dict.fromkeys(ids)), timeout_seconds=None)
        return print_ends(results, quiet=as_json)


def _one_tree(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return the jobs with a common root, so that `tree` and `watch` show all of them."""
    root = {"root_id": jobs[0].spec.root_id}
    return [job.model_copy(update={"spec": job.spec.model_copy(update=root)}) for job in jobs]


def retry(job: JobArgument, as_json: AsJson = False) -> None:
    """Submit a copy of a job under a new id and print that id."""
    asyncio.run(_retry(job, as_json=as_json))


async def _retry(job: str, *, as_json: bool) -> None:
    async with open_client() as client:
        new_id = await client.retry(await resolve_job(client, job))
    if as_json:
        output.document({"job_ids": [new_id]})
    else:
        output.payload(new_id)


def cancel(jobs: JobArguments, as_json: AsJson = False) -> None:
    """Cancel jobs with their sub-jobs and running commands."""
    asyncio.run(_cancel(jobs, as_json=as_json))


async def _cancel(prefixes: Sequence[str], *, as_json: bool) -> None:
    async with open_client() as client:
        before = [await client.cancel(job_id) for job_id in await resolve_jobs(client, prefixes)]
    if as_json:
        jobs = [
            {
                "job_id": record.id,
                "state_before": record.state,
                "cancelled": not record.state.is_terminal,
            }
            for record in before
        ]
        output.document({"jobs": jobs})
        return
    for record in before:
        if record.state.is_terminal:
            output.notice(f"{record.id} has already ended: {record.state}.")
        else:
            output.payload(f"{record.id}  cancelled (it was {record.state})")


def tell(
    job: JobArgument,
    message: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    as_json: AsJson = False,
) -> None:
    """Send a message to the agent of a running job.

    The agent reads it before its next model call.
    """
    asyncio.run(_tell(job, message, as_json=as_json))


async def _tell(job: str, message: str, *, as_json: bool) -> None:
    async with open_client() as client:
        job_id = await resolve_job(client, job)
        await client.send(job_id, message)
    if as_json:
        output.document({"job_id": job_id})
    else:
        output.payload(f"{job_id}  message sent")
