"""Collects the results of children: their changes are merged into the agent's files, once."""

from __future__ import annotations

import asyncio

from pydantic import JsonValue

from orchestrator.delegation.answers import TaskResult, task_error, task_result
from orchestrator.jobs.changes import MalformedBundle, NewerBundle
from orchestrator.jobs.failures import (
    BlobMissing,
    InvalidJob,
    NotUnderstood,
    UnknownJob,
)
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.store.journal import EventType
from orchestrator.workspace.merge import MergeReport
from workers.agent.services import JobServices
from workers.agent.session_journal import AttemptJournal
from workers.sandbox import Sandbox, merge_into


class Collector:
    """Collects for one attempt.

    Args:
        services: What all jobs of this worker share.
        sandbox: The job's sandbox, into which changes are merged.
        journal: The attempt's journal, which says whose changes have been merged.
    """

    def __init__(self, services: JobServices, sandbox: Sandbox, journal: AttemptJournal) -> None:
        self._services = services
        self._sandbox = sandbox
        self._journal = journal
        self._lock = asyncio.Lock()
        self.merged: set[str] = set()
        """The children whose changes have been merged into the files that the sandbox has."""

    async def collect(self, job_id: str) -> TaskResult:
        """Return the result of a child that has ended, its changes merged if it succeeded.

        Changes that were merged before are not merged again: the agent may have gone on from them.

        Raises:
            NotUnderstood: A newer release wrote the child's changes.
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        try:
            result = await self._services.ledger.result(job_id)
            if result is None:
                return task_error(InvalidJob("The task has not ended."), job_id)
            async with self._lock:
                merged = await self._merge(result)
        except (UnknownJob, BlobMissing) as failure:
            return task_error(failure, job_id)
        except NewerBundle as newer:
            raise NotUnderstood(str(newer)) from newer
        except MalformedBundle:
            return task_error(InvalidJob("What the task changed cannot be read."), job_id)
        return task_result(result, merged)

    async def _merge(self, result: JobResult) -> MergeReport | None:
        if not (result.success and result.changes) or result.job_id in self.merged:
            return None
        bundle = await self._services.blobs.fetch(result.changes)
        report = await merge_into(self._sandbox, bundle)
        conflicts: list[JsonValue] = [
            {"path": one.path, "reason": one.reason} for one in report.conflicts
        ]
        await self._journal.note(
            EventType.CHILD_MERGED,
            {"id": result.job_id, "applied": len(report.applied), "conflicts": conflicts},
        )
        self.merged.add(result.job_id)
        return report
