"""The middleware that authenticates: no request passes it without a caller.

It is plain ASGI, because Starlette's BaseHTTPMiddleware would delay streams. Long responses end
when their caller's key is revoked or the session is over.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...configuration.api_settings import ApiSettings
from ...jobs.failures import LedgerUnavailable
from .audit import RequestFacts, request_facts
from .authenticator import Authenticator, presented
from .callers import (
    AuthenticationUnavailable,
    Caller,
    NotAllowed,
    NotAuthenticated,
)
from .limits import TooManyAttempts
from .refusals import refuse
from .sessions import (
    CSRF_HEADER,
    LOGIN_PATH,
    Sessions,
    csrf_token,
)

CHECK_SECONDS = 1.0
"""The time between two checks of a key, for all of its streams together: a revocation takes effect
within it."""
MAX_REMEMBERED = 10_000
"""The most remembered keys and sessions; with more, all are checked again."""
PUBLIC_PATHS = frozenset({
    "/", "/healthz", "/readyz", "/version", "/.well-known/agent-card.json", LOGIN_PATH,
})  # fmt: skip
"""The paths that need no caller: whether the service works, what it is, how to log in."""
PUBLIC_FOLDER = "/static/"
"""The folder of the page's files, which hold no data; `/` is its shell."""
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="fanout"'}
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
RETRY_SECONDS = "5"
"""The time after which a caller tries again when Redis or the issuer did not respond."""
OTHER_SITE = "This request comes from another site, which a browser session does not permit."


class Standing:
    """Knows whether admitted callers still have their rights.

    Args:
        authenticator: Knows which keys work.
        sessions: Knows which sessions last.
        clock: Returns seconds.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        sessions: Sessions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._clock = clock
        self._looked: dict[str, tuple[float, bool]] = {}

    async def holds(self, caller: Caller, session_id: str | None) -> bool:
        """Return whether a caller may continue; an outage of Redis revokes nobody.

        Args:
            caller: The caller.
            session_id: The browser session; None for a key or a token.
        """
        name = session_id or caller.key_id
        at, holds = self._looked.get(name, (float("-inf"), True))
        now = self._clock()
        if now - at < CHECK_SECONDS:
            return holds
        try:
            if session_id is None:
                holds = await self._authenticator.is_valid(caller.key_id)
            else:
                holds = await self._sessions.caller(session_id) is not None
        except LedgerUnavailable:
            return True
        if len(self._looked) >= MAX_REMEMBERED:
            self._looked.clear()
        self._looked[name] = (now, holds)
        return holds

    def ended(self, send: Send, caller: Caller, session_id: str | None) -> Send:
        """Return a `send` that ends a response in parts when the caller loses its rights.

        The server then reports to the application that the client has disconnected.
        """
        is_over = False

        async def checked(message: Message) -> None:
            nonlocal is_over
            if is_over:
                return
            is_part = message["type"] == "http.response.body" and message.get("more_body", False)
            if is_part and not await self.holds(caller, session_id):
                is_over = True
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        return checked


class AuthenticationMiddleware:
    """Puts the caller of each request into `scope["state"]["caller"]`, or refuses the request.

    Args:
        app: The application.
        authenticator: Finds callers by keys and tokens.
        sessions: Finds those of browsers.
        settings: The address of the service.
    """

    def __init__(
        self, app: ASGIApp, authenticator: Authenticator, sessions: Sessions, settings: ApiSettings
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._sessions = sessions
        self._standing = Standing(authenticator, sessions)
        self._public_url = settings.public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request with its caller."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        facts = RequestFacts(str(state.get("request_id", "")), client_address(scope))
        with request_facts(facts):
            if scope["type"] == "http" and not _is_public(scope["path"]):
                caller = await self._caller_or_refusal(scope, receive, send)
                if caller is None:
                    return
                state["caller"] = caller
                send = self._standing.ended(send, caller, state.get("session_id"))
            elif scope["type"] != "http":
                await refuse(scope, receive, send, status=403, detail="There are no WebSockets.")
                return
            await self._app(scope, receive, send)

    async def _caller_or_refusal(self, scope: Scope, receive: Receive, send: Send) -> Caller | None:
        """Return the caller; None after the request was refused."""
        to = (scope, receive, send)
        try:
            return await self._caller(scope)
        except NotAuthenticated as refusal:
            if _is_page(scope):
                path = quote(scope["path"])
                await RedirectResponse(f"{LOGIN_PATH}?next={path}", status_code=303)(*to)
            else:
                await refuse(*to, status=401, detail=str(refusal), headers=CHALLENGE)
        except NotAllowed as refusal:
            await refuse(*to, status=403, detail=str(refusal))
        except TooManyAttempts as refusal:
            wait = {"Retry-After": f"{refusal.retry_after_seconds + 0.5:.0f}"}
            await refuse(*to, status=429, detail=str(refusal), headers=wait)
        except (AuthenticationUnavailable, LedgerUnavailable) as failure:
            wait = {"Retry-After": RETRY_SECONDS}
            await refuse(*to, status=503, detail=str(failure), headers=wait)
        return None

    async def _caller(self, scope: Scope) -> Caller:
        pairs = header_pairs(scope)
        credential = presented(pairs)
        if credential is not None:
            return await self._authenticator.find_caller(credential, client_address(scope))
        session_id = self._sessions.id_of([value for name, value in pairs if name == "cookie"])
        caller = None if session_id is None else await self._sessions.caller(session_id)
        if session_id is None or caller is None:
            return await self._authenticator.authenticate(
                pairs, client_address(scope)
            )  # the answer says how
        check_own_page(scope, self._public_url)
        if scope["method"] not in READING:
            given = Headers(scope=scope).get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode(), csrf_token(session_id).encode()):
                raise NotAllowed("Send the CSRF token of the session in the header X-CSRF-Token.")
        scope["state"]["session_id"] = session_id
        return caller


def check_own_page(scope: Scope, public_url: str | None) -> None:
    """Check that a browser sends a request for fanout's page, not for another site's.

    SameSite=Strict keeps the cookie from other sites, but another port of the same host counts as
    the same site.

    Raises:
        NotAllowed: Another site has caused the request.
    """
    headers = Headers(scope=scope)
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:  # set by the browser itself, also where a page sends no Origin
        is_link = scope["method"] in READING and headers.get("sec-fetch-mode") == "navigate"
        is_own = site in ("none", "same-origin") or is_link
    else:
        is_own = origin is None or _is_own(origin, scope, public_url)
    if not is_own:
        raise NotAllowed(OTHER_SITE)


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


def _is_own(origin: str, scope: Scope, public_url: str | None) -> bool:
    if origin.lower() == public_url:
        return True
    return origin.lower() == f"{scope['scheme']}://{Headers(scope=scope).get('host', '')}".lower()


def header_pairs(scope: Scope) -> Sequence[tuple[str, str]]:
    """Return a request's headers with names in small letters."""
    return [
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in scope["headers"]
    ]


def client_address(scope: Scope) -> str:
    """Return the origin of a request: an address, or `local` for a Unix socket."""
    client = scope.get("client")
    return str(client[0]) if client and client[0] else "local"


def _is_page(scope: Scope) -> bool:
    """Return whether a person's browser requests a page, so that it is redirected to the login."""
    headers = Headers(scope=scope)
    is_shown = "text/html" in headers.get("accept", "")
    has_none = "authorization" not in headers and "x-api-key" not in headers
    return (
        scope["method"] == "GET" and is_shown and has_none and not scope["path"].startswith("/v1")
    )
