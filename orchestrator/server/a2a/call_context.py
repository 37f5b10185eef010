"""What a request brings into the protocol's handler: its caller, and how it was reached."""

from __future__ import annotations

from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.constants import VERSION_HEADER
from starlette.requests import Request

from fanout.orchestrator.server.access.callers import Caller
from fanout.orchestrator.server.http.requests import caller_of

CALLER = "caller"
AGENT = "agent"
BASE_URL = "base_url"
REQUEST = "request"


class KnownCaller(User):
    """A caller, as the SDK wants to see one."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        """Always: the authentication let the request pass."""
        return True

    @property
    def user_name(self) -> str:
        """The name of the caller."""
        return self._caller.name


class CallerContexts(ServerCallContextBuilder):
    """Builds contexts of HTTP requests.

    Args:
        public_url: The origin of the service; None: that of each request.
    """

    def __init__(self, public_url: str | None) -> None:
        self._public_url = public_url

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request; of its headers only the protocol's own, no credentials.

        Raises:
            NotAuthenticated: The request has no caller.
        """
        caller = caller_of(request)
        version = request.headers.get(VERSION_HEADER)
        return ServerCallContext(
            user=KnownCaller(caller),
            requested_extensions=get_requested_extensions(
                request.headers.getlist(HTTP_EXTENSION_HEADER)
            ),
            state={
                "headers": {VERSION_HEADER: version} if version else {},
                CALLER: caller,
                AGENT: request.path_params.get("agent"),
                BASE_URL: origin(request, self._public_url),
                REQUEST: request,
            },
        )


def origin(request: Request, public_url: str | None) -> str:
    """Return the origin under which clients reach the service."""
    return (public_url or str(request.base_url)).rstrip("/")
