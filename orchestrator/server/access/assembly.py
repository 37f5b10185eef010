"""Puts the parts of access together, for one server."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ...configuration.api_settings import ApiSettings
from ...jobs.store.access_stores import AccessStores
from .audit import AuditLog
from .authentication import AuthenticationMiddleware
from .authenticator import Authenticator, TokenCheck
from .hosts import HostCheck, check_bind
from .limits import CallerLimits, FailedAttempts
from .sessions import Sessions, create_login_link

ALLOWED_HEADERS = (
    "Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "Last-Event-ID",
    "A2A-Version", "A2A-Extensions", "MCP-Protocol-Version", "Mcp-Session-Id",
)  # fmt: skip
"""The headers that scripts of the allowed origins may send; cookies are never sent from there."""
EXPOSED_HEADERS = ("Location", "Retry-After", "X-Request-ID", "Mcp-Session-Id")


@dataclass(frozen=True)
class ServerAccess:
    """The callers of one server, and the record of their changes."""

    settings: ApiSettings
    stores: AccessStores
    authenticator: Authenticator
    sessions: Sessions
    audit: AuditLog
    attempts: FailedAttempts

    def authenticated(self, app: ASGIApp) -> ASGIApp:
        """Return an application behind the authentication and its callers' limits."""
        limited = CallerLimits(app, self.settings)
        return AuthenticationMiddleware(limited, self.authenticator, self.sessions, self.settings)

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """Return an application behind the check of the header Host, and behind CORS if it is open.

        It is the outermost one.
        """
        if self.settings.allowed_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self.settings.allowed_origins,
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=ALLOWED_HEADERS,
                expose_headers=EXPOSED_HEADERS,
            )
        return HostCheck(app, self.settings)

    async def check_bind(self, host: str) -> None:
        """Check that the server may listen on an address.

        Raises:
            PublicWithoutKeys: Other machines reach it, and nobody could authenticate.
            LedgerUnavailable: Redis does not respond.
        """
        configured = bool(self.settings.keys) or self.settings.oidc.issuer is not None
        check_bind(host, can_authenticate=configured or await self.stores.keys.exist())

    async def login_link(self, base_url: str) -> str:
        """Return a link that logs in one browser, once, as the operator of this installation.

        Args:
            base_url: The address of the service for the browser.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        return await create_login_link(
            self.stores.sessions,
            base_url,
            operator=await self.stores.operator(),
            seconds=self.settings.login_link_seconds,
        )


def make_access(
    settings: ApiSettings, stores: AccessStores, tokens: TokenCheck | None = None
) -> ServerAccess:
    """Return the access of a server.

    Args:
        settings: Its settings.
        stores: Keys, sessions and the audit log of the installation.
        tokens: Checks the tokens of the configured issuer; None: none are accepted.
    """
    attempts = FailedAttempts(settings.failed_logins_per_minute)
    authenticator = Authenticator(stores.keys, settings.keys, settings.callers, tokens, attempts)
    sessions = Sessions(stores.sessions, authenticator, settings)
    return ServerAccess(settings, stores, authenticator, sessions, AuditLog(stores.audit), attempts)
