"""Shortened ids: every command takes the beginning of an id while it is unique."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.client import JobClient
from orchestrator.jobs.failures import InvalidJob, UnknownApproval, UnknownJob

MAX_NAMED = 5
"""How many candidates an ambiguous id's error names."""


async def resolve_job(client: JobClient, prefix: str) -> str:
    """Return the id of the job whose id begins with `prefix`.

    Raises:
        UnknownJob: No id begins so.
        InvalidJob: Several do.
        LedgerUnavailable: Redis does not answer.
    """
    matches = await client.ids(prefix) if prefix else []
    if not matches:
        raise UnknownJob(f"There is no job {prefix}.")
    if len(matches) > 1:
        raise InvalidJob(
            f"{prefix} is ambiguous: {len(matches)} ids begin so, {matches[0]} for one."
        )
    return matches[0]


async def resolve_jobs(client: JobClient, prefixes: Sequence[str]) -> list[str]:
    """Return the ids of jobs, in order, each once.

    Raises:
        UnknownJob, InvalidJob, LedgerUnavailable: As `resolve_job`.
    """
    ids = [await resolve_job(client, prefix) for prefix in prefixes]
    return list(dict.fromkeys(ids))


async def resolve_tree(client: JobClient, prefix: str) -> str:
    """Return an id that `JobClient.tree` takes: of a tree without a root job, or of a job.

    Raises:
        UnknownJob, InvalidJob, LedgerUnavailable: As `resolve_job`.
    """
    try:
        await client.tree(prefix)
    except UnknownJob:
        return await resolve_job(client, prefix)
    return prefix


async def resolve_approval(client: JobClient, prefix: str) -> str:
    """Return the id of an approval: of the one whose id begins so, or of a job's only one.

    Raises:
        UnknownApproval: Several match, or no waiting approval does.
        LedgerUnavailable: Redis does not answer.
    """
    waiting = await client.approvals() if prefix else []
    own = [approval for approval in waiting if approval.id.startswith(prefix)]
    found = own or [approval for approval in waiting if approval.job_id.startswith(prefix)]
    if len(found) == 1:
        return found[0].id
    if found:
        named = ", ".join(f"{approval.id} ({approval.tool})" for approval in found[:MAX_NAMED])
        raise UnknownApproval(f"{prefix} matches {len(found)} approvals, so name one: {named}.")
    if await client.knows_approval(prefix):
        return prefix  # the answer reports what became of it
    raise UnknownApproval(
        f"No approval waits under {prefix!r}; `fanout approvals` lists those that do."
    )
