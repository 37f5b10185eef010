"""Finds the caller of a request by its credentials: keys, static keys, tokens of an issuer."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...configuration.api_settings import (
    CallerSettings,
    Scope,
    StaticKey,
)
from ...jobs.store.api_keys import ApiKey, KeyStore, fingerprint, is_key
from .callers import TOKEN, Caller, NotAuthenticated
from .limits import FailedAttempts

AUTHORIZATION, API_KEY = "authorization", "x-api-key"
BEARER = "bearer"
MAX_CREDENTIAL_CHARACTERS = 16_384
"""The longest key or token: tokens that list many groups have several thousand characters."""
SEND_A_KEY = "Send a key as `Authorization: Bearer KEY`; `fanout keys create` makes one."
DOTS_OF_A_TOKEN = 2
STATIC = "static:"
"""The beginning of the id of a key of the configuration."""
STATIC_ID_CHARACTERS = 8
"""The length of a static key's fingerprint in its id: a replaced key of the same name has another
id."""
NOT_KNOWN = "This key is not known, was revoked or has expired."


class TokenCheck(Protocol):
    """Finds the caller of a token of an issuer."""

    async def caller(self, token: str) -> Caller:
        """Return the caller to whom a token was issued.

        Raises:
            NotAuthenticated: It is not valid.
            AuthenticationUnavailable: The issuer does not respond.
        """


@dataclass(frozen=True)
class _Static:
    digest: str
    caller: Caller


class Authenticator:
    """Finds the caller of a request.

    Args:
        keys: The keys that `fanout keys` makes.
        static: The keys of the configuration, by name.
        callers: The choices of keys for their jobs.
        tokens: Checks the tokens of an issuer; None: none are accepted.
        attempts: The failures of each address.
    """

    def __init__(
        self,
        keys: KeyStore,
        static: Mapping[str, StaticKey],
        callers: CallerSettings,
        tokens: TokenCheck | None,
        attempts: FailedAttempts,
    ) -> None:
        self._keys = keys
        self._callers = callers
        self._static = [_static(name, key, callers) for name, key in static.items()]
        self._tokens = tokens
        self._attempts = attempts

    async def authenticate(self, headers: Iterable[tuple[str, str]], address: str) -> Caller:
        """Return the caller of a request.

        Args:
            headers: Names, in small letters, and values of the request's headers or metadata.
            address: The origin of the request.

        Raises:
            NotAuthenticated: It has no credentials, or they are not valid.
            TooManyAttempts: Too many wrong ones came from this address.
            AuthenticationUnavailable: The issuer of a token does not respond.
            LedgerUnavailable: Redis does not respond.
        """
        credential = presented(headers)
        if credential is None:
            raise NotAuthenticated(SEND_A_KEY)
        return await self.find_caller(credential, address)

    async def find_caller(self, credential: str, address: str, *, tokens: bool = True) -> Caller:
        """Return the caller of a key or a token.

        Args:
            credential: The key or token.
            address: The origin of the request.
            tokens: Whether it may be a token; a session would outlive it.

        Raises:
            NotAuthenticated, TooManyAttempts, AuthenticationUnavailable, LedgerUnavailable: As
                `authenticate`.
        """
        self._attempts.check(address, credential)
        try:
            caller = await self._find(credential, tokens=tokens)
        except NotAuthenticated:
            self._attempts.failed(address, credential)
            raise
        self._attempts.succeeded(credential)
        return caller

    async def is_valid(self, key_id: str) -> bool:
        """Return whether a caller's key still works, or the token has not expired.

        Args:
            key_id: The id of the caller's credential.
        """
        if key_id.startswith(TOKEN):
            return time.time() < float(key_id.removeprefix(TOKEN))
        return await self.holder(key_id) is not None

    async def holder(self, key_id: str) -> Caller | None:
        """Return the caller of a key; None when it no longer works.

        Args:
            key_id: The id of a key.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        if key_id.startswith(STATIC):
            found = (one.caller for one in self._static if one.caller.key_id == key_id)
            return next(found, None)
        record = await self._keys.get(key_id)
        works = record is not None and record.works(time.time())
        return caller_of_key(record, self._callers) if record is not None and works else None

    async def _find(self, credential: str, *, tokens: bool) -> Caller:
        if (static := self._find_static(credential)) is not None:
            return static
        if is_key(credential):
            record = await self._keys.find(credential)
            if record is None:
                raise NotAuthenticated(NOT_KNOWN)
            return caller_of_key(record, self._callers)
        if tokens and self._tokens is not None and credential.count(".") == DOTS_OF_A_TOKEN:
            return await self._tokens.caller(credential)
        raise NotAuthenticated(NOT_KNOWN)

    def _find_static(self, credential: str) -> Caller | None:
        """Compare with every key, so that the time does not reveal which one was nearly right."""
        digest = fingerprint(credential)
        matching = [one for one in self._static if hmac.compare_digest(one.digest, digest)]
        return matching[0].caller if matching else None


def presented(headers: Iterable[tuple[str, str]]) -> str | None:
    """Return the key or token of a request; None when it has none.

    Raises:
        NotAuthenticated: There are several, or one has a form that is not accepted.
    """
    found = [(name, value) for name, value in headers if name in (AUTHORIZATION, API_KEY)]
    if not found:
        return None
    if len(found) > 1:
        raise NotAuthenticated(f"Send one key only: {AUTHORIZATION} or {API_KEY}, once.")
    name, value = found[0]
    if name == AUTHORIZATION:
        scheme, _, value = value.strip().partition(" ")
        if scheme.lower() != BEARER:
            raise NotAuthenticated(SEND_A_KEY)
    credential = value.strip()
    if not credential.isascii() or not 0 < len(credential) <= MAX_CREDENTIAL_CHARACTERS:
        raise NotAuthenticated(NOT_KNOWN)
    return credential


def caller_of_key(record: ApiKey, callers: CallerSettings) -> Caller:
    """Return the caller of a key; scopes of other releases are left out."""
    known = {scope.value for scope in Scope}
    return Caller(
        name=record.name,
        owner=record.owner,
        tenant=record.tenant,
        scopes=frozenset(Scope(name) for name in record.scopes if name in known),
        key_id=record.id,
        policy=callers.make_policy(record.tenant, record.name, record.own_policy),
    )


def _static(name: str, key: StaticKey, callers: CallerSettings) -> _Static:
    digest = fingerprint(key.key.get_secret_value())
    caller = Caller(
        name=name,
        owner=key.owner or name,
        tenant=key.tenant,
        scopes=frozenset(Scope(scope) for scope in key.scopes),
        key_id=f"{STATIC}{name}:{digest[:STATIC_ID_CHARACTERS]}",
        policy=callers.make_policy(key.tenant, name),
    )
    return _Static(digest, caller)
