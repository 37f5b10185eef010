"""The MCP server: its tools and resources, for any door; and its route in the service.

Every failure becomes one sentence for the caller, without a traceback and the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, InputRequiredResult
from pydantic import AnyUrl, ValidationError
from starlette.routing import BaseRoute

from ...configuration.agent_definitions import InvalidAgentDefinition
from ...jobs.changes import MalformedBundle, PatchFailed
from ...jobs.failures import JobFailure, UnknownJob
from ...server.access.callers import (
    AuthenticationUnavailable,
    NotAllowed,
    NotAuthenticated,
)
from ...server.http.requests import Service
from ...server.owned_jobs import KeyReused
from ...server.problems import Problem
from ...version import VERSION
from ...workspace.blobs import BlobStoreUnusable
from ...workspace.workspace import WorkspaceUnusable
from . import texts
from .change_tools import ChangeTools, Resources
from .doors import Door, ServiceDoor
from .job_tools import (
    ApprovalTools,
    ListTools,
    SubmitTools,
    WaitTools,
)

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
"""The exceptions in which the SDK wraps a failure."""
NAME = "fanout"
PATH = "/mcp"


def unwrap_failure(failure: BaseException) -> BaseException:
    """Return the failure that the SDK has wrapped."""
    while isinstance(failure, _WRAPPERS) and failure.__cause__ is not None:
        failure = failure.__cause__
    return failure


def sentence(failure: BaseException, what: str) -> str:
    """Return the sentence about a failure for a caller.

    Args:
        failure: The exception.
        what: The tool or the resource, for the log.
    """
    failure = unwrap_failure(failure)
    if isinstance(failure, ValidationError):
        return _invalid(failure)
    if isinstance(failure, (*_SENTENCES, *_WRAPPERS)) and str(failure):
        return str(failure)
    log.error("an MCP request failed", what=what, kind=type(failure).__name__)
    return f"{what} failed by a fault of the service ({type(failure).__name__}); its log has it."


def _invalid(failure: ValidationError) -> str:
    """Return the names of invalid arguments, without their values, which may be prompts."""
    errors = failure.errors(include_input=False, include_url=False, include_context=False)
    problems = [
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in errors[:5]
    ]
    return "; ".join(problems) + "."


class FanoutServer(MCPServer[Any]):
    """A server whose failures are one sentence each."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool.

        Raises:
            ToolError: It failed; the text is the sentence.
        """
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as failure:
            raise ToolError(sentence(failure, name)) from None

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """Read a resource.

        Raises:
            ResourceNotFoundError: There is no such job or resource.
            ResourceError: It could not be read; the text is the sentence.
        """
        try:
            return await super().read_resource(uri, context)
        except ResourceError as failure:
            root = unwrap_failure(failure)
            is_missing = isinstance(root, (UnknownJob, ResourceNotFoundError))
            kind = ResourceNotFoundError if is_missing else ResourceError
            raise kind(sentence(failure, "The resource")) from None


def create_server(door: Door) -> FanoutServer:
    """Return a server.

    Args:
        door: Finds the caller's jobs.
    """
    server = FanoutServer(
        NAME,
        title="fanout",
        instructions=texts.INSTRUCTIONS + (texts.FOLDERS if door.is_local else texts.SNAPSHOTS),
        version=VERSION,
        subscriptions=False,
    )
    for part in (SubmitTools, WaitTools, ListTools, ChangeTools, ApprovalTools, Resources):
        part(door).add_to(server)
    return server


def mcp_app(service: Service) -> tuple[list[BaseRoute], AbstractAsyncContextManager[None]]:
    """Return the server's routes, and a context that has to be open while they serve.

    Every request is independent, so that each of several servers can answer it.

    Args:
        service: What all requests share.
    """
    server = create_server(ServiceDoor(service))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        # The guards of the service check hosts and origins, for all of its interfaces.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return app.routes, server.session_manager.run()
