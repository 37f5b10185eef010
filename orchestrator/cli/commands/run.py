"""`run` and `attach`: start a run on a folder, follow it, and land its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ...client import JobClient
from ...client.model_check import check_models
from ...configuration.agent_definitions import (
    COORDINATOR,
    AgentDefinition,
)
from ...configuration.settings import Settings, load_settings
from ...embedded.use import outliving, revived, with_pool
from ...jobs.result import JobResult
from ...jobs.spec import JobSpec
from ...jobs.state import JobRecord
from ...landing.branch import BranchUnusable, base_commit, require_branch
from ...landing.conflicts import find_unmerged
from ...landing.runs import Landing, Runs, land
from ...server.notifications.hook import DESKTOP, Hook
from ...server.notifications.messages import describe_end
from ...workspace.repositories.repository import is_clean_checkout
from ...workspace.staged_merge import MergeUndone, MergeUnfinished
from ..terminal import held_back, output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.formatting import result_id, short_id
from ..terminal.options import (
    AsJson,
    BranchOption,
    JobOrLastRun,
    SandboxOption,
    chosen_sandbox,
)
from ..terminal.questions import confirm
from ..terminal.run_view import follow
from ..terminal.session import (
    WAITING_FOR_REDIS,
    job_or_last_run,
    open_client,
    resolve_job,
    usable_agents,
)
from ..terminal.waiting import snapshot_progress, waiting
from .images import with_images
from .job_files import (
    IncludeOption,
    Shortfall,
    included_files,
    plan,
)
from .run_report import (
    RunOutcome,
    failed_jobs,
    print_outcome,
    run_exit_code,
)
from .script_arguments import ScriptFile, parse_inputs, read_script
from .scripts import InputOption, ReuseOption, ScriptOption, refuse_faults
from .submission import (
    ContinueOption,
    MaxReworksOption,
    NoWaitOption,
    VerifyMergesOption,
    VerifyOption,
    job_limits,
)
from .up import announce_sandbox
from .waiting import submitted_document

YesOption = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Do not ask: the folder may be changed, and calls of all agents of the run that need "
        "an approval are approved.",
    ),
]
OnFinishOption = Annotated[
    str | None,
    typer.Option(
        "--on-finish",
        metavar="COMMAND",
        help="When the run has ended, run this shell command, which has FANOUT_JOB_ID, "
        f"FANOUT_JOB_STATE and more in its environment; `{DESKTOP}`: a desktop notification. For "
        "all runs, also detached ones: FANOUT_NOTIFICATIONS__ON_FINISH.",
    ),
]


@dataclass(frozen=True)
class _Wanted:
    """The options of `run`."""

    spec: Mapping[str, Any]
    """The fields of the root job; None for one that is not given."""
    continues: str | None
    workspace: Path | None
    include: Sequence[str]
    lands: bool
    branch: str | None
    include_executable_config: bool
    on_finish: str | None
    script: ScriptFile | None = None
    """The script that the root job runs instead of an agent."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The values of its `inputs`."""
    reuse: bool = False
    """Whether its calls have the results of equal calls of earlier scripts."""


def run_(
    goal: Annotated[str | None, typer.Argument(help="The agent's task, in plain language.")] = None,
    *,
    script: ScriptOption = None,
    inputs: InputOption = None,
    reuse: ReuseOption = False,
    workspace: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder to work on; default: the current one, or that of the run before.",
        ),
    ] = None,
    include: IncludeOption = None,
    continues: ContinueOption = None,
    agent: Annotated[
        str | None, typer.Option(help=f"The agent that works on it; default: {COORDINATOR}.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Its model, and that of all agents below it that name none of their own; default: "
            "the agent's own, else FANOUT_MODEL."
        ),
    ] = None,
    verify: VerifyOption = None,
    verify_merges: VerifyMergesOption = None,
    max_reworks: MaxReworksOption = None,
    no_wait_for_quota: NoWaitOption = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the run's id and do not wait for its end.")
    ] = False,
    no_land: Annotated[
        bool,
        typer.Option("--no-land", help="Change nothing in DIR; `fanout apply` merges it later."),
    ] = False,
    branch: BranchOption = None,
    sandbox: SandboxOption = None,
    yes: YesOption = False,
    include_executable_config: Annotated[
        bool, typer.Option(held_back.OPTION, help=held_back.OPTION_HELP)
    ] = False,
    on_finish: OnFinishOption = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent on GOAL, or a script, and merge the changes.

    It may have other agents to help it. The run works on a copy of DIR and continues without this
    command: Ctrl-C, or a closed terminal, ends the view only; `fanout attach` shows it again. Exit
    code 1 if the run fails, if its files do not pass --verify or --verify-merges, if conflicts
    remain, or if a task failed finally and no --verify passed. If no Redis
    is configured (FANOUT_REDIS_URL) or running (`fanout up`), a private Redis and a worker are
    started, and end when they are no longer used.
    """
    program = _script(goal, script, inputs, reuse=reuse)
    values = parse_inputs(inputs or ())
    settings = load_settings(**chosen_sandbox(sandbox))
    agents = usable_agents(settings)
    if program is not None:
        refuse_faults(program, agents, values)
    if model is None and continues is None:  # a continuation has the model of the run before
        model = _model_of_settings(settings, agents, agent or COORDINATOR)
    given = {
        "agent": agent,
        "model": model,
        "verify": verify,
        "verify_merges": verify_merges,
        "max_reworks": max_reworks,
        "limits": job_limits(no_wait_for_quota=no_wait_for_quota),
    }
    wanted = _Wanted(
        spec={"description": goal if program is None else program.title, **given},
        continues=continues,
        workspace=workspace,
        include=include or (),
        lands=not no_land,
        branch=branch,
        include_executable_config=include_executable_config,
        on_finish=on_finish,
        script=program,
        inputs=values,
        reuse=reuse,
    )
    _check(wanted, agents, detach=detach)
    if continues is None:  # otherwise its agent and its model are known when it is submitted
        with waiting("checking whether the models can be reached"):
            check_models(settings, agents, [(agent or COORDINATOR, model)])
    with_images(
        lambda: asyncio.run(_run(settings, wanted, detach=detach, yes=yes, as_json=as_json))
    )


def _script(
    goal: str | None, script: str | None, inputs: Sequence[str] | None, *, reuse: bool
) -> ScriptFile | None:
    """Return the script that is to run; None: an agent works on the goal.

    Raises:
        UsageProblem: There is neither a goal nor a script, or both, or the script cannot be read.
    """
    if goal is not None and script is not None:
        raise UsageProblem("A run has a GOAL or a --script: leave one of them out.")
    if goal is None and script is None:
        raise UsageProblem(
            "Describe what the run is to do (GOAL), or name a program: --script FILE"
        )
    if script is None:
        if reuse:
            raise UsageProblem("--reuse is for a script: name it with --script FILE.")
        if inputs:
            raise UsageProblem("--input gives values to a script: name it with --script FILE.")
        return None
    return read_script(script)


def _model_of_settings(
    settings: Settings, agents: Mapping[str, AgentDefinition], agent: str
) -> str | None:
    """Return the model that FANOUT_MODEL gives a run; None if it is not set, or its agent has one.

    It is a part of the job, because a worker that runs already may have another one.
    """
    has_own = agent in agents and agents[agent].model is not None
    is_set = "model" in settings.model_fields_set
    return settings.model if is_set and not has_own else None


def _check(wanted: _Wanted, agents: Collection[str], *, detach: bool) -> None:
    """Refuse invalid options before anything is started.

    Raises:
        UsageProblem: The goal is empty, a value is not allowed, options exclude each other, or the
            folder does not exist.
        BranchUnusable: The branch cannot be created in the folder.
    """
    if not str(wanted.spec["description"]).strip():
        raise UsageProblem("The goal is empty: describe what the run is to do.")
    plan({name: value for name, value in wanted.spec.items() if value is not None}, agents, {})
    if wanted.continues and wanted.include:
        raise UsageProblem("A run that continues another has its files: leave --include out.")
    if wanted.branch is not None and not wanted.lands:
        raise UsageProblem("--branch lands the run and --no-land does not: leave one of them out.")
    if wanted.on_finish is not None and detach:
        raise UsageProblem(
            "--on-finish needs a command that waits for the end, and --detach does not wait: set "
            "FANOUT_NOTIFICATIONS__ON_FINISH, or give --on-finish to `fanout attach`."
        )
    if wanted.branch is not None and not wanted.continues:
        require_branch(_folder(wanted.workspace or Path()), wanted.branch)


async def _run(
    settings: Settings, wanted: _Wanted, *, detach: bool, yes: bool, as_json: bool
) -> None:
    async with AsyncExitStack() as stack:
        reachable = await stack.enter_async_context(_services(settings))
        stack.enter_context(waiting(WAITING_FOR_REDIS))
        client = await stack.enter_async_context(JobClient.from_settings(reachable))
        workers = await client.workers()
        if workers:
            announce_sandbox(workers)
        else:
            output.notice("No worker is running, so jobs will wait; start one: fanout worker")
        runs = Runs(reachable.state_dir)
        with waiting("asking Git about the folder"):
            landing, included = await _landing(client, runs, wanted)
            folder = landing.workspace
            is_clean = landing.branch is None or await asyncio.to_thread(is_clean_checkout, folder)
        if not is_clean:
            output.notice(
                f"{folder} has changes that are not committed: the agents see them, but "
                f"branch {landing.branch} gets only what the agents change."
            )
        if landing.lands and landing.branch is None and not yes:
            _confirm(folder)
        program = None if wanted.script is None else (wanted.script.source, wanted.inputs)
        root_id = await start_run(
            client, wanted.spec, landing, included, program, reuse=wanted.reuse
        )
        try:
            runs.remember(root_id, landing)
        except OSError as error:  # the run continues
            output.notice(
                f"{reachable.state_dir} cannot be written ({error.strerror}), so `attach` will not "
                f"know where the run lands: fanout apply {short_id(root_id)} --into DIR"
            )
        shortfall = Shortfall.of([client.workspace(folder)])
        if detach:
            if as_json:
                output.document(submitted_document([root_id]) | shortfall.document())
            else:
                shortfall.print()
                output.payload(result_id(root_id))
            return
        output.notice(f"Run {short_id(root_id)}")
        ask = not (yes or as_json)
        outcome = await finish_run(client, runs, root_id, landing, yes=yes, ask=ask)
        print_outcome(outcome, landing, shortfall.document() if as_json else None)
        if not as_json:
            shortfall.print()
        await run_on_finish(wanted.on_finish, client, root_id, outcome.result.state)
    raise typer.Exit(run_exit_code(outcome))


async def _landing(
    client: JobClient, runs: Runs, wanted: _Wanted
) -> tuple[Landing, frozenset[str]]:
    """Return where a run lands, and the files that a person includes.

    Raises:
        UsageProblem: The folder or a file does not exist.
        BranchUnusable: The branch cannot be created in the folder.
        UnknownJob: The run that it continues does not exist.
    """
    continues = await resolve_job(client, wanted.continues) if wanted.continues else None
    before = runs.landing(continues) if continues else None
    folder = _folder(wanted.workspace or (before.workspace if before else Path()))
    if wanted.branch is not None:
        await asyncio.to_thread(require_branch, folder, wanted.branch)
    landing = Landing(
        workspace=folder,
        lands=wanted.lands,
        branch=wanted.branch,
        base_commit=await asyncio.to_thread(base_commit, folder),
        include_executable_config=wanted.include_executable_config,
        continues=continues,
    )
    return landing, included_files(wanted.include, folder)


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise UsageProblem(f"--workspace {str(path)!r} is not a folder.")
    return path.resolve()


def attach(
    job: JobOrLastRun = None,
    *,
    yes: YesOption = False,
    on_finish: OnFinishOption = None,
    as_json: AsJson = False,
) -> None:
    """Follow a run to its end, answer its approvals, and merge it.

    Its changes are merged as `run` would. Any number of terminals can do so at once; merging twice
    changes nothing. A run that was started on another machine is followed, but not merged.
    """
    asyncio.run(_attach(job_or_last_run(job), on_finish, yes=yes, as_json=as_json))


async def _attach(prefix: str, on_finish: str | None, *, yes: bool, as_json: bool) -> None:
    async with open_client() as client:
        job_id = await resolve_job(client, prefix)
        runs = Runs(load_settings().state_dir)
        landing = runs.landing(job_id)
        outcome = await finish_run(client, runs, job_id, landing, yes=yes, ask=not (yes or as_json))
        print_outcome(outcome, landing, {} if as_json else None)
        await run_on_finish(on_finish, client, job_id, outcome.result.state)
    raise typer.Exit(run_exit_code(outcome))


@asynccontextmanager
async def _services(settings: Settings) -> AsyncIterator[Settings]:
    """Yield settings with a reachable Redis, which is started with a worker if there is none.

    They outlive this process, and end when they are no longer used.

    Args:
        settings: The settings of this process.

    Raises:
        LedgerUnavailable: They cannot be started.
    """
    if settings.redis_url is not None:
        yield settings
        return
    async with AsyncExitStack() as stack:
        with waiting("starting the worker"):
            embedded = await stack.enter_async_context(outliving(settings, output.notice))
        own = with_pool(settings, embedded.settings)
        await stack.enter_async_context(revived(own, output.notice))
        yield embedded.settings


async def start_run(
    client: JobClient,
    spec: Mapping[str, Any],
    landing: Landing,
    included: frozenset[str] = frozenset(),
    script: tuple[str, Mapping[str, Any]] | None = None,
    *,
    reuse: bool = False,
) -> str:
    """Submit a run on a copy of its folder, and return the id of its root job.

    Args:
        client: The connected client.
        spec: The fields of the root job; None for one that is not given.
        landing: The run's folder, and the run that it continues.
        included: Files that the copy has even if they seem to be secret.
        script: The source and the inputs of the script that it runs; None: its agent works.
        reuse: Whether the script's calls have the results of equal calls of earlier scripts.

    Raises:
        UnknownAgent: The agent does not exist.
        InvalidJob: The specification cannot be stored, or the run that it continues has not ended.
        WorkspaceUnusable: The folder cannot be read, or is too large.
    """
    given = {name: value for name, value in spec.items() if value is not None} | {"reuse": reuse}
    if landing.continues is not None:  # its agent and its files are those of that run
        job = JobSpec.model_validate({**given, "continues": landing.continues})
    else:
        agent = given.setdefault("agent", COORDINATOR)
        async with snapshot_progress(client.workspace(landing.workspace)):
            start = await client.start_files(landing.workspace, agent, included)
        job = JobSpec.model_validate({**given, **start.update()})
    if script is not None:
        job = await client.script_job(*script, job)
    return await client.submit(job)


async def finish_run(
    client: JobClient,
    runs: Runs,
    root_id: str,
    landing: Landing | None,
    *,
    yes: bool = False,
    ask: bool = False,
) -> RunOutcome:
    """Follow a run to its end and land its changes.

    Args:
        client: The connected client.
        runs: The records of which runs have landed.
        root_id: The run's root job.
        landing: Where it lands; None: it is unknown here.
        yes: Approve the calls of the run's agents without asking.
        ask: Ask at a terminal whether changes that are held back may land.

    Raises:
        JobFailure: The run cannot be followed, or not be landed.
    """
    result = await follow(client, root_id, yes=yes)
    landed, reason = None, None
    try:
        with waiting("landing the changes"):
            landed = None if landing is None else await land(client, runs, result, landing)
        held = landed.merge.held_back if landed and landed.branch is None else ()
        if landing and held_back.may_land(held, ask=ask):
            with_code = landing.model_copy(update={"include_executable_config": True})
            with waiting("landing the changes"):
                landed = await land(client, runs, result, with_code)
    except (MergeUndone, MergeUnfinished) as failure:
        reason = f"{failure} To land it then: fanout attach {short_id(root_id)}"
    except BranchUnusable as failure:
        reason = str(failure)
    record = await client.get(root_id)
    usage = await client.tree_usage(record.root_id)
    unmerged = await find_unmerged(client, root_id)
    failed = await failed_jobs(client, root_id)
    is_right = _is_answer_verified(result, record)
    return RunOutcome(
        result,
        usage,
        landed,
        unmerged,
        failed,
        reason,
        is_answer_verified=is_right,
        is_script=record.script is not None,
    )


def _is_answer_verified(result: JobResult, record: JobRecord) -> bool:
    """Return whether the run's `verify` passes, and not only its `verify_merges`."""
    if result.verified is None or result.verified.exit_code != 0:
        return False
    command = result.verified.command
    return command == record.verify or command != record.verify_merges


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
    if not confirm(f"Agents will edit files in {folder}. Continue?"):
        raise typer.Exit(ExitCode.NOT_ALLOWED)


async def run_on_finish(command: str | None, client: JobClient, job_id: str, state: str) -> None:
    """Run the command; its failure is a line in the log, and changes no exit code.

    Args:
        command: The option's value; None: nothing is run.
        client: The connected client.
        job_id: The job that has ended.
        state: The state that it has reached.
    """
    if command is None:
        return
    with waiting("running the command of --on-finish"):
        await Hook(command).run(await describe_end(client, job_id, state))
