"""Failures as errors of the protocol: a sentence for what a caller can correct, else a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotFoundError,
)

from fanout.orchestrator.jobs.failures import JobFailure, LedgerFull, LedgerUnavailable, UnknownJob
from fanout.orchestrator.server.access.callers import NotAllowed, NotAuthenticated
from fanout.orchestrator.server.owned_jobs import KeyReused

log = structlog.get_logger(__name__)

FAULT = "This is a fault of the service; its log has the request's id."
UNAVAILABLE = "The service cannot reach its store at the moment: try again in a few seconds."


def protocol_error(failure: Exception) -> A2AError:
    """Return a failure as an error of the protocol; of one that we do not expect, only its kind.

    A task of another owner is answered like one that never existed.
    """
    match failure:
        case A2AError():
            return failure
        case UnknownJob():
            return TaskNotFoundError()
        case LedgerFull():
            return InternalError(str(failure))
        case LedgerUnavailable():
            return InternalError(UNAVAILABLE)
        case JobFailure() | KeyReused():
            return InvalidParamsError(str(failure))
        case NotAllowed() | NotAuthenticated():
            return InvalidRequestError(str(failure))
    log.error("a2a request failed", kind=type(failure).__name__)
    return InternalError(FAULT)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Raise every failure of a context as an error of the protocol."""
    try:
        yield
    except Exception as failure:
        raise protocol_error(failure) from failure
