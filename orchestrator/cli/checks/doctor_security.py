"""What `fanout doctor --security` looks at: the doors that stand open."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.cli.checks.doctor_checks import Check
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import load_agent_definitions
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import attached
from orchestrator.jobs.failures import JobFailure


async def security_checks() -> list[Check]:
    """Every check; none of them changes or attacks anything."""
    settings = load_settings()
    try:
        settings = await asyncio.to_thread(attached, settings)
    except JobFailure:
        redis = [Check(status="ok", name="redis", found="none is configured or running")]
    else:
        redis = list(_redis(str(settings.redis_url)))
    return [
        *redis,
        *await _sandboxes(settings),
        *_network(settings),
        _engine(os.environ.get("DOCKER_HOST", "")),
        *_private_files(settings),
        _user(),
    ]


def _redis(url: str) -> Iterable[Check]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        yield Check(status="ok", name="redis", found="a socket of this machine")
        return
    here = _is_loopback(parts.hostname or "")
    if parts.password:
        yield Check(status="ok", name="redis password", found="set")
    else:
        advice = "Whoever reaches Redis can run jobs: set requirepass or an ACL user."
        yield Check(
            status="warn" if here else "fail", name="redis password", found="none", advice=advice
        )
    if parts.scheme == "rediss" or here:
        yield Check(
            status="ok",
            name="redis transport",
            found="TLS" if parts.scheme == "rediss" else "loopback",
        )
    else:
        advice = "Use rediss://, or a private network that only fanout is on."
        yield Check(
            status="warn",
            name="redis transport",
            found="unencrypted, over a network",
            advice=advice,
        )


async def _sandboxes(settings: Settings) -> list[Check]:
    kinds: set[str] = {settings.sandbox.provider} if settings.sandbox.provider else set()
    if settings.redis_url is not None:
        try:
            async with JobClient.from_settings(settings) as client:
                kinds |= {one.sandbox for one in await client.workers()}
        except JobFailure as error:
            return [Check(status="warn", name="sandbox", found=f"workers cannot be asked: {error}")]
    if "local" in kinds:
        advice = "Start Docker and set FANOUT_SANDBOX__PROVIDER=docker."
        return [
            Check(
                status="fail", name="sandbox", found="local: nothing isolates jobs", advice=advice
            )
        ]
    runtime = settings.sandbox.runtime or "the engine's default"
    advice = (
        ""
        if settings.sandbox.runtime
        else "FANOUT_SANDBOX__RUNTIME=runsc keeps jobs off the kernel."
    )
    return [Check(status="ok", name="sandbox", found=f"docker, runtime: {runtime}", advice=advice)]


def _network(settings: Settings) -> Iterable[Check]:
    open_to = {
        one.name: hosts
        for one in load_agent_definitions(settings.agents_dir).values()
        if isinstance(hosts := one.job_limits().network, tuple)
    }
    if isinstance(settings.limits.network, tuple):
        open_to["every agent without its own"] = settings.limits.network
    if not open_to:
        yield Check(status="ok", name="network", found="no agent's commands have any")
    for name, hosts in open_to.items():
        found = f"{name}: {', '.join(hosts)}"
        if any("*" in host for host in hosts):
            advice = "Name the hosts: what a job reads can leave through any of them."
            yield Check(status="warn", name="network", found=found, advice=advice)
        else:
            yield Check(status="ok", name="network", found=found)


def _engine(docker_host: str) -> Check:
    parts = urlsplit(docker_host)
    encrypted = os.environ.get("DOCKER_TLS_VERIFY")
    if parts.scheme == "tcp" and not encrypted:
        here = _is_loopback(parts.hostname or "")
        advice = "Whoever reaches that port is root there: use ssh:// or TLS."
        return Check(
            status="warn" if here else "fail",
            name="docker engine",
            found="tcp without TLS",
            advice=advice,
        )
    return Check(status="ok", name="docker engine", found=parts.scheme or "the default socket")


def _private_files(settings: Settings) -> Iterable[Check]:
    for name, path, mask in (
        ("state folder", settings.state_dir, 0o022),
        ("embedded.json", settings.state_dir / "embedded.json", 0o077),
        (".env", Path(".env"), 0o077),
    ):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & mask:
            advice = f"chmod {mode & ~mask:o} {path}"
            yield Check(
                status="fail", name=name, found=f"others may use it ({mode:o})", advice=advice
            )
        else:
            yield Check(status="ok", name=name, found=f"mode {mode:o}")


def _user() -> Check:
    if os.geteuid() == 0:
        advice = "Run workers as a user of their own; with the local sandbox jobs would be root."
        return Check(status="warn", name="user", found="root", advice=advice)
    return Check(status="ok", name="user", found="not root")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
