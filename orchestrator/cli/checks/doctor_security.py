"""The checks of `fanout doctor --security`: what an attacker could use."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fanout.orchestrator.cli.checks.doctor_checks import Check
from fanout.orchestrator.cli.checks.security_files import file_security
from fanout.orchestrator.cli.checks.security_redis import is_loopback, redis_security
from fanout.orchestrator.cli.checks.security_service import service_security
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.client.attachment import attached
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.configuration_file import configuration_file
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.worker_info import WorkerInfo

_DEFAULT_SOCKET = "/var/run/docker.sock"

_WEAK = {
    ("user", "root"): "Run workers as an unprivileged user, with fanout's engine proxy.",
    ("engine", "socket"): (
        "The engine's own socket is root on its host: put fanout's engine proxy before it "
        "(docker-compose.yml does)."
    ),
    ("disk", "watch"): (
        "No kernel quota keeps the disk limits of jobs: a job can exceed its own for some seconds."
    ),
    ("users of jobs", "one for all"): (
        "A job can use up what the kernel counts by user, such as inotify: Linux 5.19 or newer and "
        "disks of their own for jobs (FANOUT_SANDBOX__DISK_QUOTA) give each a user."
    ),
}
"""What weakens an installation, and what to do about it."""


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
    """Yield what fanout obeys: a name, its path, and whether it holds secrets."""
    if (found := configuration_file()) is not None:
        yield "configuration folder", found.path.parent, False
        yield "configuration file", found.path, False
        yield ".env", found.env, True
    if settings.agents_dir is not None:
        yield "agents folder", settings.agents_dir, False
        for path in sorted(settings.agents_dir.glob("*.y*ml")):
            yield f"agent {path.stem}", path, False


async def _workers(settings: Settings) -> list[Check]:
    """Check what each kind of worker says of its protection, or the settings where none runs."""
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
    runtime = settings.sandbox.runtime or "crun where it works, else the engine's default"
    advice = "FANOUT_SANDBOX__RUNTIME=runsc isolates jobs from the host's kernel."
    sandbox = Check(
        "ok", "sandbox", f"docker, runtime: {runtime}", "" if settings.sandbox.runtime else advice
    )
    said = {fact for worker in workers for fact in worker.protection.items()}
    return [sandbox, *(_protection(name, value) for name, value in sorted(said))]


def _protection(name: str, value: str) -> Check:
    """Judge one thing that workers say of their protection."""
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
