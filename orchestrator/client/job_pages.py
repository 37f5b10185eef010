"""Pages of jobs, newest first: a list of any length is read in bounded steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.records import Records
from fanout.orchestrator.jobs.store.stored import owner_key

STEP = 500
"""Records fetched in one round trip."""
MAX_SCANNED = 5_000
"""Records that are read for one page: at 20 µs each a tenth of a second. When few of many jobs fit
the filter, a page has fewer jobs than asked for, and a cursor for the rest."""


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a page has; the defaults: all."""

    tenant: str | None = None
    owner: str | None = None
    """Only with a tenant."""
    states: Collection[JobState] | None = None
    labels: Mapping[str, str] | None = None
    agent: str | None = None
    root_id: str | None = None
    roots_only: bool = False
    """Only jobs without a parent."""
    text: str = ""
    """A part of the id, the agent, the description or a label; upper and lower case are equal."""

    def fits(self, record: JobRecord) -> bool:
        """Return whether a page has this job."""
        exact = (
            (self.tenant, record.tenant),
            (self.owner, record.owner),
            (self.agent, record.agent),
            (self.root_id, record.root_id),
        )
        return (
            all(wanted is None or wanted == found for wanted, found in exact)
            and (self.states is None or record.state in self.states)
            and (self.labels or {}).items() <= record.labels.items()
            and not (self.roots_only and record.parent_id)
            and self._has_text(record)
        )

    def _has_text(self, record: JobRecord) -> bool:
        labels = (f"{name}={value}" for name, value in record.labels.items())
        texts = (record.id, record.agent, record.description, *labels)
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
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def page(self, wanted: JobFilter, before: int | None, limit: int) -> JobPage:
        """Return the next jobs, newest first.

        Args:
            wanted: Which jobs.
            before: The position of the last page's `next`; None: from the newest job on.
            limit: At most so many.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        index = self._index(wanted)
        found: list[JobRecord] = []
        scanned = 0
        while scanned < MAX_SCANNED:
            step = await self._records.newest(index, before, STEP, live_only=wanted.live_only)
            records = {one.id: one for one in await self._records.get_many(dict(step))}
            for job_id, position in step:
                before = position
                scanned += 1
                if job_id in records and wanted.fits(records[job_id]):
                    found.append(records[job_id])
                if len(found) == limit:
                    return JobPage(found, before)
            if len(step) < STEP:
                return JobPage(found, None)
        return JobPage(found, before)

    @staticmethod
    def _index(wanted: JobFilter) -> str | None:
        if wanted.tenant is None or not wanted.owner:
            return None
        return owner_key(wanted.tenant, wanted.owner)
