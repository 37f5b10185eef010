"""Failures as one sentence for the caller; never a traceback, and nothing of the arguments."""

from __future__ import annotations

import structlog
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from pydantic import ValidationError

from fanout.orchestrator.configuration.agent_definitions import InvalidAgentDefinition
from fanout.orchestrator.jobs.changes import MalformedBundle, PatchFailed
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.server.access.callers import (
    AuthenticationUnavailable,
    NotAllowed,
    NotAuthenticated,
)
from fanout.orchestrator.server.owned_jobs import KeyReused
from fanout.orchestrator.server.problems import Problem
from fanout.orchestrator.workspace.blobs import BlobStoreUnusable
from fanout.orchestrator.workspace.workspace import WorkspaceUnusable

log = structlog.get_logger(__name__)

_SENTENCES = (
    JobFailure,
    NotAllowed,
    NotAuthenticated,
    AuthenticationUnavailable,
    KeyReused,
    Problem,
    WorkspaceUnusable,
    BlobStoreUnusable,
    MalformedBundle,
    PatchFailed,
    InvalidAgentDefinition,
)
"""Failures whose text is one sentence for the caller."""
_WRAPPERS = (ToolError, ResourceError)
"""What the SDK wraps a failure in."""


def root_of(failure: BaseException) -> BaseException:
    """Return the failure that the SDK has wrapped."""
    while isinstance(failure, _WRAPPERS) and failure.__cause__ is not None:
        failure = failure.__cause__
    return failure


def sentence(failure: BaseException, what: str) -> str:
    """Return what a caller is told about a failure.

    Args:
        failure: What was raised.
        what: The tool or the resource, for the log.
    """
    failure = root_of(failure)
    if isinstance(failure, ValidationError):
        return _invalid(failure)
    if isinstance(failure, (*_SENTENCES, *_WRAPPERS)) and str(failure):
        return str(failure)
    log.error("an MCP request failed", what=what, kind=type(failure).__name__)
    return f"{what} failed by a fault of the service ({type(failure).__name__}); its log has it."


def _invalid(failure: ValidationError) -> str:
    """Return which arguments are wrong, without their values: they may be prompts."""
    errors = failure.errors(include_input=False, include_url=False, include_context=False)
    told = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in errors[:5]]
    return "; ".join(told) + "."
