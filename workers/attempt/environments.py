"""The prepared environments of jobs: which one a job has, and its set-up if nobody has done it.

The set-up is of the agent's definition, and then of the repository. An environment is identified by
what its result depends on, and by whose it is: files that no key names run in a set-up, so it is
shared neither between tenants and owners nor between repositories, nor with an agent that may reach
other hosts. For the same reason it is made of the files that a person has submitted, not of what
the agent of a job has made of them: a job's tasks have the environment of the first job of their
tree.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fanout.orchestrator.cancellation import uninterrupted
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.configuration.setup_definition import (
    DEFAULT_SECONDS,
    REPOSITORY_FILE,
    RepositorySetup,
    SetupDefinition,
    UnusableSetup,
    read_repository_setup,
)
from fanout.orchestrator.jobs.failures import (
    InvalidJob,
    LedgerUnavailable,
    SetupFailed,
    UnknownJob,
)
from fanout.orchestrator.jobs.spec import JobSpec, Limits, StartFiles
from fanout.orchestrator.tracing.spans import span

from ..agent.activity import JobActivity
from ..agent.services import JobServices
from ..sandbox import AllowedHosts, EnvironmentRequest, SandboxProvider, SetupStep
from .attempt import Attempt
from .credentials import proxy_credentials
from .start_files import Found, StartFile, StartFilesReader

GIT_CONFIGURATION = ".git/config"
"""Where a snapshot has the addresses of a repository's remotes, without users and passwords."""
KEY_VERSION = 1
"""Part of each key: another one makes all environments anew."""
MAX_SETUPS = 200
"""The set-ups of repositories that are remembered."""
SHOWN_CHARACTERS = 200
"""Of a text that `fanout environment ls` shows."""

_REMOTE = re.compile(
    r'^\[remote "([^"\n]{1,300})"\]\n(?:\t(?!url).*\n)*\turl = (\S{1,1000})$', re.MULTILINE
)


@dataclass(frozen=True)
class _Wanted:
    """What a job wants."""

    request: EnvironmentRequest
    shared: str
    """The key of the environment that others may have made of files that a person submitted; used
    if it exists. The same as the request's, if these are the job's."""


class JobEnvironments:
    """Finds and prepares the environments of jobs.

    Args:
        services: What all jobs of this worker share.
        provider: Prepares them.
        default_image: The image of an agent whose definition names none.
    """

    def __init__(
        self, services: JobServices, provider: SandboxProvider, default_image: str
    ) -> None:
        self._services = services
        self._provider = provider
        self._default_image = default_image
        self._reader = StartFilesReader(services.blobs)
        self._setups: OrderedDict[str, RepositorySetup | str] = OrderedDict()
        """Those of repositories by their files' digests, or why a file cannot be used."""

    async def prepared(self, attempt: Attempt, activity: JobActivity) -> str:
        """Return the key of a job's environment, once it is prepared; empty: the job has none.

        The time of the set-up is not the job's.

        Args:
            attempt: The job's attempt.
            activity: Shows what it waits for.

        Raises:
            InvalidJob: It cannot have a set-up here.
            SetupFailed: Its set-up cannot be read, or it failed.
            LedgerUnavailable: Redis does not answer.
            SandboxFailure: See `workers.sandbox`.
        """
        wanted = await self._wanted(attempt.claim.spec)
        if wanted is None:
            return ""
        if (key := await self._prepared_key(wanted)) is not None:
            return key
        environments = self._provider.environments
        assert environments is not None  # noqa: S101 - else nothing is wanted
        activity.begin("environment")
        try:
            with span("prepare environment"), attempt.standing_still():
                await environments.ensure(wanted.request)
        finally:
            activity.end("environment")
            await uninterrupted(self._discount(attempt))
        return wanted.request.key

    async def _prepared_key(self, wanted: _Wanted) -> str | None:
        """Return the key of the environment that a job has, if it is prepared."""
        environments = self._provider.environments
        assert environments is not None  # noqa: S101 - else nothing is wanted
        for key in dict.fromkeys((wanted.shared, wanted.request.key)):
            if await environments.has(key):
                return key
        return None

    async def _discount(self, attempt: Attempt) -> None:
        """Take the time of a set-up from what the job has run, as far as Redis answers."""
        claim, seconds = attempt.claim, attempt.stood_still_seconds
        with suppress(LedgerUnavailable):
            await self._services.ledger.discount(claim.spec.id, claim.token, seconds)

    async def expected(self, spec: JobSpec) -> str | None:
        """Return the key of a job's environment; empty: it has none; None: it is not prepared yet.

        Nothing is fetched for it: another worker may run the job. A workspace that was not read
        here yet is taken for one without a set-up.

        Args:
            spec: A job that is queued.

        Raises:
            JobFailure: As `prepared`.
        """
        if spec.snapshot and not self._reader.has_read(spec.snapshot):
            setup = self._services.definitions[spec.agent].setup
            return None if setup and setup.commands else ""
        wanted = await self._wanted(spec)
        return "" if wanted is None else await self._prepared_key(wanted)

    async def request(self, spec: JobSpec) -> EnvironmentRequest | None:
        """Return what a job's environment is made of; None: it has none.

        Raises:
            JobFailure: As `prepared`.
        """
        wanted = await self._wanted(spec)
        return None if wanted is None else wanted.request

    async def _wanted(self, spec: JobSpec) -> _Wanted | None:
        definition = self._services.definitions[spec.agent]
        setup = definition.setup or SetupDefinition()
        environments = self._provider.environments
        if environments is None:
            if setup.commands:
                raise InvalidJob(
                    f"The set-up of the agent {definition.name} needs Docker sandboxes "
                    "(FANOUT_SANDBOX__PROVIDER=docker): remove its key setup, or use them."
                )
            return None
        if not setup.commands and spec.snapshot is None:
            return None
        submitted = await self._submitted(spec)
        start = spec.start if submitted is None else submitted
        found = await self._reader.read(
            start, frozenset({REPOSITORY_FILE, GIT_CONFIGURATION, *setup.key_files})
        )
        own = await self._repository_setup(found[REPOSITORY_FILE])
        if not setup.commands and not own.commands:
            return None
        if own.key_files:
            found = {**found, **await self._reader.read(start, frozenset(own.key_files))}
        steps = tuple(self._steps(spec, definition, setup, own))
        image = definition.image or self._default_image
        identity = _identity(start, found)
        key_files = {path: found[path] for path in (*setup.key_files, *own.key_files)}
        keyed: list[Any] = [
            KEY_VERSION,
            spec.tenant,
            spec.owner,
            identity,
            await environments.image_id(image),
            [_keyed_step(step) for step in steps],
            {path: file and [file.kind, file.digest] for path, file in key_files.items()},
        ]
        shared = _digest(keyed)
        own_key = shared if submitted is not None else _digest([*keyed, start.layers])
        request = EnvironmentRequest(
            key=own_key,
            image=image,
            limits=self._services.limits_of_agent(spec.agent),
            steps=steps,
            snapshot=start.snapshot,
            layers=start.layers,
            record={
                "agent": definition.name,
                "repository": identity[:SHOWN_CHARACTERS],
                "image": image[:SHOWN_CHARACTERS],
                "tenant": spec.tenant,
            },
        )
        return _Wanted(request, shared)

    def _steps(
        self,
        spec: JobSpec,
        definition: AgentDefinition,
        setup: SetupDefinition,
        own: RepositorySetup,
    ) -> Iterator[SetupStep]:
        """Yield the steps of a set-up: the definition's, then the repository's."""
        seconds = setup.timeout_seconds or DEFAULT_SECONDS
        self._services.ceilings.check(Limits(network=setup.network or "none"))
        if setup.commands:
            AllowedHosts(setup.network)  # checks it
            yield SetupStep(
                source=f"the agent {definition.name}",
                commands=setup.commands,
                timeout_seconds=seconds,
                network=setup.network,
                credentials=proxy_credentials(
                    definition.name, setup.credentials, self._services.secrets
                ),
            )
        if own.commands:
            network = self._services.limits_of(spec).network
            may_reach = {*setup.network, *(network if isinstance(network, tuple) else ())}
            reached = AllowedHosts(tuple(sorted(may_reach))).cut(own.network)
            yield SetupStep(
                source=REPOSITORY_FILE,
                commands=own.commands,
                timeout_seconds=min(own.timeout_seconds or seconds, seconds),
                network=reached,
                denied=tuple(sorted({*own.network}.difference(reached))),
            )

    async def _repository_setup(self, file: StartFile | None) -> RepositorySetup:
        """Return the set-up of the repository's file; one without commands, if there is none.

        Raises:
            SetupFailed: The file cannot be used.
        """
        if file is None:
            return RepositorySetup()
        if file.kind != "file":
            raise SetupFailed(f"{REPOSITORY_FILE} of the workspace cannot be used: it is no file.")
        if file.digest not in self._setups:
            self._setups[file.digest] = await asyncio.to_thread(_read_setup, file.content)
            if len(self._setups) > MAX_SETUPS:
                self._setups.popitem(last=False)
        found = self._setups[file.digest]
        if isinstance(found, str):
            raise SetupFailed(found)
        return found

    async def _submitted(self, spec: JobSpec) -> StartFiles | None:
        """Return the files that a person has submitted for a job; None: that is not known.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        root = spec if spec.parent_id is None else await self._root(spec.root_id)
        return root.start if root is not None and root.continues is None else None

    async def _root(self, root_id: str) -> JobSpec | None:
        try:
            return await self._services.specification_above(root_id)
        except UnknownJob:
            return None


def _read_setup(content: bytes) -> RepositorySetup | str:
    """Return the set-up of a file, or why it cannot be used."""
    try:
        return read_repository_setup(content)
    except UnusableSetup as error:
        return str(error)


def _identity(start: StartFiles, found: Found) -> str:
    """Return what identifies a repository: the address of its remote, or else its snapshot."""
    configuration = found[GIT_CONFIGURATION]
    text = configuration.content.decode(errors="replace") if configuration else ""
    remotes = {match[1]: match[2] for match in _REMOTE.finditer(text)}
    if remotes:
        return remotes.get("origin") or remotes[min(remotes)]
    return f"snapshot {start.snapshot}"


def _keyed_step(step: SetupStep) -> list[Any]:
    credentials = [
        [each.host, each.port, each.secret, each.header, each.methods, each.paths]
        for each in step.credentials
    ]
    return [step.commands, sorted(step.network), credentials]


def _digest(keyed: list[Any]) -> str:
    return hashlib.sha256(json.dumps(keyed, sort_keys=True).encode()).hexdigest()
