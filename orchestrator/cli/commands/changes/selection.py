"""The jobs that a person names: by ids, with their trees, or by labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem, WorkFailed
from fanout.orchestrator.cli.terminal.formatting import short_id
from fanout.orchestrator.cli.terminal.ids import resolve_jobs, resolve_tree
from fanout.orchestrator.cli.terminal.options import parse_labels
from fanout.orchestrator.cli.terminal.session import ended_result
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord

MOST_LABELLED = 100_000
"""Jobs with a label: more than a Redis of usual size stores."""


@dataclass(frozen=True)
class Wanted:
    """What a person named."""

    prefixes: tuple[str, ...]
    labels: Mapping[str, str]
    tree: bool

    @property
    def is_many(self) -> bool:
        """Whether it may be several jobs, so that each is named in what is printed."""
        return len(self.prefixes) != 1 or self.tree


@dataclass(frozen=True)
class Selected:
    """The jobs that were meant, in order."""

    ids: tuple[str, ...]
    results: tuple[JobResult, ...] = ()
    left_out: tuple[JobResult, ...] = ()
    """Those of a tree or with a label that did not succeed."""

    def say_left_out(self) -> None:
        """Tell a person which jobs are left out."""
        for result in self.left_out:
            output.notice(f"Job {short_id(result.job_id)} did not succeed, so it is left out.")


def wanted(prefixes: Sequence[str] | None, labels: Sequence[str] | None, *, tree: bool) -> Wanted:
    """Return what the options of a command mean.

    Raises:
        UsageProblem: Nothing is named, or ids and labels exclude each other.
    """
    parsed = parse_labels(labels)
    if not prefixes and not parsed:
        raise UsageProblem("Say which jobs: by ID, or by --label KEY=VALUE.")
    if tree and not prefixes:
        raise UsageProblem("--tree needs the ID of a job of the tree.")
    if prefixes and parsed and not tree:
        raise UsageProblem(
            "IDs name jobs, --label finds them: leave one out, or add --tree for the jobs of a "
            "tree that have the label."
        )
    return Wanted(tuple(prefixes or ()), parsed, tree)


async def selected(client: JobClient, asked: Wanted, *, ended: bool = True) -> Selected:
    """Return the jobs that are meant, and their results.

    Of a tree and of a label these are the jobs that succeeded, in the order of their submission,
    without those whose changes are in another one's already: a child's are in its parent's.

    Args:
        client: The connected client.
        asked: What a person named.
        ended: Whether all of them have to have ended.

    Raises:
        UnknownJob, InvalidJob: An id is unknown or ambiguous, or no job has the labels.
        WorkFailed: One has not ended.
    """
    if not (asked.tree or asked.labels):
        ids = await resolve_jobs(client, asked.prefixes)
        results = [await ended_result(client, job_id) for job_id in ids] if ended else []
        return Selected(tuple(ids), tuple(results))
    records = await _found(client, asked)
    if not records:
        raise WorkFailed("No job has these labels.")
    ids = [record.id for record in records]
    if not ended:
        return Selected(tuple(ids))
    results = [await ended_result(client, job_id) for job_id in ids]
    succeeded = tuple(result for result in results if result.success)
    failed = tuple(result for result in results if not result.success)
    return Selected(tuple(ids), succeeded, failed)


async def _found(client: JobClient, asked: Wanted) -> list[JobRecord]:
    """Return the jobs of the trees, or of all trees, with the labels; nobody's children of them."""
    matching: Iterable[JobRecord] = ()
    if asked.prefixes:
        roots = {await resolve_tree(client, prefix): None for prefix in asked.prefixes}
    else:
        matching = await client.list(labels=asked.labels, limit=MOST_LABELLED)
        roots = {record.root_id: None for record in matching if record.parent_id}
    trees = [await client.tree(root) for root in roots]
    known = {record.id: record for tree in trees for record in tree}
    if asked.prefixes:
        matching = [one for one in known.values() if asked.labels.items() <= one.labels.items()]
    chosen = {record.id for record in matching}
    return [record for record in matching if chosen.isdisjoint(_above(record, known))]


def _above(record: JobRecord, known: Mapping[str, JobRecord]) -> Iterable[str]:
    """Yield the ids of a job's parents."""
    parent = record.parent_id
    while parent:
        yield parent
        above = known.get(parent)
        parent = above.parent_id if above else None
