"""The public keys of an OpenID Connect issuer, found by its discovery document."""

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

from fanout.orchestrator.configuration.api_settings import is_loopback
from fanout.orchestrator.server.access.callers import AuthenticationUnavailable

DISCOVERY = "/.well-known/openid-configuration"
MAX_DOCUMENT_BYTES = 1 << 20
"""Of the discovery document and of the keys: both have a few thousand bytes."""
ANSWER_SECONDS = 5.0
"""For each document: a caller waits for it."""
REFRESH_SECONDS = 10.0
"""Between two readings because of a key id that is unknown: tokens with invented ones must not
become requests to the issuer."""
LONGEST_USE_SECONDS = 24 * 3600.0
"""How long keys are used while the issuer does not respond."""
KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The beginning of an algorithm -> the kind of its keys. Symmetric ones (`oct`) are none of them: a
public document cannot contain a secret."""
UNREADABLE = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, RecursionError)
"""What reading the documents raises when the issuer does not respond as it should."""

logger = structlog.get_logger(__name__)


class UnknownIssuerKey(Exception):
    """The issuer has no such key."""


class IssuerKeys:
    """The keys of one issuer, read when they are first needed and kept.

    Args:
        issuer: Its address.
        kept_seconds: How long keys are used before they are read again.
        clock: Seconds.
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
            AuthenticationUnavailable: The issuer does not respond, and has not for long.
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
            if self._asked_at != asked_before:  # somebody else has read them meanwhile
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
    """Return a JSON document; a redirection is an error, since it could lead anywhere."""
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
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of the document, not of a caller
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
    except jwt.PyJWTError:  # of a kind that is not known here
        return None
