"""Pages of jobs, newest first: a list of any length is read in bounded steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..jobs.state import JobRecord, JobState
from ..jobs.store.records import JobSketch, Records
from ..jobs.store.stored import owner_key, read_fields
from ..jobs.store.waiting import WaitingReasons

STEP = 500
"""The most records fetched in one round trip."""
MAX_SCANNED = 5_000
"""The most jobs that are read for one page: at 30 µs each a seventh of a second. When few of them
fit the filter, a page has fewer jobs than requested, and a cursor for the rest."""


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a page has; the defaults: all."""

    tenant: str | None = None
    owner: str | None = None
    """The owner of the jobs; only with a tenant."""
    states: Collection[JobState] | None = None
    labels: Mapping[str, str] | None = None
    agent: str | None = None
    root_id: str | None = None
    roots_only: bool = False
    """Only jobs without a parent."""
    text: str = ""
    """A part of the id, the agent, the description or a label; the case of letters is ignored."""

    def fits(self, job: JobSketch) -> bool:
        """Return whether a page has this job."""
        exact = (
            (self.tenant, job.tenant),
            (self.owner, job.owner),
            (self.agent, job.agent),
            (self.root_id, job.root_id),
        )
        return (
            all(wanted is None or wanted == found for wanted, found in exact)
            and (self.states is None or job.state in self.states)
            and not (self.roots_only and job.parent_id)
            and (not (self.labels or self.text) or self._describes(job))
        )

    def _describes(self, job: JobSketch) -> bool:
        spec = read_fields(job.spec)
        labels: dict[str, str] = spec.get("labels") or {}
        if not (self.labels or {}).items() <= labels.items():
            return False
        named = (f"{name}={value}" for name, value in labels.items())
        texts = (job.id, job.agent, str(spec.get("description", "")), *named)
        return not self.text or any(self.text.casefold() in text.casefold() for text in texts)

    @property
    def live_only(self) -> bool:
        """Whether no ended job fits."""
        return self.states is not None and not any(state.is_terminal for state in self.states)


@dataclass(frozen=True)
class JobPage:
    """Some jobs, newest first."""

    records: list[JobRecord]
    next: int | None
    """The position after which the next page begins; None: there are no more jobs."""


class JobPages:
    """Reads pages of jobs.

    Args:
        records: The records.
        reasons: Adds the models for which jobs wait.
    """

    def __init__(self, records: Records, reasons: WaitingReasons) -> None:
        self._records = records
        self._reasons = reasons

    async def page(self, wanted: JobFilter, before: int | None, limit: int) -> JobPage:
        """Return the next jobs, newest first, with the models for which they wait.

        Args:
            wanted: Which jobs.
            before: The position of the last page's `next`; None: from the newest job on.
            limit: At most so many.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        ids, following = await self._page(wanted, before, limit)
        found = await self._reasons.with_models(await self._records.get_many(ids))
        return JobPage(found, following)

    async def count(self, wanted: JobFilter, most: int) -> int:
        """Return how many of the newest jobs fit, without reading their records.

        Args:
            wanted: Which jobs.
            most: The maximum; no more than `MAX_SCANNED` jobs are read.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        return len((await self._page(wanted, None, most))[0])

    async def _page(
        self, wanted: JobFilter, before: int | None, limit: int
    ) -> tuple[list[str], int | None]:
        """Return the ids of a page, and its `next`."""
        index = self._index(wanted)
        found: list[str] = []
        for _ in range(0, MAX_SCANNED, STEP):
            step = await self._records.newest(index, before, STEP, live_only=wanted.live_only)
            sketches = {one.id: one for one in await self._records.sketches(list(dict(step)))}
            for job_id, position in step:
                before = position
                if job_id in sketches and wanted.fits(sketches[job_id]):
                    found.append(job_id)
                if len(found) == limit:
                    return found, before
            if len(step) < STEP:
                return found, None
        return found, before

    @staticmethod
    def _index(wanted: JobFilter) -> str | None:
        if wanted.tenant is None or not wanted.owner:
            return None
        return owner_key(wanted.tenant, wanted.owner)
