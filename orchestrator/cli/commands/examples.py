"""`demo` and `example`: run a bundled example on a copy of its sample workspace."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ...cancellation import cancel_and_wait
from ...client import JobClient
from ...client.model_check import check_models
from ...configuration.agent_definitions import (
    COORDINATOR,
    SHIPPED_AGENTS,
    load_agent_definitions,
)
from ...configuration.settings import Settings, load_settings
from ...embedded.services import Embedded
from ...git.process import GitFailed, run_git
from ...jobs.result import JobError
from ...jobs.spec import JobSpec
from ...jobs.state import JobRecord, JobState
from ...jobs.store.journal import EventType
from ...landing.runs import Landing, Runs
from ...shortening import count
from ..terminal import formatting, output
from ..terminal.exit_codes import ExitCode, WorkFailed
from ..terminal.options import AsJson, SandboxOption, chosen_sandbox
from ..terminal.waiting import waiting
from .bundled_examples import (
    DEMO,
    EXAMPLES,
    Example,
    all_examples,
    find_example,
)
from .images import (
    check_sandbox,
    sandbox_of_the_demo,
    with_images,
)
from .run import finish_run, start_run
from .run_report import run_exit_code
from .up import announce_sandbox

CHECK_AGENT = "tester"
CHECK_MODEL = f"scripted:{EXAMPLES / 'check.yaml'}"
"""The model that makes the agent run the check command once and return its result."""

AT_WORK = 3
"""The number of running agents at which the worker of `demo --chaos` is killed."""
CHAOS_LEASE_SECONDS = 3.0
"""The lease with which the jobs of a killed worker continue within seconds."""

CHECK_OUTPUT_LINES = 12
"""The last lines of a check's output, which contain the summary of a test run."""


def example(
    name: Annotated[
        str | None, typer.Argument(help="The example to run; without a name all are listed.")
    ] = None,
    *,
    workspace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Copy the sample here (empty or new; default: new)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A real model for all agents; default: scripted replies.")
    ] = None,
    sandbox: SandboxOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a bundled team of agents on a copy of its sample files.

    Nothing needs to be configured: a private Redis and a worker are started for this run. With
    scripted replies no model key is needed. The folder with the results is kept.
    """
    settings = load_settings(**chosen_sandbox(sandbox))
    if name is None:
        _list(as_json=as_json)
        return
    found = find_example(name)
    if model is not None:
        _check_model(settings, found, model)
    with_images(lambda: check_sandbox(settings))
    folder = (workspace or Path(tempfile.mkdtemp(prefix=f"fanout-{found.name}-"))).resolve()
    found.copy_workspace(folder)
    with _temporary_folder("fanout-state-") as state_dir:
        own_settings = _own_settings(settings, found, state_dir, model)
        report = asyncio.run(_run(found, folder, own_settings))
    if as_json:
        output.document(report | {"files": found.changed_files(folder)})
    else:
        _print_results(report, found.changed_files(folder))
    raise typer.Exit(ExitCode.DONE if report["success"] else ExitCode.WORK_FAILED)


def demo(
    *,
    workspace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Copy the sample here (empty or new) and keep it."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep Redis, the worker and the folder for later commands."),
    ] = False,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill the worker (SIGKILL) while the agents work.")
    ] = False,
    sandbox: SandboxOption = None,
    as_json: AsJson = False,
) -> None:
    """Run six sub-agents that repair a small Python project.

    A coordinator delegates the faults, lands the changes and ends with passing tests. One agent's
    change breaks a test that passed before: it is left out and returned to its agent. A private
    Redis and a worker are started for this run. The model's replies are scripted, so no key is
    needed; agents, jobs, sandboxes and merges are real. Where no Docker engine is ready, this
    command alone runs its own, harmless commands without isolation, and says so; where only the
    images of sandboxes are missing, it asks whether to build them.
    """
    settings, found = load_settings(**chosen_sandbox(sandbox)), find_example(DEMO)
    began = time.monotonic()
    settings = sandbox_of_the_demo(settings)
    with _temporary_folder("fanout-demo-", keep=keep) as base:
        folder = (workspace or base / "sample").resolve()
        found.copy_workspace(folder)
        _git(folder, "init", "--quiet", "--template=")
        _git(folder, "add", "--all")
        _git(folder, "commit", "--quiet", "--message", "The sample before the run")
        state_dir = settings.state_dir if keep else base / "state"
        own_settings = _own_settings(settings, found, state_dir)
        if chaos:
            worker = settings.worker.model_copy(update={"lease_seconds": CHAOS_LEASE_SECONDS})
            own_settings = own_settings.model_copy(update={"worker": worker})
        report = asyncio.run(_run(found, folder, own_settings, keep=keep, chaos=chaos))
        diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--stat").rstrip()
    if as_json:
        keys = ("success", "tests_before", "tests_after", "text", "id", "root_id", "error")
        counts = {"jobs": len(report["jobs"]), "seconds": round(time.monotonic() - began, 1)}
        output.document({key: report[key] for key in keys} | counts)
    else:
        _print_demo_results(report, diff, kept=keep, folder=folder if keep or workspace else None)
    raise typer.Exit(ExitCode.DONE if report["success"] else ExitCode.WORK_FAILED)


@contextmanager
def _temporary_folder(prefix: str, *, keep: bool = False) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _check_model(settings: Settings, found: Example, model: str) -> None:
    """Refuse a model that cannot be asked, before anything is built or started for it.

    Raises:
        InvalidJob: It cannot be reached.
    """
    own = _own_settings(settings, found, settings.state_dir, model)
    with waiting("checking whether the model can be reached"):
        check_models(own, load_agent_definitions(own.agents_dir), [(COORDINATOR, model)])


def _own_settings(
    settings: Settings, found: Example, state_dir: Path, model: str | None = None
) -> Settings:
    """Return settings with the person's sandbox and keys, but separate services and agents."""
    own = {
        "redis_url": None,
        "blobs_url": None,
        "state_dir": state_dir,
        "agents_dir": found.agents_dir or SHIPPED_AGENTS,
        "model": model or found.scripted_model,
    }
    return settings.model_copy(update=own)


@asynccontextmanager
async def _started(services: Embedded) -> AsyncIterator[Embedded]:
    """Yield the services, once they run."""
    async with AsyncExitStack() as stack:
        with waiting("starting the worker"):
            embedded = await stack.enter_async_context(services)
        yield embedded


async def _run(
    found: Example, folder: Path, settings: Settings, *, keep: bool = False, chaos: bool = False
) -> dict[str, Any]:
    """Run the coordinator on the folder, with the check before and after; return the report."""
    output.notice(f"The folder: {folder}")
    async with (
        _started(Embedded(settings, keep=keep, notice=output.notice)) as embedded,
        JobClient.from_settings(embedded.settings) as client,
    ):
        announce_sandbox(await client.workers())
        before = await _check(client, found, folder, "before")
        output.notice(f"\nThe goal: {found.goal}")
        landing = Landing(workspace=folder)
        spec = {
            "agent": COORDINATOR,
            "description": found.goal,
            "verify_merges": found.verify_merges,
        }
        root_id = await start_run(client, spec, landing)
        killing = [asyncio.create_task(_kill_worker(client, embedded, root_id))] if chaos else []
        outcome = await finish_run(client, Runs(settings.state_dir), root_id, landing)
        await cancel_and_wait(*killing)
        after = await _check(client, found, folder, "after")
        records = [one for one in await client.tree(root_id) if one.id != root_id]
    landed = run_exit_code(outcome) is ExitCode.DONE
    error = outcome.result.error
    return {
        "success": landed and (before, after) in {(None, None), ("failed", "passed")},
        **({} if after is None else {"tests_before": before, "tests_after": after}),
        "text": outcome.result.summary,
        "id": root_id,
        "root_id": root_id,
        "error": error.model_dump() if error else None,
        "jobs": [
            {
                "id": record.id,
                "agent": record.agent,
                "state": str(record.state),
                "done_again": record.continues is not None,
            }
            for record in records
        ],
        "most_at_once": _most_at_once(records),
        "workspace": str(folder),
    }


async def _kill_worker(client: JobClient, embedded: Embedded, root_id: str) -> None:
    """Kill the worker as soon as several agents are running, and start another one."""
    while (  # noqa: ASYNC110 - other processes run them
        sum(job.state is JobState.RUNNING for job in await client.tree(root_id)) < AT_WORK
    ):
        await asyncio.sleep(0.2)
    output.notice("✗ kill -9 of the worker: another worker resumes its jobs")
    await embedded.replace_worker()


async def _check(client: JobClient, found: Example, folder: Path, when: str) -> str | None:
    """Run the check command in a job's sandbox and print the end of its output.

    Returns:
        `passed` or `failed`; None for an example without a check.

    Raises:
        WorkFailed: the job failed, so the command's result is not known.
    """
    command = found.check
    if command is None:
        return None
    spec = JobSpec(
        agent=CHECK_AGENT,
        description=f"Run `{command}` and report what it prints.",
        model=CHECK_MODEL,
        labels={found.name: f"check-{when}"},
    )
    with waiting(f"running `{command}` in a sandbox"):
        job_id = await client.submit(spec, workspace=folder)
        result = await client.wait(job_id)
    if result.state is not JobState.SUCCEEDED:
        why = formatting.happened(result.error) if result.error else str(result.state)
        raise WorkFailed(f"The tests could not be run in a sandbox: {why}")
    exit_code, text = 1, ""
    async for event in client.events(job_id, follow=False):
        if event.type is EventType.TOOL_RESULT:
            for answer in formatting.tool_answers(event):
                exit_code, text = int(answer.get("exit_code", 1)), str(answer.get("output", ""))
    colour = "green" if exit_code == 0 else "red"
    output.notice(f"\n$ {command}    # in a sandbox, {when}: {colour}")
    for line in text.strip().splitlines()[-CHECK_OUTPUT_LINES:]:
        output.notice(f"  {line}")
    return "passed" if exit_code == 0 else "failed"


def _most_at_once(records: Sequence[JobRecord]) -> int:
    """Return the largest number of jobs that ran at the same time."""
    times = ((one.started_at, one.finished_at) for one in records)
    spans = [(began, ended) for began, ended in times if began and ended]
    running = (sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)
    return max(running, default=0)


def _list(*, as_json: bool) -> None:
    rows = [(one.name, one.title, str(one.folder)) for one in all_examples()]
    if as_json:
        keys = ("name", "about", "folder")
        output.document({"examples": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        output.table(("NAME", "WHAT IT IS", "FOLDER"), rows, elastic=(-2,))


def _print_results(report: dict[str, Any], files: Sequence[str]) -> None:
    output.notice("")
    if report["text"]:
        output.payload(report["text"])
    _print_error(report)
    failed = sum(job["state"] != JobState.SUCCEEDED for job in report["jobs"])
    jobs = f"{_said_jobs(report)}; {report['most_at_once']} at once, {failed} failed"
    output.notice(f"\n{jobs}. New or changed in {report['workspace']}:")
    for name in files:
        output.notice(f"  {output.one_line(name)}")


def _said_jobs(report: dict[str, Any]) -> str:
    """Return the number of jobs as the live view counts them, including the coordinator's."""
    again = sum(job["done_again"] for job in report["jobs"])
    tasks = count(len(report["jobs"]) - again, "task")
    more = f", and {count(again, 'rework')}" if again else ""
    return f"{count(len(report['jobs']) + 1, 'job')}: the coordinator, {tasks}{more}"


def _print_demo_results(
    report: dict[str, Any], diff: str, *, kept: bool, folder: Path | None
) -> None:
    """Print what changed and what to try next; `folder` is None if it was removed."""
    output.notice(f"\n{report['text'].strip()}\n")
    tests = f"{report['tests_before']} before, {report['tests_after']} after"
    output.payload(f"{diff}\ntests: {tests}\n{_said_jobs(report)}")
    _print_error(report)
    if kept:
        output.notice(
            f"\nNext: fanout tree {formatting.short_id(report['root_id'])} · fanout ps --all · fanout down"
        )
    if folder is not None:
        output.notice(f"The sample is kept in {folder}: git -C {folder} diff")
    else:
        output.notice(
            "\nNext: fanout demo --keep · fanout run 'YOUR GOAL' --workspace DIR · fanout doctor"
        )


def _print_error(report: dict[str, Any]) -> None:
    if error := report["error"]:
        output.notice(formatting.happened(JobError.model_validate(error)))


def _git(folder: Path, *arguments: str) -> str:
    """Run Git on the sample's own repository, which is new, and return its output.

    Raises:
        WorkFailed: Git is not installed, or the command failed.
    """
    try:
        _, output = run_git(
            arguments,
            folder=folder,
            git_dir=folder / ".git",
            work_tree=folder,
            settings=["user.name=fanout", "user.email=fanout@localhost"],
        )
    except GitFailed as error:
        raise WorkFailed(f"git {arguments[0]} failed: {error}.") from None
    return output.decode(errors="replace")
