"""The description of the HTTP interface, as OpenAPI: routes, credentials and problems.

`make openapi` freezes it in `docs/openapi.json`, so that a change of the interface is a change that
a reviewer sees; a test finds a forgotten one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from ..access.sessions import COOKIE
from ..problems import PROBLEM
from .models import RunRequest

TAGS = {
    "runs": "A goal and a workspace in, a patch or an archive out.",
    "jobs": "One run of one agent on one task: submit, list, wait, cancel, retry, message.",
    "events": "What happens to jobs, as server-sent events that are resumed, and as pages.",
    "approvals": "Calls that wait for a person's decision.",
    "agents": "The agents that jobs may name.",
    "webhooks": "Who is notified of what happens to a job.",
    "service": "For those who run the service.",
}
SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key, or a token of the issuer."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Of the page; with it, what changes something needs X-CSRF-Token too.",
    },
}
PROBLEMS = {
    "400": "The request is damaged.",
    "401": "No credentials, or invalid ones.",
    "403": "The credentials do not permit this.",
    "404": "Something that is named does not exist, or belongs to another owner.",
    "409": "The state does not allow this.",
    "410": "Its files have expired.",
    "413": "The body is too large.",
    "415": "The body is of a kind that is not read here.",
    "422": "The request is invalid: `errors` says where.",
    "429": "Too many requests: wait as long as `Retry-After` says.",
    "503": "Redis does not respond: try again as `Retry-After` says.",
}
PUBLIC = frozenset({"/healthz", "/readyz", "/version"})
_OF_BODIES = frozenset({"413", "415"})


class ProblemDocument(BaseModel):
    """An error, as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str = Field(examples=["urn:fanout:problem:UnknownJob", "about:blank"])
    """Stays the same for the same kind of problem."""
    title: str
    status: int
    detail: str
    """What is wrong and what to do, in one sentence."""
    request_id: str
    """Also in the header `X-Request-ID` and in the log of the service."""
    errors: list[dict[str, str]] | None = None
    """For an invalid request: `at`, a place in it, and the `problem`."""


def describe(app: FastAPI) -> None:
    """Let an application describe itself with credentials and problems."""
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(description(app))
        return made

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI documents it


def description(app: FastAPI) -> dict[str, Any]:
    """Return the description of an application."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        contact={"name": "fanout"},
        servers=[{"url": "/", "description": "The service that this description comes from."}],
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, schema in _further_schemas():
        schemas.setdefault(name, schema)
    components["securitySchemes"] = SECURITY
    components["responses"] = {
        f"Problem{status}": _problem(text) for status, text in PROBLEMS.items()
    }
    document["security"] = [{name: []} for name in SECURITY]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return document


def operation_name(route: APIRoute) -> str:
    """Return the name of an operation, by which generated clients call it: `jobs_submit`."""
    return "_".join((*map(str, route.tags[:1]), route.name))


def _further_schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas that FastAPI does not find: problems, and a body with two kinds."""
    for model in (ProblemDocument, RunRequest):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        yield from schema.pop("$defs", {}).items()
        yield model.__name__, schema


def _problem(text: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
    return {"description": text, "content": {PROBLEM: {"schema": schema}}}


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add to an operation the problems that it may end with."""
    statuses = set(PROBLEMS) - (set() if "requestBody" in operation else _OF_BODIES)
    if path in PUBLIC:
        operation["security"] = []
        statuses = {"400", "503"}
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own form
    for status in sorted(statuses):
        responses[status] = {"$ref": f"#/components/responses/Problem{status}"}
