"""`submit`, `retry`, `cancel`, `tell`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from orchestrator.cli.commands.job_files import PlannedJob, plan, read_job_file
from orchestrator.cli.commands.waiting import tell_ends, wait_for_all
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from orchestrator.cli.terminal.options import (
    AsJson,
    JobArgument,
    JobArguments,
    LabelOption,
    parse_labels,
)
from orchestrator.cli.terminal.session import open_client, resolve_all
from orchestrator.configuration.agent_definitions import load_agent_definitions
from orchestrator.configuration.settings import Settings, load_settings


def submit(
    description: Annotated[str | None, typer.Argument(help="What the job is to do.")] = None,
    *,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="JOBS.JSONL", help="One job a line; - reads stdin."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Who does it; `fanout agents` lists them.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder whose files the job starts from.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="More text for the agent.")] = None,
    model: Annotated[str | None, typer.Option(help="Instead of the agent's model.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long a job may run; all attempts together."),
    ] = None,
    label: LabelOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end: 1 if a job failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job, or with --file many; print their ids.

    With --file the other options fill what a line leaves out, and one call is one tree. Nothing is
    submitted unless every line is right.
    """
    if (description is None) == (file is None):
        raise UsageProblem("Give a description or --file.")
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
        return tell_ends(results, quiet=as_json)


def _one_tree(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """The same jobs under the first one's root: `tree` and `watch` of any shows all."""
    root = {"root_id": jobs[0].spec.root_id}
    return [job.model_copy(update={"spec": job.spec.model_copy(update=root)}) for job in jobs]


def retry(job: JobArgument, as_json: AsJson = False) -> None:
    """Submit a job once more under a new id, and print that."""
    asyncio.run(_retry(job, as_json=as_json))


async def _retry(job: str, *, as_json: bool) -> None:
    async with open_client() as client:
        new_id = await client.retry(await client.resolve(job))
    if as_json:
        output.document({"job_ids": [new_id]})
    else:
        output.payload(new_id)


def cancel(jobs: JobArguments, as_json: AsJson = False) -> None:
    """Cancel jobs, and everything that they started."""
    asyncio.run(_cancel(jobs, as_json=as_json))


async def _cancel(prefixes: Sequence[str], *, as_json: bool) -> None:
    async with open_client() as client:
        before = [await client.cancel(job_id) for job_id in await resolve_all(client, prefixes)]
    if as_json:
        told = [
            {
                "job_id": record.id,
                "state_before": record.state,
                "cancelled": not record.state.is_terminal,
            }
            for record in before
        ]
        output.document({"jobs": told})
        return
    for record in before:
        if record.state.is_terminal:
            output.notice(f"{record.id} has already ended: {record.state}.")
        else:
            output.payload(f"{record.id}  cancelled (it was {record.state})")


def tell(
    job: JobArgument,
    message: Annotated[str, typer.Argument(metavar="TEXT", help="What its agent is told.")],
    as_json: AsJson = False,
) -> None:
    """Tell a job's agent something while it works; it reads it before its next step."""
    asyncio.run(_tell(job, message, as_json=as_json))


async def _tell(job: str, message: str, *, as_json: bool) -> None:
    async with open_client() as client:
        job_id = await client.resolve(job)
        await client.send(job_id, message)
    if as_json:
        output.document({"job_id": job_id})
    else:
        output.payload(f"{job_id}  told")
