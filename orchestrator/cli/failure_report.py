"""Maps every failure to one sentence on stderr and one exit code.

It knows the failures of all parts, so it is imported when there is a failure to report.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable

from ..configuration.agent_definitions import InvalidAgentDefinition
from ..configuration.settings import InvalidSetting
from ..embedded.sandbox_check import NoSandbox, OtherSandbox, SandboxNotAllowed
from ..jobs.changes import MalformedBundle, PatchFailed
from ..jobs.failures import (
    AnsweredAlready,
    DeadlineExceeded,
    DecisionNotAllowed,
    InvalidJob,
    JobFailure,
    LedgerForbidden,
    LedgerUnavailable,
)
from ..jobs.result import JobResult
from ..jobs.state import JobState
from ..landing.branch import BranchUnusable, LandedElsewhere
from ..workspace.blobs import BlobStoreUnusable
from ..workspace.workspace import WorkspaceUnusable
from .terminal.exit_codes import (
    ExitCode,
    KeyRefused,
    ServiceUnreachable,
    UsageProblem,
    WorkFailed,
    debugging,
)
from .terminal.formatting import with_short_ids
from .terminal.output import notice

_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (UsageProblem, ExitCode.USAGE),
    (ServiceUnreachable, ExitCode.UNREACHABLE),
    (KeyRefused, ExitCode.NOT_ALLOWED),
    (InvalidSetting, ExitCode.USAGE),
    (InvalidAgentDefinition, ExitCode.USAGE),
    (DecisionNotAllowed, ExitCode.NOT_ALLOWED),
    (AnsweredAlready, ExitCode.WORK_FAILED),
    (InvalidJob, ExitCode.USAGE),
    (LedgerForbidden, ExitCode.NOT_ALLOWED),
    (OtherSandbox, ExitCode.USAGE),
    (SandboxNotAllowed, ExitCode.NOT_ALLOWED),
    (NoSandbox, ExitCode.UNREACHABLE),
    (LedgerUnavailable, ExitCode.UNREACHABLE),
    (WorkspaceUnusable, ExitCode.USAGE),
    (LandedElsewhere, ExitCode.WORK_FAILED),
    (BranchUnusable, ExitCode.USAGE),
    (BlobStoreUnusable, ExitCode.UNREACHABLE),
    (ConnectionError, ExitCode.UNREACHABLE),
    (PermissionError, ExitCode.NOT_ALLOWED),
    (DeadlineExceeded, ExitCode.TIMED_OUT),
    (TimeoutError, ExitCode.TIMED_OUT),
)
_CODES_BY_NAME = {
    "EngineUnavailable": ExitCode.UNREACHABLE,
    "ModelNotConfigured": ExitCode.USAGE,
    "PublicWithoutKeys": ExitCode.NOT_ALLOWED,
    "AddressUnusable": ExitCode.USAGE,
}
"""Failures of packages that are not imported here: `workers` must not be, and agents and the
service take seconds."""
_READABLE = (
    JobFailure,
    UsageProblem,
    ServiceUnreachable,
    KeyRefused,
    WorkFailed,
    InvalidSetting,
    InvalidAgentDefinition,
    MalformedBundle,
    PatchFailed,
)
"""Failures whose message is a sentence for people, printed without the class name."""


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of a command that raised this error."""
    named = _CODES_BY_NAME.get(type(error).__name__)
    if named is not None:
        return named
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.WORK_FAILED)


def report(error: Exception) -> ExitCode:
    """Print a failure on stderr, with its traceback when debugging, and return the exit code."""
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    notice(with_short_ids(_format_error(error)))
    return exit_code(error)


def exit_code_of_results(results: Iterable[JobResult]) -> ExitCode:
    """Return 0 if all jobs succeeded, 5 if the others all timed out, else 1."""
    failures = {result.state for result in results if not result.success}
    if not failures:
        return ExitCode.DONE
    return ExitCode.TIMED_OUT if failures == {JobState.TIMED_OUT} else ExitCode.WORK_FAILED


def _format_error(error: Exception) -> str:
    text = str(error).strip()
    if (isinstance(error, _READABLE) or type(error).__name__ in _CODES_BY_NAME) and text:
        return text
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}."
    if isinstance(error, TimeoutError):
        return text or "Timed out."
    what = text or type(error).__name__
    return f"Unexpected failure: {what} (FANOUT_LOG_LEVEL=debug prints the traceback.)"
