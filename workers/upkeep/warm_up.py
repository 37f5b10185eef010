"""Warm-up: what jobs need soon is loaded, or started, before they come.

ADK and the clients of models load many modules when they are first used, on the event loop: half a
second in which no lease is renewed and no other job runs. So a worker loads them before it runs its
first job. The sandbox provider gets the next jobs of the queue, so that it starts sandboxes ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import structlog
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout.orchestrator.deep_agent import (
    Budget,
    Conversation,
    Script,
    ScriptedCall,
    ScriptedModel,
    ScriptedReply,
    create_deep_agent,
    create_deep_app,
    preload_client,
)
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.spec import JobSpec

from ..agent.services import JobServices
from ..attempt.environments import JobEnvironments
from ..attempt.opening import sandbox_spec
from ..sandbox import SandboxProvider, SandboxSpec

LOOK_SECONDS = 1.0
"""Between two looks at the queue: a job of one second is followed by one that was expected, and a
look takes Redis less than a millisecond."""
SOON_SECONDS = 0.2
"""The time from a claim to the next check: most of the jobs that start together are claimed by
then, and a job adopts its sandbox when its model has replied."""
NEXT_JOBS = 16
"""Looked at, unless a setting allows more warm sandboxes: more than start in a second."""
log = structlog.get_logger(__name__)

_SCRIPT = Script(
    conversations=(
        Conversation(
            replies=(
                ScriptedReply(calls=(ScriptedCall(tool="ls", args={"path": "/"}),)),
                ScriptedReply(text="warm"),
            )
        ),
    )
)


class Forecast:
    """Looks at the head of the queue.

    Args:
        services: The stores, the agents and the limits.
        provider: Is informed of the jobs that will probably need a sandbox.
        environments: Say which prepared environments they will have.
        default_image: The image of an agent whose definition names none.
        warm: How many sandboxes a setting allows to be started ahead; None: there is none.
    """

    def __init__(
        self,
        services: JobServices,
        provider: SandboxProvider,
        environments: JobEnvironments,
        default_image: str,
        warm: int | None,
    ) -> None:
        self._services = services
        self._provider = provider
        self._environments = environments
        self._default_image = default_image
        self._next_jobs = max(NEXT_JOBS, warm or 0)
        self._is_outdated = asyncio.Event()

    def look_early(self) -> None:
        """Look before the next interval ends: a job has been taken from the queue."""
        self._is_outdated.set()

    async def run(self) -> None:
        """Look at intervals, and after claims, until cancelled; failures are logged."""
        while True:
            try:
                await self.look()
            except JobFailure as error:
                log.warning("queue not looked at", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._is_outdated.wait()
                    await asyncio.sleep(SOON_SECONDS)
            self._is_outdated.clear()

    async def look(self) -> None:
        """Tell the provider what comes next.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        jobs = await self._services.ledger.upcoming(self._next_jobs)
        self._provider.expect_next(await self._sandboxes(jobs))

    async def _sandboxes(self, jobs: Iterable[JobSpec]) -> list[SandboxSpec]:
        found = []
        for job in jobs:
            try:
                definition = self._services.definitions[job.agent]
                limits, secrets = self._services.limits_of(job), self._services.secrets
                spec = sandbox_spec(job, definition, limits, secrets, self._default_image)
                environment = await self._environments.expected(job)
                if environment is not None:
                    found.append(replace(spec, environment=environment))
            except JobFailure:  # another worker's, or it fails when it runs
                continue
        return found


async def warm_up(models: Iterable[str]) -> None:
    """Create the models' clients, and run an agent with a scripted model; no model is called.

    This blocks the loop, so it has to end before the worker runs jobs. A failure is only
    logged: the jobs that it concerns report it again.

    Args:
        models: Names of models.
    """
    for model in models:
        await preload_client(model)
    await _rehearse()


def load_agent_libraries() -> None:
    """Load what every agent needs, in a process without an event loop."""
    asyncio.run(_rehearse())


async def _rehearse() -> None:
    try:
        await _run_agent()
    except Exception as error:  # noqa: BLE001 - the warm-up is optional
        log.warning("warm-up failed", error=type(error).__name__)


async def _run_agent() -> None:
    agent = create_deep_agent(
        ScriptedModel(model="scripted:warm_up", script=_SCRIPT, agent_name="warm_up"),
        name="warm_up",
        delegation=None,
    )
    runner = InMemoryRunner(app=create_deep_app(agent, budget=Budget()))
    session = await runner.session_service.create_session(
        app_name=runner.app_name, user_id="warm_up"
    )
    message = types.Content(role="user", parts=[types.Part(text="warm up")])
    run = runner.run_async(user_id="warm_up", session_id=session.id, new_message=message)
    async with contextlib.aclosing(run) as events:
        async for _ in events:
            pass
    await runner.close()
