"""A tree of jobs that is read in pages, and later without its unchanging jobs."""

from __future__ import annotations

from collections.abc import Callable

from ..jobs.failures import UnknownJob
from ..jobs.state import JobRecord
from ..jobs.store.records import Records
from ..jobs.store.waiting import WaitingReasons

RECORDS_AT_ONCE = 500
"""The most records fetched in one round trip."""


class GrowingTree:
    """The jobs of a tree, oldest first, parents before children.

    Args:
        records: The records.
        reasons: Called for each reading; returns the object that adds to queued jobs why they wait.
        job_id: Any job of the tree, or the tree's root id.
    """

    def __init__(
        self, records: Records, reasons: Callable[[], WaitingReasons], job_id: str
    ) -> None:
        self._records = records
        self._reasons = reasons
        self._job_id = job_id
        self._root_id: str | None = None
        self._known: dict[str, JobRecord | None] = {}
        """The jobs in their order; None: deleted before they were read."""
        self._newest = 0
        """The position of the newest known job."""

    async def read(self, limit: int | None = None) -> list[JobRecord]:
        """Return the jobs: new ones and those that had not ended are read now.

        Args:
            limit: The oldest jobs, at most so many; None: all.

        Raises:
            UnknownJob: Neither a job nor a tree has the id.
            LedgerUnavailable: Redis does not respond.
        """
        reasons = self._reasons()
        root_id = self._root_id = self._root_id or await self._records.root(self._job_id)
        read = (record for record in self._known.values() if record is not None)
        live = [record.id for record in read if not record.state.is_terminal]
        for begin in range(0, len(live), RECORDS_AT_ONCE):
            await self._update(live[begin : begin + RECORDS_AT_ONCE], reasons)
        while limit is None or len(self._known) < limit:
            count = RECORDS_AT_ONCE
            if limit is not None:
                count = min(count, limit - len(self._known))
            page = await self._records.list_tree(root_id, self._newest, count)
            if not page:
                break
            self._newest = page[-1][1]
            await self._update([job_id for job_id, _ in page], reasons)
        if not self._known:
            raise UnknownJob(f"There is no job {self._job_id}.")
        return [record for record in self._known.values() if record is not None]

    async def _update(self, ids: list[str], reasons: WaitingReasons) -> None:
        """Read jobs again; those that were deleted stay unchanged."""
        records = await reasons.explain(await self._records.get_many(ids))
        self._known |= {job_id: self._known.get(job_id) for job_id in ids}
        self._known |= {record.id: record for record in records}
