"""The translation of Redis's exceptions: each reason in one sentence that says what to do."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError
from redis.sentinel import MasterNotFoundError as SyncMasterNotFound

from ..failures import (
    LedgerForbidden,
    LedgerFull,
    LedgerMisconfigured,
    LedgerUnavailable,
)
from .memory import ADVICE

NO_RIGHT = (
    "Redis does not allow this to the user in FANOUT_REDIS_URL: grant the rights that "
    "config/redis-acl.example lists for it (ACL LOG shows what was refused)."
)
WRONG_PASSWORD = "Redis does not accept the user or the password: correct FANOUT_REDIS_URL."  # noqa: S105 - a sentence
NO_PASSWORD = "Redis needs a password: add it to FANOUT_REDIS_URL."  # noqa: S105 - a sentence
FULL = f"Redis has no memory left, so nothing new is stored: {ADVICE}."
REPLICA = "Redis is a read-only replica: FANOUT_REDIS_URL has to name the primary."
DISK = "Redis cannot write to its disk: make room there."
LOADING = "Redis is still loading its data: try again soon."
BUSY = "Redis is busy with a script that takes too long: try again; SLOWLOG GET names it."
NO_REPLICAS = (
    "Redis has too few replicas at work to write (min-replicas-to-write): start them, or lower it."
)
NO_MASTER = (
    "Redis is a replica that has lost its primary: FANOUT_REDIS_URL has to name the primary."
)
NO_PRIMARY = (
    "No Sentinel in FANOUT_REDIS_URL names a primary: check its hosts and master_name; while "
    "another primary is elected, try again."
)
CLUSTER = (
    "This Redis is a cluster, which the queue does not support: FANOUT_REDIS_URL has to name a "
    "single Redis."
)
REASONS: dict[str, tuple[type[LedgerUnavailable], str]] = {
    "NOPERM": (LedgerForbidden, NO_RIGHT),
    "WRONGPASS": (LedgerForbidden, WRONG_PASSWORD),
    "NOAUTH": (LedgerForbidden, NO_PASSWORD),
    "OOM": (LedgerFull, FULL),
    "READONLY": (LedgerUnavailable, REPLICA),
    "MISCONF": (LedgerUnavailable, DISK),
    "LOADING": (LedgerUnavailable, LOADING),
    "BUSY": (LedgerUnavailable, BUSY),
    "NOREPLICAS": (LedgerUnavailable, NO_REPLICAS),
    "MASTERDOWN": (LedgerUnavailable, NO_MASTER),
    "MOVED": (LedgerMisconfigured, CLUSTER),
    "CLUSTERDOWN": (LedgerMisconfigured, CLUSTER),
}
"""The code with which an error of Redis begins -> the failure and its text."""
CODES: dict[type[Exception], str] = {
    exceptions.NoPermissionError: "NOPERM",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.AskError: "MOVED",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.ClusterCrossSlotError: "MOVED",
}
"""The codes of errors from whose text the client has removed the code."""
TEXTS = {
    "The user executing the script can't": "NOPERM",
    "ACL failure in script": "NOPERM",
    "OOM command not allowed": "OOM",
    "MISCONF Redis is configured": "MISCONF",
    "READONLY You can't write": "READONLY",
    "NOREPLICAS Not enough": "NOREPLICAS",
    "HELLO must be called with the client already authenticated": "NOAUTH",
    "Authentication required": "NOAUTH",
    "non local key in a cluster": "MOVED",
    "the cluster is down": "CLUSTERDOWN",
}
"""Texts of Redis, within a script or outside, for errors without a code of their own."""
UNTRUSTED = (
    "The certificate of Redis is not trusted ({why}): nothing was sent. Check the host in "
    "FANOUT_REDIS_URL, or name the certificate's authority there with ssl_ca_certs=/path/to/ca.pem."
)
TLS_FAILED = (
    "Redis does not speak TLS as FANOUT_REDIS_URL (rediss://) asks for ({why}): check its port, and "
    "whether it wants a certificate of the client (ssl_certfile, ssl_keyfile)."
)
NO_ANSWER = "Redis does not answer ({why}): check that it runs, and FANOUT_REDIS_URL."
ENDED_AFTER_HANDSHAKE = (
    "Redis ends each TLS connection before it answers: check that it runs, and whether it wants a "
    "certificate of the client (ssl_certfile, ssl_keyfile in FANOUT_REDIS_URL)."
)
REJECTED = (
    "Redis has rejected a command ({why}): it has to be a single Redis of version 6.2 or newer "
    "(ACL users need 7)."
)


class EndedAfterHandshake(exceptions.ConnectionError):
    """The server agreed on TLS and ended the connection; its cause may say why."""


@contextmanager
def redis_failures() -> Iterator[None]:
    """Translate the client's exceptions; the text has no address, which may contain a password.

    Raises:
        LedgerUnavailable: Redis does not respond, or not correctly; see the subclasses.
    """
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise redis_failure(error) from error


def redis_failure(error: BaseException) -> LedgerUnavailable:
    """Return the failure that an exception of Redis's client, or of Celery's transport, means.

    Args:
        error: The exception; the first cause of it that is known decides.
    """
    cause: BaseException | None = error
    while cause is not None:
        failure = _of_one(cause)
        if failure is not None:
            return failure
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, EndedAfterHandshake):
        return LedgerUnavailable(ENDED_AFTER_HANDSHAKE)
    return LedgerUnavailable(NO_ANSWER.format(why=type(error).__name__))


def is_worth_repeating(error: BaseException) -> bool:
    """Return whether the client should repeat a call at once after this exception."""
    return redis_failure(error).retryable


def _of_one(error: BaseException) -> LedgerUnavailable | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return LedgerMisconfigured(UNTRUSTED.format(why=error.verify_message.rstrip(".")))
    if isinstance(error, ssl.SSLError):
        return LedgerMisconfigured(TLS_FAILED.format(why=error.reason or "no handshake"))
    if isinstance(error, (SyncMasterNotFound, MasterNotFoundError)):
        return LedgerUnavailable(NO_PRIMARY)
    if not isinstance(error, exceptions.RedisError):
        return None
    code = _code(error)
    if code not in REASONS:
        is_answer = isinstance(error, exceptions.ResponseError)
        return LedgerUnavailable(REJECTED.format(why=code)) if is_answer else None
    kind, text = REASONS[code]
    return kind(text)


def _code(error: exceptions.RedisError) -> str:
    """Return the code with which Redis began the error, as far as it can be known."""
    text = str(error)
    by_kind = next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
    by_text = next((code for part, code in TEXTS.items() if part in text), None)
    if by_kind or by_text:
        return by_kind or str(by_text)
    if isinstance(error, exceptions.AuthenticationError):
        return "WRONGPASS"
    return text.partition(" ")[0]
