"""Security of the Redis in use: who may connect, over what, and with which rights."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from fanout.orchestrator.cli.checks.doctor_checks import Check, memory_checks
from fanout.orchestrator.jobs.failures import LedgerForbidden, LedgerUnavailable
from fanout.orchestrator.jobs.redis_url import TLS_SCHEMES
from fanout.orchestrator.jobs.store.connection import connect, identity
from fanout.orchestrator.jobs.store.redis_errors import redis_failures


async def redis_security(url: str) -> list[Check]:
    """Check a Redis from what its URL says and, where it answers, from what it lets us do.

    Args:
        url: the URL that this installation uses.
    """
    checks = list(_transport(url))
    try:
        return [*checks, *[check async for check in _rights(url)]]
    except LedgerUnavailable as error:
        return [*checks, Check("warn", "redis rights", f"not checked: {error}")]


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _transport(url: str) -> Iterable[Check]:
    parts = urlsplit(url)
    here = parts.scheme == "unix" or is_loopback(parts.hostname or "")
    query = parse_qs(parts.query)
    if parts.password or "password" in query or parts.scheme == "unix":
        yield Check("ok", "redis password", "a socket" if parts.scheme == "unix" else "set")
    else:
        advice = "Anyone who can connect can run jobs: set requirepass or ACL users."
        yield Check("warn" if here else "fail", "redis password", "none", advice)
    if parts.scheme in TLS_SCHEMES:
        yield Check("ok", "redis transport", "TLS, the certificate is verified")
    elif here:
        yield Check("ok", "redis transport", "this machine only")
    else:
        advice = "Use rediss://, or a private network that only fanout uses."
        yield Check("warn", "redis transport", "unencrypted, over a network", advice)


async def _rights(url: str) -> AsyncIterator[Check]:
    if await _answers_anybody(url):
        advice = "Disable it in Redis: ACL SETUSER default off (or set requirepass)."
        here = is_loopback(urlsplit(url).hostname or "")
        found = "connections without a password are served"
        yield Check("warn" if here else "fail", "redis default user", found, advice)
    client: Any = connect(url)
    try:
        with redis_failures():
            user = await identity(client)
            info = await client.info("memory")
        may_configure = await _may_configure(client)
    finally:
        await client.aclose()
    if urlsplit(url).scheme == "unix":
        yield Check("ok", "redis rights", f"{user}, on a socket of this user's own")
    elif may_configure:
        advice = "Give each role a user with the least rights: config/redis-acl.example."
        yield Check("warn", "redis rights", f"{user}: every command", advice)
    else:
        yield Check("ok", "redis rights", f"{user}: restricted by its ACL")
    for check in memory_checks(info):
        yield check


async def _answers_anybody(url: str) -> bool:
    """Return whether a connection without a user and a password is served."""
    parts = urlsplit(url)
    _, _, address = parts.netloc.rpartition("@")
    if not parts.hostname or not parts.password:
        return False  # a socket, or what the password's check has told
    client = connect(urlunsplit(parts._replace(netloc=address)))
    try:
        with redis_failures():
            await client.ping()
    except LedgerForbidden:
        return False
    finally:
        await client.aclose()
    return True


async def _may_configure(client: Any) -> bool:
    """Return whether our user may call CONFIG, which no process of fanout does."""
    try:
        with redis_failures():
            await client.config_get("maxmemory")
    except LedgerForbidden:
        return False
    except LedgerUnavailable as error:
        if "unknown command" in str(error.__cause__):  # a managed Redis has none
            return False
        raise
    return True
