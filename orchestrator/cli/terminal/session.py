"""What most commands start with: a connected client, or a reader, which is imported faster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import fanout.orchestrator.client  # a door: what a command uses of it is imported when it is used
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import WorkFailed
from fanout.orchestrator.cli.terminal.formatting import short_id
from fanout.orchestrator.cli.terminal.live.waiting import waiting
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.embedded.use import in_use
from fanout.orchestrator.jobs.result import JobResult

if TYPE_CHECKING:
    from fanout.orchestrator.configuration.agent_definitions import AgentDefinitions

WAITING_FOR_REDIS = "waiting for Redis"
"""What commands wait for that name nothing more exact."""


def usable_agents(settings: Settings) -> AgentDefinitions:
    """Return the agents that jobs may name, and say which files are no definitions.

    Raises:
        InvalidAgentDefinition: the folder of agents does not exist.
    """
    from fanout.orchestrator.configuration.agent_definitions import (  # noqa: PLC0415 - few need it
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
async def open_reader() -> AsyncIterator[fanout.orchestrator.client.JobReader]:
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


async def ended_result(reader: fanout.orchestrator.client.JobReader, job_id: str) -> JobResult:
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
