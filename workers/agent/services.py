"""What all jobs of a worker share, and what of it may change while the worker runs.

Agent definitions, and keys in files, are read again when a job is claimed, so a change takes effect
at the next job, and a running job keeps the definition that it started with. What was exported when
the worker started, and all other settings, hold until it is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import SecretStr

from fanout.orchestrator.configuration.agent_definitions import AgentDefinitions
from fanout.orchestrator.configuration.configuration_file import (
    ConfigurationFile,
    configuration_path,
    export_keys,
)
from fanout.orchestrator.configuration.live_definitions import LiveDefinitions, Stamp, read_stamp
from fanout.orchestrator.delegation.submission_check import check_submission
from fanout.orchestrator.jobs.ceilings import Ceilings
from fanout.orchestrator.jobs.failures import UnknownAgent
from fanout.orchestrator.jobs.spec import JobSpec, Limits, TreeBounds
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.totals import Totals
from fanout.orchestrator.workspace.blobs import BlobStore

MAX_ABOVE = 256
"""The most specifications of jobs above others that a worker keeps, each of a few kilobytes: more
than the trees whose jobs it runs in one minute."""

log = structlog.get_logger(__name__)


async def _nothing_changes() -> None:
    pass


@dataclass(frozen=True)
class JobServices:
    """The stores, the agents and the limits of an installation, for the jobs of one worker."""

    ledger: Ledger
    journal: Journal
    """The journals of all jobs."""
    blobs: BlobStore
    definitions: AgentDefinitions
    """Updated in place by `refresh`."""
    defaults: Limits
    """The installation's limits, for fields that neither the job nor its agent sets."""
    bounds: TreeBounds
    """How deep and how much jobs may delegate."""
    secrets: Mapping[str, SecretStr] = field(default_factory=dict, repr=False)
    """What the proxy of a sandbox may put into requests, by name."""
    approvers: tuple[str, ...] = ()
    """Who may answer approvals; empty: everybody."""
    refresh: Callable[[], Awaitable[None]] = _nothing_changes
    """Reads again what a person has changed since; awaited before a job begins."""
    ceilings: Ceilings = field(default_factory=Ceilings)
    """What no job may exceed."""
    totals: Totals = field(default_factory=Totals)
    """What this worker counts for operators."""
    _above: dict[str, JobSpec] = field(default_factory=dict, repr=False)
    """The specifications that `specification_above` has read last."""

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that asks for what it may not have.

        Raises:
            InvalidJob: As `check_submission`.
        """
        check_submission(spec, self.definitions, defaults=self.defaults, ceilings=self.ceilings)

    def limits_of(self, spec: JobSpec) -> Limits:
        """Return the limits of a job: its own, then its agent's, then the installation's.

        Raises:
            UnknownAgent: This worker has no definition of the job's agent.
            LimitExceeded: The job or its agent asks for more than the installation gives.
        """
        asked = spec.limits.over(self.definitions[spec.agent].job_limits())
        self.ceilings.check(asked)
        return self.ceilings.within(asked.over(self.defaults))

    def limits_of_agent(self, agent: str) -> Limits:
        """Return the limits of a job of this agent that sets none of its own.

        Raises:
            UnknownAgent: This worker has no definition of it.
        """
        return self.ceilings.within(self.definitions[agent].job_limits().over(self.defaults))

    async def specification_above(self, job_id: str) -> JobSpec:
        """Return what a job with jobs below it was submitted with, which never changes.

        Read once for the hundreds of jobs that may be below it.

        Raises:
            UnknownJob: The job does not exist.
            LedgerUnavailable: Redis does not answer.
        """
        known = self._above.get(job_id)
        if known is None:
            record = await self.ledger.get(job_id)
            fields = record.model_dump(include=set(JobSpec.model_fields))
            known = self._above[job_id] = JobSpec.model_validate(fields)
            if len(self._above) > MAX_ABOVE:
                del self._above[next(iter(self._above))]
        return known

    def given_limits(self, spec: JobSpec) -> Limits:
        """Return the limits that were set for a job or its agent, which bind its descendants too.

        The installation's defaults are left out: they apply to each job separately.
        """
        try:
            return spec.limits.over(self.definitions[spec.agent].job_limits())
        except UnknownAgent:  # another release's agent
            return spec.limits


class LiveConfiguration(LiveDefinitions):
    """The definitions and secrets of a worker, which are updated in place.

    Args:
        folder: As of `LiveDefinitions`.
        load_secrets: Reads the secrets that definitions name. Raises ValueError.

    Raises:
        InvalidAgentDefinition: The folder does not exist.
    """

    def __init__(
        self, folder: Path | None, load_secrets: Callable[[], Mapping[str, SecretStr]]
    ) -> None:
        self._load_secrets = load_secrets
        self._read_keys = _stamp_of_keys()
        self._exported = export_keys()
        super().__init__(folder)
        self._log_invalid()
        self.secrets = dict(load_secrets())

    async def look(self) -> None:
        """Look at the files once, and read those that have changed; what is invalid is logged."""
        await super().look()
        keys = await asyncio.to_thread(_stamp_of_keys)
        if keys != self._read_keys:
            await self._read_secrets()
            self._read_keys = keys

    def not_read(self, error: Exception) -> None:
        """Log why the folder could not be read again."""
        log.warning("changed agent definitions not used", error=str(error))

    def was_read(self) -> None:
        """Log what was read again."""
        self._log_invalid()
        log.info("agent definitions read again", agents=len(self.definitions))

    def _log_invalid(self) -> None:
        for name, problem in self.definitions.invalid.items():
            log.warning("agent definition not used", agent=name, error=problem)

    async def _read_secrets(self) -> None:
        try:
            self._exported = await asyncio.to_thread(export_keys, self._exported)
            found = await asyncio.to_thread(self._load_secrets)
        except (ValueError, OSError) as error:
            log.warning("changed keys not used", error=type(error).__name__)
            return
        self.secrets.clear()
        self.secrets.update(found)
        log.info("keys read again")


def _stamp_of_keys() -> Stamp | None:
    path = configuration_path()
    return read_stamp(ConfigurationFile(path).env) if path else None
