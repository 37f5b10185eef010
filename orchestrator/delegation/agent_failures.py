"""The mapping of a deep agent's failures to those of a job; neither kernel imports the other."""

from __future__ import annotations

from orchestrator.deep_agent.failures import McpServerFailed, ModelFailed
from orchestrator.jobs.failures import (
    AgentFailed,
    InvalidJob,
    JobFailure,
    McpServerUnavailable,
    ModelUnavailable,
)


def job_failure(error: ModelFailed | McpServerFailed) -> JobFailure:
    """Return the failure of a job whose agent's run raised `error`."""
    if isinstance(error, McpServerFailed):
        return (McpServerUnavailable if error.retryable else InvalidJob)(str(error))
    return (ModelUnavailable if error.retryable else AgentFailed)(str(error))
