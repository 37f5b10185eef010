"""The checks of `fanout doctor --security`: what an attacker could use.

It checks the files: who else may read or change what fanout obeys, stores or runs; the Redis in
use: who may connect, how, and with which rights; and the HTTP service: who reaches it, how, and
which keys see everything.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from ...client import JobClient
from ...client.attachment import attached
from ...configuration.agent_definitions import load_agent_definitions
from ...configuration.api_settings import (
    EVERYBODY,
    ApiSettings,
    is_loopback,
)
from ...configuration.configuration_file import configuration_file
from ...configuration.settings import Settings, load_settings
from ...jobs.failures import JobFailure, LedgerForbidden, LedgerUnavailable
from ...jobs.redis_url import TLS_SCHEMES
from ...jobs.store.access_stores import open_access_stores
from ...jobs.store.api_keys import ApiKey
from ...jobs.store.connection import connect, identity
from ...jobs.store.redis_errors import redis_failures
from ...jobs.worker_info import WorkerInfo
from .check import Check
from .doctor_checks import memory_checks, unbound_keys

UNUSED_DAYS = 90
"""The days after which an unused key should be revoked: a quarter, so that the key of a rare job is
kept."""
_DAY = 86_400.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_USE = 0o077
_DEFAULT_SOCKET = "/var/run/docker.sock"

_WEAK = {
    ("user", "root"): "Run workers as an unprivileged user, with fanout's engine proxy.",
    ("engine", "socket"): (
        "The engine's own socket is root on its host: put fanout's engine proxy in front of it "
        "(docker-compose.yml does)."
    ),
    ("disk", "watch"): (
        "No kernel quota enforces the disk limits of jobs: a job can exceed its own for some "
        "seconds."
    ),
    ("users of jobs", "one for all"): (
        "A job can use up what the kernel counts by user, such as inotify: with Linux 5.19 or "
        "newer and a disk for each job (FANOUT_SANDBOX__DISK_QUOTA), each job has its own user."
    ),
}
"""Weaknesses of an installation, and what to do about each."""


async def service_security(settings: Settings) -> list[Check]:
    """Check the service from its settings and, where Redis answers, from its keys.

    Args:
        settings: The settings, with the Redis in use, if there is one.
    """
    return [_service_transport(settings.api), *[check async for check in _keys(settings)]]


def _service_transport(api: ApiSettings) -> Check:
    if is_loopback(api.host):
        return Check("ok", "service address", "this machine only")
    if (api.public_url or "").startswith("https:"):
        return Check("ok", "service address", f"{api.host}, reached as {api.public_url}")
    advice = (
        "Keys and cookies can be read on the way: put a proxy with https in front of it and set "
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
    """Return the names of keys that have not been used for a long time."""
    limit = now - UNUSED_DAYS * _DAY
    return [one.name for one in working if (one.last_used_at or one.created_at) < limit]


async def redis_security(url: str) -> list[Check]:
    """Check a Redis by its URL and, if it answers, by what its user may do.

    Args:
        url: the URL that this installation uses.
    """
    checks = list(_redis_transport(url))
    try:
        return [*checks, *[check async for check in _rights(url)]]
    except LedgerUnavailable as error:
        return [*checks, Check("warn", "redis rights", f"not checked: {error}")]


def _redis_transport(url: str) -> Iterable[Check]:
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
        return False  # a socket, or a problem that the password's check has reported
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
    """Return whether this user may call CONFIG, which no process of fanout does."""
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


def file_security(settings: Settings, obeyed: Iterable[tuple[str, Path, bool]]) -> Iterable[Check]:
    """Check the modes and owners of files and folders that exist.

    Args:
        settings: The settings, with the places of files.
        obeyed: The files that fanout obeys: a name, its path, and whether it holds secrets.
    """
    for name, path, mask in _masks(settings, obeyed):
        yield from _check(name, path, mask)


def modes_to_fix(
    settings: Settings, obeyed: Iterable[tuple[str, Path, bool]]
) -> Iterable[tuple[Path, int]]:
    """Yield the files and folders of this user that are open to others, and the mode each needs.

    A folder that its group shares (with the set-group-ID bit) stays open to that group.

    Args:
        settings: As for `file_security`.
        obeyed: As for `file_security`.
    """
    for _, path, mask in _masks(settings, obeyed):
        try:
            found = path.stat()
        except OSError:
            continue
        kept = stat.S_IRWXG if found.st_mode & stat.S_ISGID else 0
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid == os.geteuid() and mode & mask & ~kept:
            yield path, mode & ~(mask & ~kept)


def _masks(
    settings: Settings, obeyed: Iterable[tuple[str, Path, bool]]
) -> Iterable[tuple[str, Path, int]]:
    """Yield names, paths, and the permissions that nobody else may have."""
    for name, path, is_secret in obeyed:
        yield name, path, _OTHERS_USE if is_secret else _OTHERS_WRITE
    for name, path in (
        ("state folder", settings.state_dir),
        ("embedded.json", settings.state_dir / "embedded.json"),
    ):
        yield name, path, _OTHERS_USE
    blobs = urlsplit(settings.blobs)
    if blobs.scheme == "file":
        yield "blobs", Path(blobs.path), stat.S_IRWXO


def _check(name: str, path: Path, mask: int) -> Iterable[Check]:
    """Check one path, and that nobody else can put another one in its place."""
    try:
        found = path.stat()
        above = path.absolute().parent.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in {os.geteuid(), 0}:
        advice = f"Make it yours or root's: chown {os.geteuid()} {path}"
        yield Check("fail", name, f"{path} belongs to the user {found.st_uid}", advice)
    elif mode & mask:
        advice = f"chmod {mode & ~mask:o} {path}"
        yield Check("fail", name, f"{path}: other users have access ({mode:o})", advice)
    elif above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        advice = f"chmod o-w {path.absolute().parent}"
        yield Check("fail", name, f"{path} is in a folder where anybody may replace it", advice)
    else:
        yield Check("ok", name, f"{path}: mode {mode:o}")


async def security_checks() -> list[Check]:
    """Run every check; none of them changes or attacks anything.

    Raises:
        InvalidSetting: a setting has a value that is not allowed.
        InvalidAgentDefinition: a file in the agents' folder is wrong.
    """
    settings = load_settings()
    try:
        settings = await asyncio.to_thread(attached, settings)
    except JobFailure:
        redis = [Check("ok", "redis", "none is configured or running")]
    else:
        redis = await redis_security(str(settings.redis_url))
    return [
        *redis,
        *await service_security(settings),
        *await _workers(settings),
        *_agents(settings),
        _engine(os.environ.get("DOCKER_HOST", "")),
        *file_security(settings, obeyed(settings)),
        _user(),
    ]


def obeyed(settings: Settings) -> Iterable[tuple[str, Path, bool]]:
    """Yield the files that fanout obeys: a name, its path, and whether it holds secrets."""
    if (found := configuration_file()) is not None:
        yield "configuration folder", found.path.parent, False
        yield "configuration file", found.path, False
        yield ".env", found.env, True
    if settings.agents_dir is not None:
        yield "agents folder", settings.agents_dir, False
        for path in sorted(settings.agents_dir.glob("*.y*ml")):
            yield f"agent {path.stem}", path, False


async def _workers(settings: Settings) -> list[Check]:
    """Check the reported protection of each kind of worker, or the settings if none runs."""
    workers: Sequence[WorkerInfo] = ()
    if settings.redis_url is not None:
        try:
            async with JobClient.from_settings(settings) as client:
                workers = await client.workers()
        except JobFailure as error:
            return [Check("warn", "workers", f"not known: {error}")]
    kinds = {worker.sandbox for worker in workers} or {settings.sandbox.provider}
    if "local" in kinds:
        advice = "Start Docker and set FANOUT_SANDBOX__PROVIDER=docker."
        return [Check("fail", "sandbox", "local: nothing isolates jobs", advice)]
    runtime = settings.sandbox.runtime or "crun if it works, else the engine's default"
    advice = "FANOUT_SANDBOX__RUNTIME=runsc isolates jobs from the host's kernel."
    sandbox = Check(
        "ok", "sandbox", f"docker, runtime: {runtime}", "" if settings.sandbox.runtime else advice
    )
    said = {fact for worker in workers for fact in worker.protection.items()}
    return [sandbox, *(_protection(name, value) for name, value in sorted(said))]


def _protection(name: str, value: str) -> Check:
    """Check one part of the workers' reported protection."""
    advice = _WEAK.get((name, value))
    return Check("ok" if advice is None else "warn", f"worker {name}", value, advice or "")


def _agents(settings: Settings) -> Iterable[Check]:
    open_to = {
        one.name: hosts
        for one in load_agent_definitions(settings.agents_dir).values()
        if isinstance(hosts := one.job_limits().network, tuple)
    }
    if isinstance(settings.limits.network, tuple):
        open_to["agents without a setting of their own"] = settings.limits.network
    if not open_to:
        yield Check("ok", "network", "no agent's commands have network access")
    for name, hosts in open_to.items():
        found = f"{name}: {', '.join(hosts)}"
        if any("*" in host for host in hosts):
            advice = "List the hosts exactly: a job can send what it reads to any of them."
            yield Check("warn", "network", found, advice)
        else:
            yield Check("ok", "network", found)


def _engine(docker_host: str) -> Check:
    parts = urlsplit(docker_host or f"unix://{_DEFAULT_SOCKET}")
    if parts.scheme == "tcp" and not os.environ.get("DOCKER_TLS_VERIFY"):
        here = is_loopback(parts.hostname or "")
        advice = "Anyone who can connect is root on that host: use ssh:// or TLS."
        return Check("warn" if here else "fail", "docker engine", "tcp without TLS", advice)
    if parts.scheme == "unix" and _is_open_to_others(Path(parts.path)):
        advice = f"Anyone on this machine is root through it: chmod o-rwx {parts.path}"
        return Check("fail", "docker engine", "its socket is open to every user", advice)
    return Check("ok", "docker engine", docker_host or "the default socket")


def _is_open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _user() -> Check:
    if os.geteuid() == 0:
        advice = "Use fanout as an unprivileged user."
        return Check("warn", "user", "root", advice)
    return Check("ok", "user", "not root")
