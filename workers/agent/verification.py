"""The verification of an agent's answers: a command that has to succeed in its sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google.genai import types

from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import ANSWER_REJECTED
from fanout.orchestrator.jobs.failures import VerificationFailed
from fanout.orchestrator.jobs.result import MAX_TAIL_CHARACTERS, KnownOutput, Verification
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.tracing.spans import span

from ..heartbeat import elapsed_clock
from ..sandbox import Command, Sandbox
from .history import History
from .session_journal import AttemptJournal

DEFAULT_MAX_REWORKS = 2
"""A third failure with the output in sight means that the agent does not see how."""
SHORTEST_SECONDS = 1.0
"""The least time for a command that begins when the job's time is nearly over: its deadline ends
it."""


def max_reworks(spec: JobSpec, definition: AgentDefinition) -> int:
    """Return how often an agent may rework what a job's verifications reject."""
    if spec.max_reworks is not None:
        return spec.max_reworks
    return DEFAULT_MAX_REWORKS if definition.max_reworks is None else definition.max_reworks


class Verifier:
    """Verifies the answers of one job.

    Args:
        command: The job's `verify` command; None accepts every answer.
        max_reworks: How often the agent may rework a rejected answer.
        sandbox: Where the command runs, on the files as the agent left them.
        journal: The attempt's journal, to which every run is appended.
        ends_at: When the job's time is over, on `elapsed_clock`.
    """

    def __init__(
        self,
        command: str | None,
        max_reworks: int,
        *,
        sandbox: Sandbox,
        journal: AttemptJournal,
        ends_at: float,
    ) -> None:
        self._command = command
        self._max_reworks = max_reworks
        self._sandbox = sandbox
        self._journal = journal
        self._ends_at = ends_at
        self.env: Mapping[str, str] = {}
        """Variables of the command."""

    @property
    def is_wanted(self) -> bool:
        """Whether answers are verified."""
        return self._command is not None

    async def verify(self, history: History) -> Verification:
        """Return the verification of the last answer; one that the journal has is not repeated.

        Args:
            history: The conversation up to the answer; the verification is added to it.

        Raises:
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
        """
        if history.is_verified:
            return history.verifications[-1]
        assert self._command is not None  # noqa: S101 - see `is_wanted`
        self._journal.activity.begin("verification")
        verification = await run_verification(
            self._sandbox, self._command, ends_at=self._ends_at, env=self.env
        )
        line = f"verification: exit code {verification.exit_code}"
        self._journal.activity.end("verification")
        await self._journal.note(EventType.VERIFY, verification.model_dump(), line)
        history.add_verification(verification)
        return verification

    def wants_rework(self, history: History) -> bool:
        """Return whether the agent has to go on because its last answer was rejected."""
        if not history.is_verified or history.verifications[-1].exit_code == 0:
            return False
        failed = sum(one.exit_code != 0 for one in history.verifications)
        return failed <= self._max_reworks


async def run_verification(
    sandbox: Sandbox, command: str, *, ends_at: float, env: Mapping[str, str] = MappingProxyType({})
) -> Verification:
    """Run a command that verifies a job's files, and return what came of it.

    Args:
        sandbox: The job's sandbox.
        command: For a shell: bash, or sh where there is no bash.
        ends_at: When the job's time is over, on `elapsed_clock`.
        env: Variables of the command.

    Raises:
        SandboxFailure: The sandbox failed.
    """
    seconds = max(ends_at - elapsed_clock(), SHORTEST_SECONDS)
    with span("verify") as verifying:
        ended = await sandbox.run(Command(argv=command, timeout_seconds=seconds, env=env))
        verifying.note(exit_code=ended.shell_code)
    is_cut = ended.total_bytes > len(ended.output)
    kept = ended.output[ended.head_bytes :] if is_cut else ended.output
    text = kept.decode(errors="replace")
    if ended.killed_by:
        text += f"\n[{ended.killed_by}]"
    return Verification(
        command=command,
        exit_code=ended.shell_code,
        output_tail=text[-MAX_TAIL_CHARACTERS:],
        seconds=round(ended.seconds, 3),
    ).with_output(KnownOutput(text, is_cut=is_cut))


def rejection(verification: Verification) -> types.Content:
    """Return the message that tells the agent why its answer was rejected."""
    text = ANSWER_REJECTED.format(**verification.model_dump())
    return types.Content(role="user", parts=[types.Part(text=text)])


def verification_failure(verification: Verification) -> VerificationFailed | None:
    """Return the failure of a job whose last answer was rejected; None if it was accepted."""
    if verification.exit_code == 0:
        return None
    return VerificationFailed(
        f"The answer did not pass the job's verification (exit code {verification.exit_code}), and "
        "no rework is left: the output and the changes are in the result."
    )
