"""The start of most commands: a connected client or reader, and the jobs that a person names.

A reader is imported faster. Every command accepts a unique prefix of an id, or its unique end;
without an id, it uses the last run of the folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import fanout.orchestrator.client  # a package with lazy imports: each name is imported when it is used

from ...configuration.settings import Settings, load_settings
from ...embedded.use import in_use
from ...jobs.failures import InvalidJob, UnknownApproval, UnknownJob
from ...jobs.result import JobResult
from . import output
from .exit_codes import UsageProblem, WorkFailed
from .formatting import short_approval, short_id
from .waiting import waiting

if TYPE_CHECKING:
    from ...client.job_reader import JobReader
    from ...configuration.agent_definitions import AgentDefinitions


WAITING_FOR_REDIS = "waiting for Redis"
"""The message of commands that wait for Redis and have no more exact one."""
MAX_COUNTED = 100
"""The most candidates that an ambiguous id's error counts: nobody reads more."""
MAX_NAMED = 5
"""The most candidates that an ambiguous id's error names."""
_ELLIPSIS = "…"
"""The ellipsis before the end of an id in the output of earlier releases."""


def usable_agents(settings: Settings) -> AgentDefinitions:
    """Return the agents that jobs may name, and report invalid definition files.

    Raises:
        InvalidAgentDefinition: The folder of agents does not exist.
    """
    from ...configuration.agent_definitions import (  # noqa: PLC0415 - few need it
        read_agent_definitions,
    )

    agents = read_agent_definitions(settings.agents_dir)
    for name, problem in agents.invalid.items():
        output.notice(f"{problem}\nAgent {name} cannot be used until this is corrected.")
    return agents


@asynccontextmanager
async def open_client(
    settings: Settings | None = None, *, submits: bool = False
) -> AsyncIterator[fanout.orchestrator.client.JobClient]:
    """Yield a client of the configured Redis, or of the one that `fanout up` started.

    A Redis of `fanout up` that was killed is started again.

    Args:
        settings: default: loaded from the environment and the settings files.
        submits: whether jobs are submitted, which then run with these settings; see `in_use`.

    Raises:
        InvalidSetting: a setting has a value that is not allowed.
        InvalidAgentDefinition: an agent definition is invalid.
        LedgerUnavailable: no Redis is configured or running, or it does not answer.
    """
    with waiting(WAITING_FOR_REDIS):
        async with AsyncExitStack() as stack:
            ready = "waiting for a worker with these settings" if submits else WAITING_FOR_REDIS
            with waiting(ready):
                services = in_use(settings or load_settings(), output.notice, submits=submits)
                found = await stack.enter_async_context(services)
            connected = fanout.orchestrator.client.JobClient.from_settings(found)
            yield await stack.enter_async_context(connected)


@asynccontextmanager
async def open_reader() -> AsyncIterator[JobReader]:
    """Yield a reader of the Redis that `open_client` would use.

    Raises:
        InvalidSetting, LedgerUnavailable: as `open_client`.
    """
    with waiting(WAITING_FOR_REDIS):
        async with (
            in_use(load_settings(), output.notice) as found,
            fanout.orchestrator.client.JobReader.from_settings(found) as reader,
        ):
            yield reader


async def ended_result(reader: JobReader, job_id: str) -> JobResult:
    """Return the result of a job that has ended.

    Raises:
        WorkFailed: The job has not ended.
        UnknownJob: The job does not exist.
    """
    result = await reader.complete_result(job_id)
    if result is None:
        short = short_id(job_id)
        raise WorkFailed(f"Job {short} has not ended. To wait for it: fanout wait {short}")
    return result


def last_run(folder: Path) -> str:
    """Return the id of the last run of a folder, which is used if no id is given.

    Raises:
        UsageProblem: `fanout run` was never used in this folder, or in one above it.
    """
    from ...configuration.settings import load_settings  # noqa: PLC0415 - seldom
    from ...landing.runs import Runs  # noqa: PLC0415 - seldom

    found = Runs(load_settings().state_dir).find_last(folder.resolve())
    if found is None:
        raise UsageProblem(
            f"No run was started in {folder.resolve()}, so give the ID of a job. To list them: "
            "fanout ps --all"
        )
    return found


def job_or_last_run(prefix: str | None) -> str:
    """Return the named job, or the last run of this folder, which is printed on stderr.

    Raises:
        UsageProblem: As `last_run`.
    """
    if prefix is not None:
        return prefix
    found = last_run(Path())
    output.notice(f"The last run of this folder: {short_id(found)}")
    return found


async def resolve_job(reader: JobReader, prefix: str) -> str:
    """Return the id of the job whose id begins with `prefix`, or of the only one that ends with it.

    Raises:
        UnknownJob: No id has this prefix or this end.
        InvalidJob: Several do.
        LedgerUnavailable: Redis does not answer.
    """
    matches = await reader.find_ids_by_beginning(prefix, MAX_COUNTED)
    if not matches:
        matches = await reader.find_ids_by_ending(prefix.removeprefix(_ELLIPSIS), MAX_COUNTED)
    if not matches:
        raise UnknownJob(f"There is no job {prefix}. To list the jobs: fanout ps --all")
    if len(matches) > 1:
        raise InvalidJob(_ambiguous(prefix, sorted(matches)))
    return matches[0]


def _ambiguous(prefix: str, matches: Sequence[str]) -> str:
    """Return the error for an ambiguous id, with longer ids that distinguish the jobs."""
    count = str(len(matches)) if len(matches) <= MAX_COUNTED else f"more than {MAX_COUNTED}"
    named = ", ".join(short_id(job_id) for job_id in matches[:MAX_NAMED])
    more = ", …" if len(matches) > MAX_NAMED else ""
    return f"{prefix} may mean {count} jobs, so name one: {named}{more}."


async def resolve_jobs(reader: JobReader, prefixes: Sequence[str]) -> list[str]:
    """Return the ids of jobs, in order, each once.

    Raises:
        UnknownJob, InvalidJob, LedgerUnavailable: As `resolve_job`.
    """
    ids = [await resolve_job(reader, prefix) for prefix in prefixes]
    return list(dict.fromkeys(ids))


async def resolve_tree(reader: JobReader, prefix: str) -> str:
    """Return the root id of a tree, by its own id or that of one of its jobs.

    Raises:
        UnknownJob, InvalidJob, LedgerUnavailable: As `resolve_job`.
    """
    try:
        return await reader.root(prefix)
    except UnknownJob:
        return await reader.root(await resolve_job(reader, prefix))


async def resolve_approval(reader: JobReader, prefix: str) -> str:
    """Return the id of an approval: the one with this prefix, or a job's only one.

    Raises:
        UnknownApproval: Several match, or no waiting approval does.
        LedgerUnavailable: Redis does not answer.
    """
    waiting = await reader.approvals() if prefix else []
    own = [approval for approval in waiting if approval.id.startswith(prefix)]
    found = own or [
        approval
        for approval in waiting
        if approval.job_id.startswith(prefix) or approval.job_id.endswith(prefix)
    ]
    if len(found) == 1:
        return found[0].id
    if found:
        named = ", ".join(
            f"{short_approval(approval.id)} ({approval.tool})" for approval in found[:MAX_NAMED]
        )
        raise UnknownApproval(f"{prefix} may mean {len(found)} approvals, so name one: {named}.")
    if await reader.knows_approval(prefix):
        return prefix  # the answer reports what became of it
    raise UnknownApproval(
        f"No approval waits under {prefix!r}; `fanout approvals` lists those that do."
    )
