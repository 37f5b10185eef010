"""Reuse: calls that jobs of earlier scripts have answered, if these were given the same.

What a job is given is all that shapes its answer: the call's arguments, the definitions of its
agent and of those below it, its model, its policies, and the files that it starts from. Each call
that has succeeded is remembered by a digest of that; a script with `reuse` looks there before it
starts a job. What is in the digest of another owner is another digest, and a job that was found is
used only if it is the owner's.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fanout.orchestrator.configuration.agent_definitions import AgentDefinitions
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.scripts.agents import callable_agents
from fanout.orchestrator.scripts.calls import ScriptCall

from ..model_access import model_names
from ..services import JobServices
from .script_jobs import JobCall, ScriptJobs

DIGEST_DIGITS = 40
"""The digits of a digest: nobody finds two calls with the same."""
ONLY_ITS_OWN = frozenset(
    {"id", "root_id", "parent_id", "traceparent", "caller_policy", "labels", "limits"}
    | {"priority", "max_attempts", "idempotency_key", "snapshot", "layers"}
)
"""What a job's specification has that its agent's answer does not depend on, or that is in the
digest in another form."""


class EarlierAnswers:
    """The reuse of one script, during one attempt.

    Args:
        services: What all jobs of this worker share.
        spec: The script's job.
        jobs: The jobs of its calls.
        default_model: The model if neither a job nor its agent's definition names one.
    """

    def __init__(
        self, services: JobServices, spec: JobSpec, jobs: ScriptJobs, default_model: str
    ) -> None:
        self._services = services
        self._spec = spec
        self._jobs = jobs
        self._default_model = default_model
        self._equal: Counter[str] = Counter()

    def digest(self, one: JobCall) -> str:
        """Return the digest of what a call's job is given; empty if it cannot start."""
        try:
            given = self._given(one.call, self._jobs.child(one))
        except InvalidJob:
            return ""
        text = json.dumps(given, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]

    def _given(self, call: ScriptCall, child: JobSpec) -> list[Any]:
        definitions = _definitions_below(child.agent, self._services.definitions)
        own = self._services.definitions[child.agent]
        models = [model_names(child, own, self._default_model)]
        if len(definitions) > 1:
            models.append(child.model or self._default_model)
        return [
            call.kind,
            {name: call.arguments.get(name) for name in ("count", "judge")},
            child.model_dump(mode="json", exclude=set(ONLY_ITS_OWN)),
            child.limits.network,
            definitions,
            models,
            [*child.start.blobs()],
        ]

    def name(self, one: JobCall, digest: str) -> None:
        """Name a call by its digest, and by how many equal ones came before it."""
        if digest:
            self._equal[digest] += 1
            one.digest, one.name = digest, f"{digest}/{self._equal[digest]}"

    async def find(self, calls: Sequence[JobCall]) -> None:
        """Look which of these calls earlier jobs have answered.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        if not self._spec.reuse:
            return
        open_calls = [one for one in calls if one.name and not (one.is_kept or one.refusal)]
        ledger = self._services.ledger
        found = await ledger.answered_calls.find([one.name for one in open_calls])
        owners = dict(zip(found, await ledger.owners_of([one or "" for one in found]), strict=True))
        for one, job_id in zip(open_calls, found, strict=True):
            owner = owners[job_id]
            if job_id and owner and (owner.tenant, owner.owner) == self._owner:
                one.reuses = job_id

    @property
    def _owner(self) -> tuple[str, str]:
        return self._spec.tenant, self._spec.owner

    async def remember(self, one: JobCall) -> None:
        """Remember that a call has succeeded, unless its agent was changed since it was made.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        if one.name and one.digest == self.digest(one):
            await self._services.ledger.answered_calls.remember(one.name, one.winner)


def _definitions_below(agent: str, definitions: AgentDefinitions) -> dict[str, str]:
    """Return the fingerprints of an agent and of all that can be called below it, by name."""
    found: dict[str, str] = {}
    names = [agent]
    while names:
        name = names.pop()
        if name not in found and name in definitions:
            found[name] = definitions[name].digest()
            names += callable_agents(definitions[name], definitions)
    return found
