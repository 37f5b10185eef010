"""Checks a job's models against the models of its worker before it is submitted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..configuration.agent_definitions import AgentDefinitions
from ..configuration.configuration_file import export_keys
from ..configuration.settings import Settings
from ..jobs.failures import InvalidJob
from ..jobs.worker_info import WorkerInfo
from .attachment import state_folder

REMEDY = "Set it up: fanout init"


def is_worker_of_here(settings: Settings) -> bool:
    """Return whether jobs run on the worker of this machine's state folder.

    That worker has the environment and the configuration of its starter; those of a worker
    elsewhere are unknown here.
    """
    if settings.redis_url is None:
        return True
    record = state_folder(settings).read_record()
    return record is not None and record.redis_url == settings.redis_url


def check_models(
    settings: Settings, definitions: AgentDefinitions, jobs: Iterable[tuple[str, str | None]]
) -> None:
    """Check that all agents of the jobs' trees have a model that can be asked from here.

    Nothing is sent to a model. It may wait a second for a server on this machine. Jobs whose worker
    is elsewhere are not checked.

    Args:
        settings: The settings of this process.
        definitions: The agents.
        jobs: The agent of each job, and the model that the job names, if it does.

    Raises:
        InvalidJob: A model cannot be reached; the text ends with the command that sets it up.
        UnknownAgent: An agent does not exist.
    """
    if not is_worker_of_here(settings):
        return
    export_keys()  # the `.env` may have changed since
    checked: set[str] = set()
    for root, named in jobs:
        for agent, model in _models(definitions, root, named or "", settings.model):
            for name in _names(model):
                if name not in checked and (fault := _fault(name)):
                    whose = "" if agent == root else f"Agent {agent}: "
                    remedy = "" if "`pip install" in fault else f" {REMEDY}"
                    raise InvalidJob(f"{whose}{fault}{remedy}")
                checked.add(name)


def check_models_of_workers(
    workers: Collection[WorkerInfo],
    definitions: AgentDefinitions,
    jobs: Iterable[tuple[str, str | None]],
) -> None:
    """Check that the model of each agent of the jobs' trees can be asked by a worker.

    The workers' reports, which are some seconds old, are trusted. A model is not checked while no
    worker has its agent, or if one does not report what it can reach.

    Args:
        workers: The living workers.
        definitions: The agents.
        jobs: As for `check_models`.

    Raises:
        InvalidJob: No worker can reach a model.
        UnknownAgent: An agent does not exist.
    """
    workers = [worker for worker in workers if not worker.draining]
    for root, named in jobs:
        for agent, model in _models(definitions, root, named or "", ""):
            able = [worker for worker in workers if worker.knows(agent)]
            digest = None if agent == root and named else definitions[agent].digest()
            faults = [_find_fault(worker, agent, digest, model) for worker in able]
            if faults and all(faults):
                its = "this job's" if agent == root else f"agent {agent}'s"
                raise InvalidJob(f"No worker can ask {its} model: {faults[0]}")


def _find_fault(worker: WorkerInfo, agent: str, digest: str | None, model: str) -> str:
    """Return why a worker cannot ask an agent's model; empty if it can, or does not report it.

    Args:
        worker: The worker.
        agent: The agent's name.
        digest: The fingerprint of the definition that names the model; None: no definition does.
        model: The model's name; empty: the worker's default.
    """
    from ..deep_agent import service_name  # noqa: PLC0415 - few submit

    if worker.model_faults is None or digest not in {None, worker.definitions.get(agent)}:
        return ""
    for name in _names(model or worker.model):
        if fault := worker.model_faults.get(service_name(name)):
            return f"{name} {fault}"
    return ""


def _names(model: str) -> list[str]:
    """Return the names of a model and of its fallbacks."""
    return [name for part in model.split(",") if (name := part.strip())]


def _models(
    definitions: AgentDefinitions, root: str, named: str, default: str
) -> Iterator[tuple[str, str]]:
    """Yield the agents of a tree, as far as definitions name them, with their models.

    A model that a job names applies to its agent, and to all agents below it without their own
    model.
    """
    found = [root]
    for agent in found:
        definition = definitions[agent]
        if definition.has_own_model:
            continue
        own = definition.model or named or default
        yield agent, named if agent == root and named else own
        found += [name for name in definition.subagents if name not in found]


def _fault(name: str) -> str | None:
    from ..deep_agent import access_fault, service_name  # noqa: PLC0415 - few submit

    if name.startswith("scripted:"):
        return None
    if "/" in name or service_name(name):
        return access_fault(name)
    # Only ADK's registry knows the rest; loading it takes a second.
    from ..deep_agent import ModelNotConfigured, resolve_model  # noqa: PLC0415 - slow

    try:
        resolve_model(name, agent_name="check")
    except ModelNotConfigured as unknown:
        return str(unknown)
    return access_fault(name)
