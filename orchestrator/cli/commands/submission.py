"""`submit`, `fork`, `retry`, `cancel` and `tell`: create jobs and act on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...client import JobClient
from ...client.attachment import attached, state_folder
from ...client.model_check import check_models
from ...configuration.settings import Settings, load_settings
from ...embedded.notifier import start_notifier
from ...jobs.failures import InvalidJob, UnknownJob
from ...jobs.graph import GraphProblem, others, unknown_job
from ...jobs.spec import JobSpec, StartFiles
from ...jobs.store.subscription import Subscription
from ...server.notifications.messages import new_secret
from ...server.notifications.receivers import Receivers
from ...server.notifications.subscriptions import Subscriptions
from ..failure_report import exit_code_of_results
from ..terminal import output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.formatting import result_id, short_id
from ..terminal.options import (
    AsJson,
    JobArgument,
    JobArguments,
    LabelOption,
    parse_labels,
)
from ..terminal.session import (
    open_client,
    resolve_job,
    resolve_jobs,
    usable_agents,
)
from ..terminal.waiting import snapshot_progress, waiting
from .job_files import (
    IncludeOption,
    PlannedJob,
    Shortfall,
    bad_lines,
    plan,
    read_job_file,
)
from .waiting import (
    ends_document,
    print_ends,
    submitted_document,
    usage_of_trees,
    wait_for_all,
)

FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="JOBS.JSONL",
        help="Submit the jobs of this file, one JSON object per line; - reads stdin.",
    ),
]
WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="The job starts from a copy of this folder; default: no files."
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

ContinueOption = Annotated[
    str | None,
    typer.Option(
        "--continue",
        metavar="ID",
        help="Continue with the conversation and the files of this job, which has ended: the "
        "description is the next message to its agent. Options that you do not set are taken "
        "from that job.",
    ),
]
VerifyOption = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="A shell command that must succeed in the job's sandbox before the job does; while it "
        "fails, the agent gets its output and reworks its answer.",
    ),
]
VerifyMergesOption = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="A shell command that must succeed before the changes of the agent's tasks are merged into "
        "its files; changes that break it are returned to the agent of their task.",
    ),
]
MaxReworksOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="How often an agent reworks its answer before the job fails, or a task's changes are left "
        "out; default: the agent's, else 2.",
    ),
]
NoWaitOption = Annotated[
    bool,
    typer.Option(
        "--no-wait-for-quota",
        help="Fail at once when a model has no quota left, does not answer, or refuses a key that had "
        "worked; otherwise jobs wait (limits.max_wait_seconds).",
    ),
]
WebhookOption = Annotated[
    str | None,
    typer.Option(
        "--webhook",
        metavar="URL",
        help="Send a message to this URL when a job ends or waits for a person, signed with "
        "FANOUT_NOTIFICATIONS__SECRET.",
    ),
]
AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID", help="The job runs when this one has ended; repeat for several jobs."
    ),
]
OnFailureOption = Annotated[
    str | None,
    typer.Option(
        metavar="skip|run",
        help="Whether the job runs although a job of --after did not succeed; default: skip.",
    ),
]
SUBSCRIPTION_ID = "submit"
"""The id of this command's subscription to a job: a repeated command replaces it."""


def submit(
    description: Annotated[str | None, typer.Argument(help="The task of the job's agent.")] = None,
    *,
    file: FileOption = None,
    continues: ContinueOption = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent; `fanout agents` lists them. Default: general-purpose."),
    ] = None,
    workspace: WorkspaceOption = None,
    include: IncludeOption = None,
    context: Annotated[str | None, typer.Option(help="Additional text for the agent.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model, also of agents below without their own model; default: the "
            "agent's own, else FANOUT_MODEL."
        ),
    ] = None,
    verify: VerifyOption = None,
    verify_merges: VerifyMergesOption = None,
    max_reworks: MaxReworksOption = None,
    timeout: JobTimeoutOption = None,
    after: AfterOption = None,
    on_failure: OnFailureOption = None,
    no_wait_for_quota: NoWaitOption = False,
    label: LabelOption = None,
    webhook: WebhookOption = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the jobs have ended; exit code 1 if one failed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Submit one job, or all jobs of a file, and print their ids.

    With --file the other options are defaults for each line; all lines form one job tree. A line
    with "after" runs when the jobs have ended that it lists: ids, or the "name" of other lines.
    Nothing is submitted unless every line is valid.
    """
    if (description is None) == (file is None):
        raise UsageProblem("Specify either a description or --file.")
    given = {
        "continues": continues,
        "agent": agent,
        "workspace": workspace,
        "include": include,
        "context": context,
        "model": model,
        "verify": verify,
        "verify_merges": verify_merges,
        "max_reworks": max_reworks,
        "limits": job_limits(timeout, no_wait_for_quota=no_wait_for_quota),
        "after": after,
        "on_failure": on_failure,
        "labels": parse_labels(label) if label else None,
    }
    defaults: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings = load_settings()
    agents = usable_agents(settings)
    if file is not None:
        jobs = read_job_file(file, agents, defaults)
    else:
        jobs = [plan({"description": description}, agents, defaults)]
    new = [job.spec for job in jobs if not job.spec.continues]
    if settings.redis_url is not None or state_folder(settings).read_record() is not None:
        with waiting("checking whether the models can be reached"):
            check_models(settings, agents, [(spec.agent, spec.model) for spec in new])
    raise typer.Exit(asyncio.run(_submit(settings, jobs, webhook, wait=wait, as_json=as_json)))


def job_limits(timeout: float | None = None, *, no_wait_for_quota: bool) -> dict[str, float] | None:
    """Return the limits that options set; None if they set none."""
    limits = {} if timeout is None else {"timeout_seconds": timeout}
    if no_wait_for_quota:
        limits["max_wait_seconds"] = 0
    return limits or None


async def _submit(
    settings: Settings,
    jobs: Sequence[PlannedJob],
    webhook: str | None = None,
    *,
    wait: bool,
    as_json: bool,
) -> ExitCode:
    async with open_client(settings, submits=True) as client:
        notifier = JobWebhook(webhook, settings, client) if webhook else None
        jobs = await _with_complete_ids(client, _one_tree(jobs))
        specs, shortfall = await _with_snapshots(client, jobs)
        if notifier:
            await notifier.register(specs)
        ids = await client.submit_many([(spec, None) for spec in specs])
        if notifier:
            await notifier.submitted(specs, ids)
        document = submitted_document(ids) | shortfall.document()
        if not as_json:
            output.payload("\n".join(map(result_id, ids)))
            shortfall.print()
        elif not wait:
            output.document(document)
        if not wait:
            return ExitCode.DONE
        output.flush()
        return await _wait(client, list(dict.fromkeys(ids)), document if as_json else None)


async def _wait(client: JobClient, ids: Sequence[str], document: dict[str, Any] | None) -> ExitCode:
    """Wait for the jobs and print how they ended; a document is printed in any case."""
    ends: dict[str, Any] = {}
    try:
        results = await wait_for_all(client, ids, timeout_seconds=None)
        usage = await usage_of_trees(client, ids)
        ends = ends_document(results, usage)
    finally:
        if document is not None:
            output.document(document | ends)
    return print_ends(results, usage) if document is None else exit_code_of_results(results)


async def _with_snapshots(
    client: JobClient, jobs: Sequence[PlannedJob]
) -> tuple[list[JobSpec], Shortfall]:
    """Return the jobs with their snapshots, and the parts that these lack."""
    specs: list[JobSpec] = []
    starts: dict[tuple[Path, str, frozenset[str]], StartFiles] = {}
    for job in jobs:
        if job.workspace is None:
            specs.append(job.spec)
            continue
        asked = (job.workspace, job.spec.agent, job.include)
        if asked not in starts:
            async with snapshot_progress(client.workspace(job.workspace)):
                starts[asked] = await client.start_files(*asked)
        specs.append(job.spec.model_copy(update=starts[asked].update()))
    folders = dict.fromkeys(folder for folder, *_ in starts)
    return specs, Shortfall.of(map(client.workspace, folders))


async def _with_complete_ids(client: JobClient, jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return the jobs with the complete ids of those that they continue or come after."""
    shortened = {job.spec.continues for job in jobs if job.spec.continues}
    ids = {prefix: await resolve_job(client, prefix) for prefix in shortened}
    before = await _complete_predecessors(client, jobs)
    return [
        job.model_copy(
            update={
                "spec": job.spec.model_copy(
                    update={
                        "continues": job.spec.continues and ids[job.spec.continues],
                        "after": tuple(before.get(one, one) for one in job.spec.after),
                    }
                )
            }
        )
        for job in jobs
    ]


async def _complete_predecessors(
    client: JobClient, jobs: Sequence[PlannedJob]
) -> Mapping[str, str]:
    """Return the complete ids of the stored jobs that are in the `after` of these.

    Raises:
        UsageProblem: A job does not exist; the message names the line.
    """
    known: dict[str, str] = {}
    for prefix, position in others([job.spec for job in jobs]).items():
        try:
            known[prefix] = await resolve_job(client, prefix)
        except UnknownJob:
            raise bad_lines(jobs, [unknown_job(prefix, position)]) from None
        except InvalidJob as error:
            raise bad_lines(jobs, [GraphProblem(position, f"after: {error}")]) from None
    return known


def _one_tree(jobs: Sequence[PlannedJob]) -> list[PlannedJob]:
    """Return the jobs with a common root, so that `tree` and `watch` show all of them."""
    if len(jobs) == 1:
        return list(jobs)
    root = {"root_id": jobs[0].spec.root_id}
    return [job.model_copy(update={"spec": job.spec.model_copy(update=root)}) for job in jobs]


def fork(
    job: JobArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The next message to the agent.")],
    at: Annotated[
        str,
        typer.Option(
            metavar="EVENT",
            help="The id of a checkpoint in `fanout logs ID --json`, or of the job's last event.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="The model from that point on; default: the job's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a job from an earlier point, with another message.

    The new job has the job's conversation and files of that point. The job itself, which may still
    run, does not change.
    """
    given = {"description": text, "continues": job, "at": at}
    defaults = {} if model is None else {"model": model}
    settings = load_settings()
    jobs = [plan(given, usable_agents(settings), defaults)]
    raise typer.Exit(asyncio.run(_submit(settings, jobs, wait=False, as_json=as_json)))


def retry(job: JobArgument, as_json: AsJson = False) -> None:
    """Submit a copy of a job under a new id and print that id."""
    asyncio.run(_retry(job, as_json=as_json))


async def _retry(job: str, *, as_json: bool) -> None:
    settings = load_settings()
    async with open_client(settings, submits=True) as client:
        new_id = await client.retry(await resolve_job(client, job))
    if as_json:
        output.document(submitted_document([new_id]))
    else:
        output.payload(result_id(new_id))


def cancel(jobs: JobArguments, as_json: AsJson = False) -> None:
    """Cancel jobs with their sub-jobs and running commands."""
    asyncio.run(_cancel(jobs, as_json=as_json))


async def _cancel(prefixes: Sequence[str], *, as_json: bool) -> None:
    async with open_client() as client:
        before = [await client.cancel(job_id) for job_id in await resolve_jobs(client, prefixes)]
    if as_json:
        jobs = [
            {
                "id": record.id,
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
            output.notice(f"{short_id(record.id)} has already ended: {record.state}.")
        else:
            output.payload(f"{short_id(record.id)}  cancelled (it was {record.state})")


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
        output.document({"id": job_id, "job_id": job_id})
    else:
        output.payload(f"{short_id(job_id)}  message sent")


class JobWebhook:
    """The webhook of a command.

    Args:
        url: The option's value.
        settings: The settings of this process.
        client: The connected client.

    Raises:
        UsageProblem: No secret is set.
    """

    def __init__(self, url: str, settings: Settings, client: JobClient) -> None:
        notifications = settings.notifications
        secret = notifications.secret
        if secret is None:
            raise UsageProblem(
                "Webhooks are signed: set FANOUT_NOTIFICATIONS__SECRET, here and where they are "
                f"received, for example to {new_secret()}"
            )
        self._settings = settings
        self._subscription = Subscription(id=SUBSCRIPTION_ID, url=url, secret=secret)
        receivers = Receivers(notifications.allowed_hosts, by_proxy=notifications.proxy is not None)
        self._subscriptions = Subscriptions(client.notifications, receivers)

    async def register(self, specs: Sequence[JobSpec]) -> None:
        """Register the webhook for jobs that are about to be submitted.

        Raises:
            UsageProblem: The URL may not be notified.
        """
        try:
            await self._subscriptions.check(self._subscription)
        except InvalidJob as failure:
            raise UsageProblem(f"--webhook: {failure}") from None
        for spec in specs:
            await self._subscriptions.store(spec.id, self._subscription)

    async def submitted(self, specs: Sequence[JobSpec], ids: Sequence[str]) -> None:
        """Register it for jobs that existed already, and ensure that notifications are sent."""
        for job_id in set(ids) - {spec.id for spec in specs}:
            await self._subscriptions.store(job_id, self._subscription)
        if self._settings.redis_url is None:
            await start_notifier(attached(self._settings))
        else:
            output.notice("A server of this installation sends the webhook: fanout serve")
