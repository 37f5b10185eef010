"""Resolves shortened ids: every command accepts a unique prefix of an id, or its unique end."""

from __future__ import annotations

from collections.abc import Sequence

from fanout.orchestrator.cli.terminal.formatting import ELLIPSIS
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.failures import InvalidJob, UnknownApproval, UnknownJob

MAX_COUNTED = 100
"""Of how many candidates an ambiguous id's error says the number: nobody looks through more."""
MAX_NAMED = 5
"""How many candidates an ambiguous id's error names."""


async def resolve_job(reader: JobReader, prefix: str) -> str:
    """Return the id of the job whose id begins with `prefix`, or of the only one that ends with it.

    Raises:
        UnknownJob: No id has this prefix or this end.
        InvalidJob: Several do.
        LedgerUnavailable: Redis does not answer.
    """
    matches = await reader.ids_beginning_with(prefix, MAX_COUNTED)
    part = "prefix"
    if not matches:
        matches = await reader.ids_ending_with(prefix.removeprefix(ELLIPSIS), MAX_COUNTED)
        part = "end"
    if not matches:
        raise UnknownJob(f"There is no job {prefix}.")
    if len(matches) > 1:
        count = str(len(matches)) if len(matches) <= MAX_COUNTED else f"more than {MAX_COUNTED}"
        raise InvalidJob(
            f"{prefix} is ambiguous: {count} ids have this {part}, for example {matches[0]}."
        )
    return matches[0]


async def resolve_jobs(reader: JobReader, prefixes: Sequence[str]) -> list[str]:
    """Return the ids of jobs, in order, each once.

    Raises:
        UnknownJob, InvalidJob, LedgerUnavailable: As `resolve_job`.
    """
    ids = [await resolve_job(reader, prefix) for prefix in prefixes]
    return list(dict.fromkeys(ids))


async def resolve_tree(reader: JobReader, prefix: str) -> str:
    """Return the root id of a tree, by its own id or that of one of its jobs.

    Raises:
        UnknownJob, InvalidJob, LedgerUnavailable: As `resolve_job`.
    """
    try:
        return await reader.root(prefix)
    except UnknownJob:
        return await reader.root(await resolve_job(reader, prefix))


async def resolve_approval(reader: JobReader, prefix: str) -> str:
    """Return the id of an approval: of the one whose id begins so, or of a job's only one.

    Raises:
        UnknownApproval: Several match, or no waiting approval does.
        LedgerUnavailable: Redis does not answer.
    """
    waiting = await reader.approvals() if prefix else []
    own = [approval for approval in waiting if approval.id.startswith(prefix)]
    found = own or [approval for approval in waiting if approval.job_id.startswith(prefix)]
    if len(found) == 1:
        return found[0].id
    if found:
        named = ", ".join(f"{approval.id} ({approval.tool})" for approval in found[:MAX_NAMED])
        raise UnknownApproval(f"{prefix} matches {len(found)} approvals, so name one: {named}.")
    if await reader.knows_approval(prefix):
        return prefix  # the answer reports what became of it
    raise UnknownApproval(
        f"No approval waits under {prefix!r}; `fanout approvals` lists those that do."
    )
