"""How a command ends: every failure becomes one sentence on stderr and one exit code, here and nowhere else.

0 done · 1 the work failed · 2 usage · 3 a service is unreachable · 4 not allowed · 5 timed out ·
130 interrupted: what waits elsewhere goes on
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from enum import IntEnum

from orchestrator.cli.terminal.output import notice
from orchestrator.configuration.agent_definitions import InvalidAgentDefinition
from orchestrator.configuration.settings import InvalidSetting
from orchestrator.jobs.changes import MalformedBundle
from orchestrator.jobs.failures import (
    AnsweredAlready,
    DeadlineExceeded,
    DecisionNotAllowed,
    InvalidJob,
    JobFailure,
    LedgerUnavailable,
)
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.state import JobState
from orchestrator.workspace.blobs import BlobStoreUnusable
from orchestrator.workspace.workspace import WorkspaceUnusable


class ExitCode(IntEnum):
    """What the shell is told."""

    DONE = 0
    WORK_FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_ALLOWED = 4
    TIMED_OUT = 5
    INTERRUPTED = 130


class UsageProblem(Exception):
    """The command cannot be carried out as it was typed."""


class WorkFailed(Exception):
    """The command was understood and what it does failed."""


_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (UsageProblem, ExitCode.USAGE),
    (InvalidSetting, ExitCode.USAGE),
    (InvalidAgentDefinition, ExitCode.USAGE),
    (DecisionNotAllowed, ExitCode.NOT_ALLOWED),
    (AnsweredAlready, ExitCode.WORK_FAILED),
    (InvalidJob, ExitCode.USAGE),
    (LedgerUnavailable, ExitCode.UNREACHABLE),
    (WorkspaceUnusable, ExitCode.USAGE),
    (BlobStoreUnusable, ExitCode.UNREACHABLE),
    (ConnectionError, ExitCode.UNREACHABLE),
    (PermissionError, ExitCode.NOT_ALLOWED),
    (DeadlineExceeded, ExitCode.TIMED_OUT),
    (TimeoutError, ExitCode.TIMED_OUT),
)
_CODES_BY_NAME = {"EngineUnavailable": ExitCode.UNREACHABLE, "ModelNotConfigured": ExitCode.USAGE}
"""Failures of packages that this one does not import: workers may not be, agents take seconds."""
_IN_WORDS = (
    JobFailure,
    UsageProblem,
    WorkFailed,
    InvalidSetting,
    InvalidAgentDefinition,
    MalformedBundle,
)


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of a command that ended with this error."""
    named = _CODES_BY_NAME.get(type(error).__name__)
    if named is not None:
        return named
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.WORK_FAILED)


def debugging() -> bool:
    """Whether tracebacks and the libraries' own words are wanted.

    Asked for before settings can be read.
    """
    return os.environ.get("FANOUT_LOG_LEVEL", "").lower() == "debug"


def report(error: Exception) -> ExitCode:
    """Say on stderr what went wrong, in one sentence unless debugging, and return the exit code."""
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    notice(_sentence(error))
    return exit_code(error)


def exit_code_of_results(results: Iterable[JobResult]) -> ExitCode:
    """1 when a job failed or was cancelled, 5 when the only trouble is that one ran out of time, else 0."""
    troubles = {result.state for result in results if not result.success}
    if not troubles:
        return ExitCode.DONE
    return ExitCode.TIMED_OUT if troubles == {JobState.TIMED_OUT} else ExitCode.WORK_FAILED


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    if (isinstance(error, _IN_WORDS) or type(error).__name__ in _CODES_BY_NAME) and text:
        return text
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}."
    if isinstance(error, TimeoutError):
        return text or "Not done in time."
    return f"{type(error).__name__}: {text} (FANOUT_LOG_LEVEL=debug shows where.)"
