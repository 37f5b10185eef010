"""What an attempt's agent is to its job: it runs, and answers, or waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Protocol

from pydantic import JsonValue

from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.failures import JobFailure, LimitReached
from fanout.orchestrator.jobs.result import Usage, Verification
from fanout.orchestrator.jobs.store.ledger import ModelWait

from .delegation.children import AwaitedTasks
from .verification import verification_failure


@dataclass(frozen=True)
class AgentAnswer:
    """The answer of an agent's run, or what the run waits for."""

    summary: str = ""
    output: JsonValue = None
    limit: str | None = None
    """The message of the budget that ended the run."""
    failure: JobFailure | None = None
    """Why the agent says that it did not do its task."""
    verified: Verification | None = None
    """The verification of the answer, if the job has one."""
    merged: Verification | None = None
    """The job's `verify_merges` on its files at the end, if it has one. Its failure is reported,
    and the job succeeds: its agent has done what it could, and its changes are wanted."""
    approvals: tuple[Approval, ...] = ()
    """The approvals for which the run waits."""
    tasks: AwaitedTasks | None = None
    """The tasks for which the run waits; None when no call is deferred."""
    model: ModelWait | None = None
    """The model for which the run waits."""

    @property
    def is_final(self) -> bool:
        """Whether it is the agent's own answer, and not the end of a budget."""
        waits = bool(self.approvals) or self.tasks is not None or self.model is not None
        return not waits and self.limit is None and self.failure is None

    @property
    def verification(self) -> Verification | None:
        """What a result says of the job's files: the verification that fails, if one does."""
        runs = [run for run in (self.verified, self.merged) if run is not None]
        failed = [run for run in runs if run.exit_code != 0]
        return next(iter((*failed, *runs)), None)


def answer_failure(answer: AgentAnswer) -> JobFailure | None:
    """Return the failure of a run that was given up, or whose answer was rejected; else None."""
    if answer.limit:
        return LimitReached(answer.limit)
    if answer.failure is not None:
        return answer.failure
    return None if answer.verified is None else verification_failure(answer.verified)


class JobWorker(Protocol):
    """The agent of one attempt."""

    @property
    def usage(self) -> Usage:
        """What the agent has used so far, earlier attempts included; after a failure too."""

    async def run(self) -> AgentAnswer:
        """Run the agent until it answers or waits, and return which of them.

        Raises:
            JobFailure: The run ended without an answer.
        """

    async def keep(self, bundle: IO[bytes], tasks: AwaitedTasks | None) -> AwaitedTasks | None:
        """Store the job's files before it waits; return the tasks for which it waits.

        Args:
            bundle: The job's change bundle.
            tasks: The tasks of its answer.

        Raises:
            LeaseLost: The attempt's lease is lost.
            JobFailure: Something cannot be stored.
        """

    async def abandon(self) -> None:
        """Stop what works elsewhere for a job that ends now; it takes a second at most."""
