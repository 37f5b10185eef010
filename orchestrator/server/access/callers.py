"""The callers of the service, and their rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...configuration.api_settings import EVERYBODY, Scope, share_tenant
from ...jobs.spec import DEFINITIONS_ONLY, CallerPolicy

OPERATOR = "operator"
"""The credential of a person with access to this machine or its Redis, and the owner of that
person's jobs: no key and no token has the name."""
TOKEN = "token:"  # noqa: S105 - the beginning of an id
"""The beginning of the id of a token, which is followed by its end, in seconds since the epoch."""


class NotAuthenticated(Exception):
    """The request has no credentials, or invalid ones; the text says what to send."""


class NotAllowed(Exception):
    """The caller lacks a scope; the text names it."""


class AuthenticationUnavailable(Exception):
    """The credentials cannot be checked at the moment."""


class Owned(Protocol):
    """An object of a tenant's owner: a job's specification, record or index entry."""

    @property
    def tenant(self) -> str:
        """The tenant."""

    @property
    def owner(self) -> str:
        """The owner in that tenant."""


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Args:
        name: The name of the key, or the subject of the token.
        owner: The owner of the jobs that the caller sees and submits; `*`: sees those of everybody.
            tenant: The tenant whose share of the workers is used; `*`, with the owner `*`: sees all
            tenants.
        scopes: What the caller may do.
        key_id: The id of the key or of the session, for the audit log.
        policy: The caller's choices for a job; None: whatever the installation permits, because it
            is the operator.
    """

    name: str
    owner: str
    tenant: str
    scopes: frozenset[Scope]
    key_id: str = ""
    policy: CallerPolicy | None = DEFINITIONS_ONLY

    def require(self, scope: Scope) -> None:
        """Check a scope.

        Raises:
            NotAllowed: The caller does not have it.
        """
        if scope not in self.scopes:
            raise NotAllowed(
                f"This needs the scope {scope.value!r}, which {self.name} does not have."
            )

    def owns(self, thing: Owned) -> bool:
        """Return whether the caller may see an object."""
        return self.tenant in (thing.tenant, EVERYBODY) and self.owner in (thing.owner, EVERYBODY)

    @property
    def submits_as(self) -> tuple[str, str]:
        """The owner and the tenant of the jobs that the caller submits."""
        tenant = share_tenant(self.tenant)
        if self.key_id == OPERATOR:  # the name is a person's, and a key may have it
            return OPERATOR, tenant
        return self.name if self.owner == EVERYBODY else self.owner, tenant
