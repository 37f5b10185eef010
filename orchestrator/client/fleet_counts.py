"""The workers, queues and totals of an installation, cached for a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..jobs.store.fleet import QueueHead
from ..jobs.totals import Label
from ..jobs.worker_info import WorkerLoad
from .job_counts import Recent
from .job_reader import JobReader


@dataclass(frozen=True)
class FleetCounts:
    """The counts of an installation at one moment."""

    workers: Sequence[WorkerLoad] = ()
    queues: Sequence[QueueHead] = ()
    """The queues with jobs, the longest wait first."""
    totals: Mapping[Label, float] = field(default_factory=dict)


class FleetCounter:
    """Reads what `FleetCounts` has.

    Args:
        reader: The connection.
    """

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader
        self._installation = ""
        self._totals: Mapping[Label, float] = {}
        self._recent = Recent(self._read)

    async def now(self) -> FleetCounts:
        """Return the counts, at most a second old.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        return await self._recent.now()

    async def _read(self) -> FleetCounts:
        fleet, totals = self._reader.fleet, self._reader.totals
        workers, queues = await fleet.workers(), await fleet.queues()
        self._totals = await self._never_lower(await totals.read())
        return FleetCounts(workers, queues, self._totals)

    async def _never_lower(self, counted: Mapping[Label, float]) -> Mapping[Label, float]:
        """Return totals that do not fall when Redis loses its last writes.

        Prometheus treats a falling counter as one that restarted at 0, and its whole value as an
        increase. The totals of another installation do restart.
        """
        installation = await self._reader.fleet.installation()
        is_same, self._installation = installation == self._installation, installation
        if not is_same:
            return counted
        before = self._totals
        labels = dict.fromkeys([*before, *counted])
        return {one: max(before.get(one, 0.0), counted.get(one, 0.0)) for one in labels}
