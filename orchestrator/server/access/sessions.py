"""Browser sessions: the cookie, its CSRF token, and the one-time link that begins one."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import State

from ...configuration.api_settings import EVERYBODY, ApiSettings, Scope
from ...jobs.store.browser_sessions import BrowserSessions, Grant
from .callers import OPERATOR, Caller

if TYPE_CHECKING:  # `fanout up` makes a link, and needs none of the libraries of tokens
    from .authenticator import Authenticator

COOKIE = "fanout_session"
HOST_PREFIX = "__Host-"
"""The cookie prefix with which browsers accept it only from this host itself, by https and for all
paths."""
CSRF_HEADER = "x-csrf-token"
LOGIN_PATH = "/login"


class Sessions:
    """The browser sessions of one server.

    Args:
        store: The store of the sessions.
        authenticator: Knows whether the key of a session still works.
        settings: How long they last, and whether cookies are sent by https only.
    """

    def __init__(
        self, store: BrowserSessions, authenticator: Authenticator, settings: ApiSettings
    ) -> None:
        self._store = store
        self._authenticator = authenticator
        self._seconds = settings.session_seconds
        self._secure = (settings.public_url or "").startswith("https:")
        self.cookie_name = f"{HOST_PREFIX}{COOKIE}" if self._secure else COOKIE

    async def begin(self, caller: Caller) -> str:
        """Begin a session for the caller of a key, and return the header that sets its cookie."""
        return self._cookie(await self._store.open(_grant(caller), self._seconds), self._seconds)

    async def begin_by_link(self, token: str) -> tuple[Caller, str] | None:
        """Begin a session by a login link.

        Returns:
            Its caller and the header that sets its cookie; None when the link was used or is too
            old.
        """
        grant = await self._store.take_login(token)
        if grant is None:
            return None
        caller = _operator(grant)
        return caller, await self.begin(caller)

    async def caller(self, session_id: str) -> Caller | None:
        """Return the caller of a session; None when it has ended, or its key was revoked."""
        grant = await self._store.get(session_id)
        if grant is None:
            return None
        if grant.credential == OPERATOR:
            return _operator(grant)
        caller = await self._authenticator.holder(grant.credential)
        if caller is None:
            await self._store.end(session_id)
        return caller

    async def end(self, session_id: str) -> str:
        """End a session, and return the header that removes its cookie."""
        await self._store.end(session_id)
        return self._cookie("", 0)

    def id_of(self, cookies: list[str]) -> str | None:
        """Return the id of the session that a request's headers `Cookie` name.

        Two cookies with this name count as none, because another site of the host may have set one
        of them.
        """
        found = []
        for header in cookies:
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self.cookie_name and value:
                    found.append(value)
        return found[0] if len(found) == 1 else None

    def _cookie(self, value: str, seconds: float) -> str:
        secure = "; Secure" if self._secure else ""
        return (
            f"{self.cookie_name}={value}; Path=/; Max-Age={seconds:.0f}; HttpOnly; "
            f"SameSite=Strict{secure}"
        )


def is_operator(caller: Caller, state: State) -> bool:
    """Return whether a request comes from a browser that an operator's link has logged in.

    Args:
        caller: The caller.
        state: The state of the request, as the authentication has filled it.
    """
    return caller.key_id == OPERATOR and getattr(state, "session_id", None) is not None


def csrf_token(session_id: str) -> str:
    """Return the token that a session's page sends with each change, in the header X-CSRF-Token.

    It is derived from the session's id, which scripts of other sites cannot know, and hides it.
    """
    return hmac.new(session_id.encode(), b"csrf", hashlib.sha256).hexdigest()


async def create_login_link(
    store: BrowserSessions, base_url: str, *, operator: str, seconds: float
) -> str:
    """Return a link that logs in one browser, once, as the operator: it shows all jobs.

    Args:
        store: The store of the sessions.
        base_url: The address of the service for the browser.
        operator: The name of the person who requested the link, for the audit log and for answers
            to approvals.
        seconds: How long it works.
    """
    grant = Grant(
        name=operator,
        owner=EVERYBODY,
        tenant=EVERYBODY,
        scopes=tuple(Scope),
        credential=OPERATOR,
    )
    token = await store.create_login(grant, seconds)
    return f"{base_url.rstrip('/')}{LOGIN_PATH}?token={quote(token)}"


def _grant(caller: Caller) -> Grant:
    return Grant(
        name=caller.name,
        owner=caller.owner,
        tenant=caller.tenant,
        scopes=tuple(sorted(caller.scopes)),
        credential=caller.key_id,
    )


def _operator(grant: Grant) -> Caller:
    """Return the caller of a login link's session."""
    known = {scope.value for scope in Scope}
    return Caller(
        name=grant.name,
        owner=grant.owner,
        tenant=grant.tenant,
        scopes=frozenset(Scope(name) for name in grant.scopes if name in known),
        key_id=grant.credential,
        policy=None,
    )
