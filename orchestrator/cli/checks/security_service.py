"""Security of the HTTP service: who reaches it, over what, and whose keys see everything."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from fanout.orchestrator.cli.checks.doctor_checks import Check, unbound_keys
from fanout.orchestrator.configuration.api_settings import (
    EVERYBODY,
    ApiSettings,
    is_loopback,
)
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.access_stores import open_access_stores
from fanout.orchestrator.jobs.store.api_keys import ApiKey

UNUSED_DAYS = 90
"""After which a key that nobody uses should be revoked: a quarter, so also that of a rare job."""
_DAY = 86_400.0


async def service_security(settings: Settings) -> list[Check]:
    """Check the service from its settings and, where Redis answers, from its keys.

    Args:
        settings: With the Redis in use, if there is one.
    """
    return [_transport(settings.api), *[check async for check in _keys(settings)]]


def _transport(api: ApiSettings) -> Check:
    if is_loopback(api.host):
        return Check("ok", "service address", "this machine only")
    if (api.public_url or "").startswith("https:"):
        return Check("ok", "service address", f"{api.host}, reached as {api.public_url}")
    advice = (
        "Keys and cookies can be read on the way: put a proxy with https before it and set "
        "FANOUT_API__PUBLIC_URL."
    )
    return Check("warn", "service address", f"{api.host}, without https", advice)


async def _keys(settings: Settings) -> AsyncIterator[Check]:
    if settings.redis_url is None:
        return
    try:
        async with open_access_stores(settings.redis_url, settings.redis_prefix) as stores:
            records = await stores.keys.list()
    except LedgerUnavailable as error:
        yield Check("warn", "service keys", f"not checked: {error}")
        return
    now = time.time()
    working = [record for record in records if record.works(now)]
    everybody = [record.name for record in working if record.owner == EVERYBODY]
    of_all = f", {len(everybody)} of them for everybody's jobs" if everybody else ""
    count = len(working) + len(settings.api.keys)
    yield Check("ok", "service keys", f"{count}{of_all}")
    for check in unbound_keys(working, settings.api.callers):
        yield check
    if unused := _unused(working, now):
        advice = f"Revoke those that are not needed: fanout keys revoke {unused[0]}"
        names = ", ".join(unused[:3]) + (" …" if len(unused) > 3 else "")  # noqa: PLR2004 - a line
        found = f"{len(unused)} not used for {UNUSED_DAYS} days: {names}"
        yield Check("warn", "service keys unused", found, advice)


def _unused(working: Sequence[ApiKey], now: float) -> list[str]:
    """Return the names of keys that nobody has used for long."""
    limit = now - UNUSED_DAYS * _DAY
    return [one.name for one in working if (one.last_used_at or one.created_at) < limit]
