"""The keys of the HTTP service.

A key is `fo_<id>_<secret>`: the id finds the record, the secret is 256 random bits. Only the
SHA-256 of the whole is stored. A slow hash protects passwords, which can be guessed; nobody guesses
256 random bits, and a slow hash would cost every request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from redis.asyncio import Redis
from redis.exceptions import WatchError

from ..failures import LedgerUnavailable
from ..spec import ANYTHING, DEFINITIONS_ONLY, CallerPolicy
from .keys import Keys
from .redis_errors import redis_failures

ALPHABET = string.digits + string.ascii_letters
ID_CHARACTERS = 12
"""The length of an id, of 62 characters each: enough that no two keys ever have the same id."""
SECRET_CHARACTERS = 43
"""The length of a secret, of 62 characters each: 256 bits."""
USED_EVERY_SECONDS = 60.0
"""The precision of `last_used_at`: without it, a busy key would cost a write for every request."""
TRIES = 5
"""The attempts of a creation that collides with another one."""

_KEY = re.compile(rf"fo_([0-9A-Za-z]{{{ID_CHARACTERS}}})_[0-9A-Za-z]{{{SECRET_CHARACTERS}}}")


class NameTaken(ValueError):
    """There is a key of that name which still works."""


class UnknownKey(LookupError):
    """There is no key of that id or name."""


class ApiKey(BaseModel):
    """What is known of a key; never the key itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    name: str
    scopes: tuple[str, ...]
    owner: str
    tenant: str
    created_at: float
    """Seconds since the epoch, like all times here."""
    created_by: str
    expires_at: float | None = None
    last_used_at: float | None = None
    """Up to a minute late."""
    revoked_at: float | None = None
    policy: CallerPolicy | None = None
    """What it may choose for its jobs, as it was created; None: it was created before there were
    policies and keeps its rights."""

    @property
    def own_policy(self) -> CallerPolicy:
        """What it may choose, unless settings say otherwise."""
        return ANYTHING if self.policy is None else self.policy

    def works(self, now: float) -> bool:
        """Return whether the key is neither revoked nor expired at a time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def is_key(text: str) -> bool:
    """Return whether a text has the form of a key."""
    return _KEY.fullmatch(text) is not None


def fingerprint(secret: str) -> str:
    """Return the SHA-256 of a random secret, by which it is stored and compared."""
    return hashlib.sha256(secret.encode()).hexdigest()


class KeyStore:
    """The keys of one installation.

    Nothing is cached, so a revoked key is refused by every server at once. Every method raises
    LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        owner: str,
        tenant: str,
        created_by: str,
        expires_at: float | None = None,
        policy: CallerPolicy = DEFINITIONS_ONLY,
    ) -> tuple[str, ApiKey]:
        """Make a key, and return it with its record; it cannot be shown again.

        Raises:
            NameTaken: There is a key of that name that still works.
        """
        key_id = _random(ID_CHARACTERS)
        key = f"fo_{key_id}_{_random(SECRET_CHARACTERS)}"
        record = ApiKey(
            id=key_id,
            name=name,
            scopes=tuple(scopes),
            owner=owner,
            tenant=tenant,
            created_at=time.time(),
            created_by=created_by,
            expires_at=expires_at,
            policy=policy,
        )
        fields = _fields(record) | {"hash": fingerprint(key)}
        with redis_failures():
            for _ in range(TRIES):
                try:
                    await self._store(record, fields)
                except WatchError:
                    continue
                return key, record
        raise LedgerUnavailable("Other keys are being created at the same time: try again.")

    async def find(self, key: str) -> ApiKey | None:
        """Return the record of a key that works; None for any other text.

        Args:
            key: What a request presents.
        """
        match = _KEY.fullmatch(key)
        if match is None:
            return None
        with redis_failures():
            fields: Any = await self._redis.hgetall(self._keys.api_key(match[1]))
        expected = fields.get("hash", "")
        # Also when there is none, so that the time does not reveal which ids exist.
        is_right = hmac.compare_digest(fingerprint(key), expected.ljust(64))
        if not is_right or not (record := _record(fields)).works(time.time()):
            return None
        await self._note_use(record)
        return record

    async def get(self, key_id: str) -> ApiKey | None:
        """Return the record of an id; None when there is none."""
        with redis_failures():
            fields: Any = await self._redis.hgetall(self._keys.api_key(key_id))
        return _record(fields) if fields else None

    async def list(self) -> list[ApiKey]:
        """Return all keys, revoked and expired ones too, oldest first."""
        with redis_failures():
            ids: Any = await self._redis.zrange(self._keys.api_keys, 0, -1)
            async with self._redis.pipeline(transaction=False) as pipe:
                for key_id in ids:
                    pipe.hgetall(self._keys.api_key(key_id))
                found = await pipe.execute()
        return [_record(fields) for fields in found if fields]

    async def exist(self) -> bool:
        """Return whether there is a key that works."""
        now = time.time()
        return any(record.works(now) for record in await self.list())

    async def revoke(self, id_or_name: str) -> ApiKey:
        """Revoke a key, permanently; a revoked key stays unchanged.

        Raises:
            UnknownKey: There is no key of that id, and none of that name that works.
        """
        with redis_failures():
            named: Any = await self._redis.hget(self._keys.api_key_names, id_or_name)
        record = await self.get(named or id_or_name)
        if record is None:
            raise UnknownKey(f"There is no key {id_or_name}: `fanout keys ls` lists them.")
        if record.revoked_at is not None:
            return record
        revoked = record.model_copy(update={"revoked_at": time.time()})
        with redis_failures():
            await self._redis.hset(
                self._keys.api_key(record.id), "revoked_at", str(revoked.revoked_at)
            )
        return revoked

    async def _store(self, record: ApiKey, fields: dict[str, str]) -> None:
        names = self._keys.api_key_names
        pipe: Any  # redis-py's types have gaps
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.watch(names)
            known = await pipe.hget(names, record.name)
            earlier = await self.get(known) if known else None
            if earlier is not None and earlier.works(record.created_at):
                raise NameTaken(
                    f"There is a key {record.name} already: revoke it first "
                    f"(`fanout keys revoke {record.name}`), or choose another name."
                )
            pipe.multi()
            pipe.hset(self._keys.api_key(record.id), mapping=fields)
            pipe.zadd(self._keys.api_keys, {record.id: record.created_at})
            pipe.hset(names, record.name, record.id)
            await pipe.execute()

    async def _note_use(self, record: ApiKey) -> None:
        now = time.time()
        if record.last_used_at is not None and now - record.last_used_at < USED_EVERY_SECONDS:
            return
        try:
            with redis_failures():
                await self._redis.hset(self._keys.api_key(record.id), "last_used_at", str(now))
        except LedgerUnavailable:  # a Redis that is full can still be read
            return


def _random(characters: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(characters))


def _fields(record: ApiKey) -> dict[str, str]:
    given = record.model_dump(exclude_none=True) | {"scopes": " ".join(record.scopes)}
    if record.policy is not None:
        given["policy"] = record.policy.model_dump_json(exclude_defaults=True)
    return {name: str(value) for name, value in given.items()}


def _record(fields: dict[str, str]) -> ApiKey:
    """Return the record of stored fields; a policy of another form permits nothing."""
    given: dict[str, Any] = {**fields, "scopes": tuple(fields["scopes"].split())}
    if "policy" in fields:
        try:
            given["policy"] = CallerPolicy.model_validate_json(fields["policy"])
        except ValidationError:
            given["policy"] = DEFINITIONS_ONLY
    return ApiKey.model_validate(given)
