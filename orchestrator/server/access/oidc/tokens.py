"""Bearer tokens of an OpenID Connect issuer: whether one is valid, and whom it stands for."""

from __future__ import annotations

from typing import Any

import jwt

from fanout.orchestrator.configuration.api_settings import (
    DEFAULT_TENANT,
    EVERYBODY,
    CallerSettings,
    OidcSettings,
    Scope,
    is_reserved,
)
from fanout.orchestrator.jobs.spec import MAX_OWNER_CHARACTERS
from fanout.orchestrator.server.access.callers import Caller, NotAuthenticated
from fanout.orchestrator.server.access.oidc.issuer_keys import IssuerKeys, UnknownIssuerKey

TOKEN = "token:"  # noqa: S105 - the beginning of an id
"""The beginning of the id of a token; its end follows, in seconds since the epoch."""
MAX_TENANT_CHARACTERS = 64
"""As of a job's tenant."""
NEEDED_CLAIMS = ["exp", "iss", "aud", "sub"]
REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "The token has expired: get a new one.",
    jwt.ImmatureSignatureError: "The token is not valid yet: compare the clocks.",
    jwt.InvalidAudienceError: "The token is for another service (aud).",
    jwt.InvalidIssuerError: "The token is of another issuer (iss).",
    jwt.MissingRequiredClaimError: "The token lacks one of the claims exp, iss, aud and sub.",
    jwt.InvalidAlgorithmError: "The token is signed in a way that is not accepted (alg).",
    UnknownIssuerKey: "The token is signed with a key that the issuer does not have (kid).",
}
"""What a caller is told; of other failures only that the token is not valid."""
NOT_VALID = "The token is not valid."


class TokenVerifier:
    """Checks tokens: signature, issuer, audience and time.

    What a token says about its own key (`jku`, `x5u`, `jwk`, `x5c`) is never used: keys come from
    the issuer only.

    Args:
        settings: With an issuer and an audience.
        keys: The issuer's keys.
        callers: What tokens may choose for their jobs.
    """

    def __init__(self, settings: OidcSettings, keys: IssuerKeys, callers: CallerSettings) -> None:
        self._settings = settings
        self._callers = callers
        self._keys = keys

    async def caller(self, token: str) -> Caller:
        """Return whom a token stands for.

        Raises:
            NotAuthenticated: It is not valid; the text says why.
            AuthenticationUnavailable: The issuer does not respond.
        """
        try:
            claims = await self._claims(token)
        except (jwt.PyJWTError, UnknownIssuerKey, RecursionError) as error:
            raise NotAuthenticated(REASONS.get(type(error), NOT_VALID)) from None
        settings = self._settings
        tenant = DEFAULT_TENANT
        if settings.tenant_claim is not None:
            tenant = _name(claims, settings.tenant_claim, MAX_TENANT_CHARACTERS)
        return Caller(
            name=_name(claims, settings.name_claim, MAX_OWNER_CHARACTERS),
            owner=_name(claims, settings.owner_claim, MAX_OWNER_CHARACTERS),
            tenant=tenant,
            scopes=self._scopes(claims),
            key_id=f"{TOKEN}{float(claims['exp']) + settings.leeway_seconds:.0f}",
            policy=self._callers.policy_of(tenant),
        )

    async def _claims(self, token: str) -> dict[str, Any]:
        settings = self._settings
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in settings.algorithms:  # before the issuer is asked for a key
            raise jwt.InvalidAlgorithmError
        key = await self._keys.find(header.get("kid"), str(algorithm))
        return jwt.decode(
            token,
            key,
            algorithms=[str(algorithm)],
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.leeway_seconds,
            options={"require": NEEDED_CLAIMS},
        )

    def _scopes(self, claims: dict[str, Any]) -> frozenset[Scope]:
        """Return the scopes that a token has; those of other services are none."""
        given = claims.get(self._settings.scopes_claim, [])
        names = given.split() if isinstance(given, str) else given
        prefixed = {f"{self._settings.scope_prefix}{scope}": Scope(scope) for scope in Scope}
        found = {
            prefixed[name]
            for name in (names if isinstance(names, list) else [])
            if isinstance(name, str) and name in prefixed
        }
        return frozenset(found or (Scope(scope) for scope in self._settings.default_scopes))


def _name(claims: dict[str, Any], claim: str, most_characters: int) -> str:
    """Return a claim that names an owner or a tenant.

    Raises:
        NotAuthenticated: It is missing, or no name: an empty one is that of jobs without an owner,
            only an operator gives somebody the jobs of everybody, and nobody else is called so.
    """
    value = claims.get(claim)
    is_name = isinstance(value, str) and value.isprintable() and value.strip() == value
    if not is_name or not 0 < len(str(value)) <= most_characters or value == EVERYBODY:
        raise NotAuthenticated(f"The token's claim {claim} is missing, or is no name.")
    if is_reserved(str(value)):
        raise NotAuthenticated(f"The token's claim {claim} has a name that is the operator's.")
    return str(value)
