"""Errors as RFC 9457 problems: one sentence that says what to do, and the request's id."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from ..jobs.changes import MalformedBundle, PatchFailed
from ..jobs.failures import (
    AnsweredAlready,
    ApprovalRefused,
    BlobMissing,
    ChoiceRefused,
    InvalidJob,
    JobFailure,
    LedgerFull,
    LedgerUnavailable,
    LimitExceeded,
    NotUnderstood,
    ShareUsedUp,
    UnknownApproval,
    UnknownJob,
)
from ..workspace.blobs import BlobStoreUnusable
from ..workspace.exchange.cloned import CloneRefused
from ..workspace.exchange.received import ArchiveRefused
from ..workspace.workspace import WorkspaceUnusable
from .access.callers import (
    AuthenticationUnavailable,
    NotAllowed,
    NotAuthenticated,
)
from .owned_jobs import CallerBusy, KeyReused
from .uploads import ServiceFull, UploadTooSlow

log = structlog.get_logger(__name__)

PROBLEM = "application/problem+json"

STATUS: Mapping[type[Exception], int] = {
    ClientDisconnect: 400,
    ArchiveRefused: 422,
    CloneRefused: 422,
    WorkspaceUnusable: 422,
    ServiceFull: 507,
    CallerBusy: 429,
    UploadTooSlow: 408,
    BlobStoreUnusable: 503,
    UnknownJob: 404,
    UnknownApproval: 404,
    BlobMissing: 410,
    MalformedBundle: 422,
    PatchFailed: 503,
    AnsweredAlready: 409,
    ApprovalRefused: 422,
    LimitExceeded: 422,
    ShareUsedUp: 429,
    ChoiceRefused: 403,
    InvalidJob: 422,
    NotUnderstood: 501,
    KeyReused: 409,
    LedgerUnavailable: 503,
    NotAuthenticated: 401,
    NotAllowed: 403,
    AuthenticationUnavailable: 503,
}
"""The status in HTTP of each failure; an unlisted class has the status of its base."""

RETRY_SECONDS = 2
"""The time until the next try: Redis is available within seconds after a restart, and other work
has ended."""
FULL_RETRY_SECONDS = 60
"""The time until the next try while Redis, or a share of it, is full: jobs end and are deleted
within minutes."""


class Problem(Exception):
    """A request that cannot be served; it becomes the response.

    Args:
        status: The status of the response.
        detail: One sentence that says what to do.
        name: The failure's name; by default that of the status.
        headers: Further headers.
        fields: Further members of the problem.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        name: str = "",
        headers: Mapping[str, str] | None = None,
        **fields: object,
    ) -> None:
        super().__init__(detail)
        self.name = name
        self.status = status
        self.headers = headers or {}
        self.fields = fields


def failure_status(failure: Exception) -> int:
    """Return the status of a failure."""
    if isinstance(failure, Problem):
        return failure.status
    return next((STATUS[kind] for kind in type(failure).__mro__ if kind in STATUS), 500)


def problem_response(
    request: Request, status: int, detail: str, *, name: str = "", **fields: object
) -> JSONResponse:
    """Return a problem.

    Args:
        request: The request.
        status: The status.
        detail: What is wrong and what to do, in one sentence.
        name: The failure's name; by default that of the status.
        fields: Further members.
    """
    title = HTTPStatus(status).phrase
    body = {
        "type": f"urn:fanout:problem:{name}" if name else "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "request_id": request.scope.get("state", {}).get("request_id", ""),
        **fields,
    }
    response = JSONResponse(body, status, media_type=PROBLEM)
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status in {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


def add_problems(app: FastAPI) -> None:
    """Turn every failure of a route into a problem."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)
    for kind in (*STATUS, JobFailure, Problem):
        app.add_exception_handler(kind, _failure)


async def _failure(request: Request, failure: Exception) -> JSONResponse:
    status = failure_status(failure)
    if isinstance(failure, (LedgerFull, ShareUsedUp)):
        wait = {"Retry-After": str(FULL_RETRY_SECONDS)}
        failure = Problem(status, str(failure), name=type(failure).__name__, headers=wait)
    fields = failure.fields if isinstance(failure, Problem) else {}
    name = failure.name if isinstance(failure, Problem) else type(failure).__name__
    response = problem_response(request, status, str(failure), name=name, **fields)
    if isinstance(failure, Problem):
        response.headers.update(failure.headers)
    return response


async def _http(request: Request, failure: Exception) -> JSONResponse:
    if not isinstance(failure, HTTPException):
        raise TypeError(failure)
    response = problem_response(request, failure.status_code, failure.detail)
    response.headers.update(failure.headers or {})
    return response


async def _invalid(request: Request, failure: Exception) -> JSONResponse:
    if not isinstance(failure, RequestValidationError):
        raise TypeError(failure)
    return await _failure(request, invalid(failure))


def invalid(failure: RequestValidationError | ValidationError) -> Problem:
    """Return the errors of a request, without the values, which may be prompts or keys."""
    errors = [
        {
            "at": ".".join(map(str, filter(_is_shown, one["loc"]))),
            "problem": one["msg"].removeprefix("Value error, "),
        }
        for one in failure.errors()
    ]
    detail = f"{errors[0]['at']}: {errors[0]['problem']}." if errors else "The request is invalid."
    return Problem(422, detail, name="InvalidRequest", errors=errors)


def _is_shown(step: object) -> bool:
    """Return whether a step of an error's place is part of the body, and not the name of a type."""
    return not isinstance(step, str) or step.replace("-", "_").isidentifier()


async def _unexpected(request: Request, failure: Exception) -> JSONResponse:
    """Report a fault of the service only by the request's id: its text may hold secrets."""
    log.error("request failed", kind=type(failure).__name__, path=request.scope.get("path"))
    return problem_response(
        request, 500, "This is a fault of the service; its log has the request's id."
    )
