"""Bearer tokens of an OpenID Connect issuer: their validity and their callers.

PyJWT does the cryptography. The issuer's public keys are found by its discovery document, kept and
read again. A caller's rights are defined in `callers.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jwt
import structlog

from ..configuration.api_settings import (
    DEFAULT_TENANT,
    EVERYBODY,
    ApiSettings,
    CallerSettings,
    OidcSettings,
    Scope,
    is_loopback,
    is_reserved,
)
from ..jobs.spec import MAX_OWNER_CHARACTERS
from ..server.access.callers import (
    TOKEN,
    AuthenticationUnavailable,
    Caller,
    NotAuthenticated,
)

DISCOVERY = "/.well-known/openid-configuration"
MAX_DOCUMENT_BYTES = 1 << 20
"""The largest discovery document, and the largest list of keys: both have a few thousand bytes."""
ANSWER_SECONDS = 5.0
"""The time for each document, for which a caller waits."""
REFRESH_SECONDS = 10.0
"""The time between two readings because of an unknown key id: tokens with invented ids must not
become requests to the issuer."""
LONGEST_USE_SECONDS = 24 * 3600.0
"""The longest use of keys while the issuer does not respond."""
KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The beginning of an algorithm -> the kind of its keys. Symmetric ones (`oct`) are not among them:
a public document cannot contain a secret."""
UNREADABLE = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RecursionError)
"""The exceptions of reading the documents when the issuer does not respond correctly."""

logger = structlog.get_logger(__name__)


class UnknownIssuerKey(Exception):
    """The issuer has no such key."""


class IssuerKeys:
    """The keys of one issuer, read when they are first needed and kept.

    Args:
        issuer: Its address.
        kept_seconds: How long keys are used before they are read again.
        clock: Returns seconds.
    """

    def __init__(
        self, issuer: str, kept_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._keys: list[tuple[dict[str, Any], jwt.PyJWK]] = []
        self._read_at = self._asked_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, key_id: object, algorithm: str) -> Any:
        """Return the public key that a token names.

        Args:
            key_id: The token's `kid`; None when it names none, which suffices while there is only
                one key.
            algorithm: The token's `alg`.

        Raises:
            UnknownIssuerKey: The issuer has no such key for this algorithm.
            AuthenticationUnavailable: The issuer has not responded for a long time.
        """
        if self._clock() - self._read_at > self._kept_seconds:
            await self._refresh()
        found = self._matching(key_id, algorithm)
        if not found and await self._refresh():
            found = self._matching(key_id, algorithm)
        if len(found) != 1:
            raise UnknownIssuerKey
        return found[0].key

    def _matching(self, key_id: object, algorithm: str) -> list[jwt.PyJWK]:
        return [
            key
            for data, key in self._keys
            if key_id in (None, data.get("kid"))
            and data.get("kty") == KINDS.get(algorithm[:2])
            and data.get("alg") in (None, algorithm)
            and data.get("use") in (None, "sig")
        ]

    async def _refresh(self) -> bool:
        """Read the keys, unless that was just tried; return whether they are new.

        Raises:
            AuthenticationUnavailable: The issuer does not respond, and no keys can be used.
        """
        asked_before = self._asked_at
        async with self._reading:
            now = self._clock()
            if self._asked_at != asked_before:  # another task has read them meanwhile
                self._check_usable(now)
                return True
            if now - self._asked_at < REFRESH_SECONDS:
                self._check_usable(now)
                return False
            self._asked_at = now
            try:
                self._keys = await self._read()
            except UNREADABLE as error:
                why = type(error).__name__
                logger.warning("issuer_keys_not_read", issuer=self._issuer, why=why)
                self._check_usable(now)
                return False
            self._read_at = now
            return True

    def _check_usable(self, now: float) -> None:
        if now - self._read_at > max(LONGEST_USE_SECONDS, self._kept_seconds):
            raise AuthenticationUnavailable(
                "The issuer of tokens does not respond: try again, or use a key of this service."
            )

    async def _read(self) -> list[tuple[dict[str, Any], jwt.PyJWK]]:
        client = await asyncio.to_thread(httpx2.AsyncClient, timeout=ANSWER_SECONDS)
        async with client:
            found = await _document(client, f"{self._issuer.rstrip('/')}{DISCOVERY}")
            if found.get("issuer") != self._issuer:
                raise ValueError("the discovery document is of another issuer")
            keys = (await _document(client, _secure(found.get("jwks_uri")))).get("keys")
        if not isinstance(keys, list):
            raise ValueError("there is no list of keys")  # noqa: TRY004 - as below
        usable = [(data, key) for data in keys if (key := _public_key(data)) is not None]
        if not usable:
            raise ValueError("no key can be used")
        return usable


async def _document(client: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    """Return a JSON document; a redirection is an error, because its target is not trusted."""
    async with asyncio.timeout(ANSWER_SECONDS), client.stream("GET", url) as response:
        if response.status_code != httpx2.codes.OK:
            raise ValueError("the issuer refuses")
        content = b""
        async for part in response.aiter_bytes():
            content += part
            if len(content) > MAX_DOCUMENT_BYTES:
                raise ValueError("the document is too large")
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the document, not of a caller
    return document


def _secure(url: object) -> str:
    """Return the address of the keys, which has to be as safe as an issuer's.

    Raises:
        ValueError: It is not.
    """
    parts = urlsplit(url if isinstance(url, str) else "")
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return str(url)
    raise ValueError("the keys are not reached by https")


def _public_key(data: object) -> jwt.PyJWK | None:
    if not isinstance(data, dict) or data.get("kty") not in KINDS.values():
        return None
    try:
        return jwt.PyJWK(data)
    except jwt.PyJWTError:  # of an unknown kind
        return None


MAX_TENANT_CHARACTERS = 64
"""The longest name of a tenant, as in a job."""
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
"""The texts for callers; for other failures, only that the token is not valid."""
NOT_VALID = "The token is not valid."


class TokenVerifier:
    """Checks tokens: signature, issuer, audience and time.

    A token's claims about its own key (`jku`, `x5u`, `jwk`, `x5c`) are never used: keys come from
    the issuer only.

    Args:
        settings: With an issuer and an audience.
        keys: The issuer's keys.
        callers: The choices of tokens for their jobs.
    """

    def __init__(self, settings: OidcSettings, keys: IssuerKeys, callers: CallerSettings) -> None:
        self._settings = settings
        self._callers = callers
        self._keys = keys

    async def caller(self, token: str) -> Caller:
        """Return the caller of a token.

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
            policy=self._callers.make_policy(tenant),
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
        """Return the scopes of a token, without those of other services."""
        given = claims.get(self._settings.scopes_claim, [])
        names = given.split() if isinstance(given, str) else given
        prefixed = {f"{self._settings.scope_prefix}{scope}": Scope(scope) for scope in Scope}
        found = {
            prefixed[name]
            for name in (names if isinstance(names, list) else [])
            if isinstance(name, str) and name in prefixed
        }
        return frozenset(found or (Scope(scope) for scope in self._settings.default_scopes))


def token_verifier(issuer: str, settings: ApiSettings) -> TokenVerifier:
    """Return what checks the tokens of an issuer.

    Args:
        issuer: Its address.
        settings: Those of the service.
    """
    keys = IssuerKeys(issuer, settings.oidc.keys_seconds)
    return TokenVerifier(settings.oidc, keys, settings.callers)


def _name(claims: dict[str, Any], claim: str, most_characters: int) -> str:
    """Return a claim that names an owner or a tenant.

    Raises:
        NotAuthenticated: It is missing, or not a name. An empty name would be that of jobs without
            an owner, and the names of everybody and of the operator are reserved.
    """
    value = claims.get(claim)
    is_name = isinstance(value, str) and value.isprintable() and value.strip() == value
    if not is_name or not 0 < len(str(value)) <= most_characters or value == EVERYBODY:
        raise NotAuthenticated(f"The token's claim {claim} is missing, or is not a name.")
    if is_reserved(str(value)):
        raise NotAuthenticated(f"The token's claim {claim} has a name that is the operator's.")
    return str(value)
