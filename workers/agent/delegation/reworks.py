"""Reworks: a task whose changes did not land goes back to its own agent.

That is a new job that continues the task's, on its parent's files as they are now, with what the
task changed merged in as far as it fits.
"""

from __future__ import annotations

from fanout.orchestrator.delegation.calls import job_id_of_call
from fanout.orchestrator.delegation.continuation import Continuations
from fanout.orchestrator.jobs.failures import BlobMissing, InvalidJob, LeaseLost, UnknownJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.workers.agent.delegation.child_specs import ChildSpecs
from fanout.workers.agent.delegation.snapshots import ChildSnapshots
from fanout.workers.agent.services import JobServices
from fanout.workers.heartbeat import HeldLease


class Reworks:
    """Sends tasks back, during one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The job whose tasks they are.
        specs: Makes the children.
        snapshots: Makes the snapshots that they start from.
        lease: The attempt's lease.
    """

    def __init__(
        self,
        services: JobServices,
        spec: JobSpec,
        specs: ChildSpecs,
        snapshots: ChildSnapshots,
        *,
        lease: HeldLease,
    ) -> None:
        self._services = services
        self._spec = spec
        self._specs = specs
        self._snapshots = snapshots
        self._lease = lease
        self._continuations = Continuations(
            services.ledger, services.journal, services.blobs, services.definitions
        )

    async def send_back(self, result: JobResult, message: str) -> str:
        """Submit the rework of a task, and return its id; the same one for every call.

        Args:
            result: The result of the task, or of its last rework.
            message: Tells its agent what is wrong.

        Raises:
            LimitReached: The job may have no more children, or nothing is left for them.
            InvalidJob: The task cannot be continued; the text says why.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
            SandboxFailure: The sandbox failed.
        """
        self._specs.check_room(1)
        try:
            earlier = await self._services.ledger.specification(result.job_id)
            rework = self._specs.rework(
                earlier,
                id=job_id_of_call(self._spec.id, f"rework/{result.job_id}"),
                description=message,
                continues=result.job_id,
                changes=result.changes,
                **(await self._snapshots.now()).update(),
            )
            completed = await self._continuations.completed(rework)
        except (UnknownJob, BlobMissing) as failure:
            raise InvalidJob(str(failure)) from failure
        self._lease.check()
        claim = self._lease.claim
        if not await self._services.ledger.start(
            claim.spec.id, claim.token, completed, self._services.bounds
        ):
            raise LeaseLost("Another attempt holds the job.")
        return completed.id
