"""What runs the jobs of a worker process, with the libraries of agents.

Importing these takes two thirds of a worker's start, and nothing of them is needed for the
registration. So `bootstrap` imports this module when the worker has registered, while the first
jobs are on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import cached_property
from typing import Any

from fanout.orchestrator import extras as parents_extras
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.delegation.agents import NamedTools
from fanout.orchestrator.jobs.store.admission import Admission
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter
from fanout.orchestrator.jobs.worker_info import WorkerInfo

from . import extras
from .agent.activity import Activities
from .agent.answer import JobWorker
from .agent.model_access import KeyWatch
from .agent.services import JobServices
from .agent.subagent import SubagentFactory
from .attempt.changes import ChangeCollections
from .attempt.environments import JobEnvironments
from .attempt.job_runner import JobRunner
from .heartbeat import Heartbeats
from .host_fitness import HostFitness
from .sandbox import SandboxProvider
from .upkeep.cancellations import Cancellations
from .upkeep.environment_retention import EnvironmentRetention
from .upkeep.late_changes import LateChanges
from .upkeep.own_ledger import OwnLedger
from .upkeep.warm_up import Forecast, load_agent_libraries, warm_up

__all__ = ["JobExecution", "load_agent_libraries"]


class JobExecution:
    """The job runner, and the background loops that need what it needs.

    Args:
        settings: The settings of the worker.
        services: What all its jobs share.
        urgent_ledger: The ledger, on connections that the jobs do not use.
        own_ledger: Says which workers live.
        admission: Dispatches the next jobs when one has ended.
        provider: Opens the sandboxes.
        heartbeats: Renews the leases.
        fitness: Says whether this host can open sandboxes.
        rate_limiter: Limits the requests to models.
        on_cancelled: Is called with the id of each cancelled job.
        registration: Returns this worker's current registration.
    """

    def __init__(
        self,
        settings: Settings,
        services: JobServices,
        *,
        urgent_ledger: Ledger,
        own_ledger: OwnLedger,
        admission: Admission,
        provider: SandboxProvider,
        heartbeats: Heartbeats,
        fitness: HostFitness,
        rate_limiter: RedisRateLimiter,
        on_cancelled: Callable[[str], None],
        registration: Callable[[], WorkerInfo],
    ) -> None:
        collections = ChangeCollections(services.blobs)
        late_changes = LateChanges(services.ledger, provider, own_ledger, collections, registration)
        activities = Activities(urgent_ledger, services.totals)
        self._services = services
        self._settings = settings
        cancellations = Cancellations(
            urgent_ledger, heartbeats, (self._cancel_remote_task, on_cancelled)
        )
        environments = JobEnvironments(services, provider, settings.sandbox.image)
        forecast = Forecast(
            services, provider, environments, settings.sandbox.image, settings.sandbox.warm
        )
        self.loops: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            late_changes.run,
            cancellations.run,
            activities.run,
            KeyWatch(services, settings.model, settings.worker.pool).run,
            *([forecast.run] if settings.sandbox.provider == "docker" else []),
            *_environment_loops(settings, provider),
        )
        self.runner = JobRunner(
            services,
            admission=admission,
            provider=provider,
            heartbeats=heartbeats,
            fitness=fitness,
            environments=environments,
            subagents=SubagentFactory(
                services=services,
                default_model=settings.model,
                make_tools=self._make_tools,
                max_output_tokens=settings.max_output_tokens,
                max_result_tokens=settings.max_result_tokens,
                rate_limiter=rate_limiter,
                create_remote=_create_remote_agent,
                create_coding=_create_coding_agent,
                stream_text=settings.worker.stream_text,
                checkpoint_seconds=settings.worker.checkpoint_seconds,
            ),
            activities=activities,
            collections=collections,
            collect_later=late_changes.look,
            on_claim=forecast.look_early,
            default_image=settings.sandbox.image,
            lease_seconds=settings.worker.lease_seconds,
            full_wait_seconds=settings.storage.full_wait_seconds,
            registration=registration,
        )

    async def warm_up(self, models: Iterable[str]) -> None:
        """Load what the first job needs; this blocks the loop.

        Args:
            models: Names of models.
        """
        await warm_up(models)

    def _cancel_remote_task(self, job_id: str) -> None:
        if any(definition.a2a for definition in self._services.definitions.values()):
            self._abandoned_tasks.begin_cancel(job_id)

    async def _make_tools(self, names: Collection[str], model: str) -> NamedTools:
        return await self._tool_maker.make(names, model)

    @cached_property
    def _tool_maker(self) -> parents_extras.ToolMaker:
        return parents_extras.ToolMaker(self._settings.web, self._settings.tools)

    @cached_property
    def _abandoned_tasks(self) -> extras.AbandonedTasks:
        return extras.AbandonedTasks(self._services)


def _environment_loops(
    settings: Settings, provider: SandboxProvider
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    if provider.environments is None:
        return []
    retention = EnvironmentRetention(
        provider.environments,
        unused_seconds=settings.sandbox.environment_seconds,
        most_bytes=settings.sandbox.environment_bytes,
    )
    return [retention.run]


def _create_remote_agent(*arguments: Any, **options: Any) -> JobWorker:
    """Return a `RemoteAgent`; the extra is loaded for the first one."""
    return extras.RemoteAgent(*arguments, **options)


def _create_coding_agent(*arguments: Any, **options: Any) -> JobWorker:
    """Return a `CodingAgentJob`; the extra is loaded for the first one."""
    return extras.CodingAgentJob(*arguments, **options)
