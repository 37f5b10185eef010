"""Resolves shortened ids: every command accepts a unique prefix of an id, or its unique end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fanout.orchestrator.cli.terminal import formatting, output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.failures import InvalidJob, UnknownApproval, UnknownJob

MAX_COUNTED = 100
"""Of how many candidates an ambiguous id's error says the number: nobody looks through more."""
MAX_NAMED = 5
"""How many candidates an ambiguous id's error names."""
_ELLIPSIS = "…"
"""Before the end of an id in what earlier releases printed."""


def last_run(folder: Path) -> str:
    """Return the id of the last run of a folder: it is meant where no id is given.

    Raises:
        UsageProblem: `fanout run` was never used in this folder, or in one above it.
    """
    from fanout.orchestrator.configuration.settings import load_settings  # noqa: PLC0415 - seldom
    from fanout.orchestrator.landing.runs import Runs  # noqa: PLC0415 - seldom

    found = Runs(load_settings().state_dir).last_of(folder.resolve())
    if found is None:
        raise UsageProblem(
            f"No run was started in {folder.resolve()}, so give the ID of a job. To list them: "
            "fanout ps --all"
        )
    return found


def job_or_last_run(prefix: str | None) -> str:
    """Return what a person named, or the last run of this folder, which is said on stderr.

    Raises:
        UsageProblem: As `last_run`.
    """
    if prefix is not None:
        return prefix
    found = last_run(Path())
    output.notice(f"The last run of this folder: {formatting.short_id(found)}")
    return found


async def resolve_job(reader: JobReader, prefix: str) -> str:
    """Return the id of the job whose id begins with `prefix`, or of the only one that ends with it.

    Raises:
        UnknownJob: No id has this prefix or this end.
        InvalidJob: Several do.
        LedgerUnavailable: Redis does not answer.
    """
    matches = await reader.ids_beginning_with(prefix, MAX_COUNTED)
    if not matches:
        matches = await reader.ids_ending_with(prefix.removeprefix(_ELLIPSIS), MAX_COUNTED)
    if not matches:
        raise UnknownJob(f"There is no job {prefix}. To list the jobs: fanout ps --all")
    if len(matches) > 1:
        raise InvalidJob(_ambiguous(prefix, sorted(matches)))
    return matches[0]


def _ambiguous(prefix: str, matches: Sequence[str]) -> str:
    """Return the refusal of an id that several jobs have, with the ids that tell them apart."""
    count = str(len(matches)) if len(matches) <= MAX_COUNTED else f"more than {MAX_COUNTED}"
    named = ", ".join(formatting.short_id(job_id) for job_id in matches[:MAX_NAMED])
    more = ", …" if len(matches) > MAX_NAMED else ""
    return f"{prefix} may mean {count} jobs, so name one: {named}{more}."


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
    found = own or [
        approval
        for approval in waiting
        if approval.job_id.startswith(prefix) or approval.job_id.endswith(prefix)
    ]
    if len(found) == 1:
        return found[0].id
    if found:
        named = ", ".join(
            f"{formatting.short_approval(approval.id)} ({approval.tool})"
            for approval in found[:MAX_NAMED]
        )
        raise UnknownApproval(f"{prefix} may mean {len(found)} approvals, so name one: {named}.")
    if await reader.knows_approval(prefix):
        return prefix  # the answer reports what became of it
    raise UnknownApproval(
        f"No approval waits under {prefix!r}; `fanout approvals` lists those that do."
    )
