"""The checks of `fanout doctor --security`: what an attacker could use."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import stat
from collections.abc import Iterable
from urllib.parse import urlsplit

from orchestrator.cli.checks.doctor_checks import Check
from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import load_agent_definitions
from orchestrator.configuration.configuration_file import configuration_file
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import attached
from orchestrator.jobs.failures import JobFailure


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
        yield Check("ok", "redis", "a socket of this machine")
        return
    here = _is_loopback(parts.hostname or "")
    if parts.password:
        yield Check("ok", "redis password", "set")
    else:
        advice = "Anyone who can connect can run jobs: set requirepass or an ACL user."
        yield Check("warn" if here else "fail", "redis password", "none", advice)
    if parts.scheme == "rediss" or here:
        yield Check("ok", "redis transport", "TLS" if parts.scheme == "rediss" else "loopback")
    else:
        advice = "Use rediss://, or a private network that only fanout uses."
        yield Check("warn", "redis transport", "unencrypted, over a network", advice)


async def _sandboxes(settings: Settings) -> list[Check]:
    kinds: set[str] = {settings.sandbox.provider} if settings.sandbox.provider else set()
    if settings.redis_url is not None:
        try:
            async with JobClient.from_settings(settings) as client:
                kinds |= {one.sandbox for one in await client.workers()}
        except JobFailure as error:
            return [Check("warn", "sandbox", f"the workers are not known: {error}")]
    if "local" in kinds:
        advice = "Start Docker and set FANOUT_SANDBOX__PROVIDER=docker."
        return [Check("fail", "sandbox", "local: nothing isolates jobs", advice)]
    runtime = settings.sandbox.runtime or "the engine's default"
    advice = (
        ""
        if settings.sandbox.runtime
        else "FANOUT_SANDBOX__RUNTIME=runsc isolates jobs from the host's kernel."
    )
    return [Check("ok", "sandbox", f"docker, runtime: {runtime}", advice)]


def _network(settings: Settings) -> Iterable[Check]:
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
    parts = urlsplit(docker_host)
    encrypted = os.environ.get("DOCKER_TLS_VERIFY")
    if parts.scheme == "tcp" and not encrypted:
        here = _is_loopback(parts.hostname or "")
        advice = "Anyone who can connect is root on that host: use ssh:// or TLS."
        return Check("warn" if here else "fail", "docker engine", "tcp without TLS", advice)
    return Check("ok", "docker engine", parts.scheme or "the default socket")


def _private_files(settings: Settings) -> Iterable[Check]:
    files = [
        ("state folder", settings.state_dir, 0o022),
        ("embedded.json", settings.state_dir / "embedded.json", 0o077),
    ]
    if (found := configuration_file()) is not None:
        files += [
            ("configuration folder", found.path.parent, 0o022),
            ("configuration file", found.path, 0o022),
            (".env", found.env, 0o077),
            ("agents", found.agents, 0o022),
        ]
    for name, path, mask in files:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & mask:
            advice = f"chmod {mode & ~mask:o} {path}"
            yield Check("fail", name, f"other users have access ({mode:o})", advice)
        else:
            yield Check("ok", name, f"mode {mode:o}")


def _user() -> Check:
    if os.geteuid() == 0:
        advice = (
            "Run workers as an unprivileged user; with the local sandbox jobs would run as root."
        )
        return Check("warn", "user", "root", advice)
    return Check("ok", "user", "not root")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
