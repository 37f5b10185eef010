"""The states of models, for one attempt of a job and for the worker that runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial

import structlog

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import (
    ClosedAccess,
    FailedRequest,
    ModelAccess,
    ModelNotOpen,
    model_accesses,
)
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.store import model_states as store
from fanout.orchestrator.jobs.store.ledger import ModelWait
from fanout.orchestrator.jobs.store.outage import through_outage

from .services import JobServices

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0
"""How often a worker looks whether a key has changed for which jobs wait."""


def model_names(spec: JobSpec, definition: AgentDefinition | None, default: str) -> str:
    """Return the models that a job asks, as `resolve_model` takes them."""
    return spec.model or (definition.model if definition is not None else None) or default


class JobModelStates:
    """What a job's requests to models know and learn; it implements `AccessStates`.

    Args:
        states: The states of the installation.
        answered_at: When this process last recorded that a model answers, by its access.
        root_id: The root of the job's tree.
    """

    def __init__(
        self, states: store.ModelStates, answered_at: dict[str, float], root_id: str
    ) -> None:
        self._states = states
        self._root_id = root_id
        self._answered_at = answered_at
        self.was_answered = False
        """Whether a model has answered in this attempt."""

    async def ask(self, access: ModelAccess, request: str) -> ClosedAccess | bool:
        """See `AccessStates`."""
        return await through_outage(partial(self._states.ask, access.id, access.name, request))

    async def answered(self, access: ModelAccess, *, is_trial: bool) -> None:
        """See `AccessStates`."""
        self.was_answered = True
        now = time.monotonic()
        recorded_at = self._answered_at.get(access.id, -store.ANSWERED_SECONDS)
        if is_trial or now - recorded_at >= store.ANSWERED_SECONDS:
            self._answered_at[access.id] = now
            woken = await through_outage(partial(self._states.answered, access.id, access.name))
            if is_trial:
                log.info("model answers again", model=access.name, woken=woken)

    async def failed(self, access: ModelAccess, failed: FailedRequest) -> ClosedAccess | None:
        """See `AccessStates`."""
        state = store.ModelState(failed.state)
        is_doubtful = state in {store.ModelState.AWAY, store.ModelState.LIMITED}
        closed = await through_outage(
            partial(
                self._states.close,
                access.id,
                access.name,
                state,
                failed.why,
                request=failed.id,
                wait_seconds=failed.wait_seconds,
                must_have_worked=state is store.ModelState.REFUSED or failed.status is None,
                failed_for_seconds=failed.seconds if is_doubtful else None,
                interrupts=self._root_id if _is_for_a_person(state, failed) else "",
            )
        )
        if closed is not None:
            log.warning("model closed", model=access.name, state=state, until=closed.until)
        return closed

    def wait(self, error: ModelNotOpen, limits: Limits, of_agent: Limits) -> ModelWait:
        """Return what a job waits for after its request was not sent, or failed for all.

        Args:
            error: The failure.
            limits: The job's limits.
            of_agent: Those of jobs of its agent that set none of their own.
        """
        closed = [one for one in error.closed if isinstance(one, store.ClosedModel)]
        return ModelWait(
            closed=closed[0],
            accesses=tuple(one.access for one in closed),
            most_seconds=limits.max_wait_seconds or 0,
            most_of_agent=of_agent.max_wait_seconds or 0,
            was_answered=self.was_answered,
        )


def _is_for_a_person(state: store.ModelState, failed: FailedRequest) -> bool:
    """Return whether an account is empty until a person fills it up: its service names no time.

    Work that this interrupts waits for that person. Work that was submitted afterwards fails in the
    service's words, in front of whoever has submitted it.
    """
    return state is store.ModelState.EXHAUSTED and failed.wait_seconds is None


class KeyWatch:
    """Lets the jobs of a worker's pool go on when the key or the address has changed.

    Args:
        services: What all jobs of this worker share.
        default_model: The model if neither a job nor its agent's definition names one.
        pool: The worker's pool.
    """

    def __init__(self, services: JobServices, default_model: str, pool: str) -> None:
        self._services = services
        self._default_model = default_model
        self._pool = pool
        self._known: dict[str, tuple[str, ...]] = {}
        """`<agent> <model>` -> the accesses as this process has last known them."""

    async def run(self) -> None:
        """Look until cancelled; failures are logged."""
        while True:
            try:
                await self.look()
            except JobFailure as error:
                log.warning("models not looked at", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once.

        A worker says that a key has changed when it has started with another one, or has read
        another one since: two workers with different keys do not contradict each other for ever.
        """
        states = self._services.ledger.models
        waited_for = await states.waited_for(self._pool)
        if waited_for:
            await self._services.refresh()
        for what, before in waited_for.items():
            now = self._accesses(what)
            known = self._known.get(what, before)
            self._known[what] = now
            if _differ(known, now) and _differ(before, now):
                await states.reset(self._pool, what, before, now)
                log.info("a key or an address has changed", agent=what.partition(" ")[0])

    def _accesses(self, what: str) -> tuple[str, ...]:
        agent, _, model = what.partition(" ")
        definition = self._services.definitions.get(agent)
        named = definition.model if definition is not None else None
        return model_accesses(model or named or self._default_model)


def _differ(some: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether the accesses that were closed are not all among the others."""
    return not set(some) <= set(others)
