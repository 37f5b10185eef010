"""Graphs of jobs: which jobs of a submission run after which.

A job's `after` has ids of jobs, and names of jobs of the same submission (`resolved` replaces these
by ids). The ledger decides when a job runs; here is what can be said before anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush

from .failures import InvalidJob
from .spec import JobSpec

MAX_EDGES = 200_000
"""The most entries of all `after` of a submission: Redis takes some 150 bytes for each."""
SHOWN_OF_A_CYCLE = 6
"""The most jobs of a cycle that a refusal names."""


@dataclass(frozen=True)
class GraphProblem:
    """Why a submission is no graph."""

    position: int
    """That of the job, from 0."""
    text: str


class InvalidGraph(InvalidJob):
    """The jobs of a submission cannot run after each other as they say.

    Args:
        problems: What is wrong; not empty.
        count: The number of jobs.
    """

    def __init__(self, problems: Sequence[GraphProblem], count: int) -> None:
        self.problems = problems
        first = problems[0]
        which = f"Job {first.position + 1} of the list: " if count > 1 else ""
        super().__init__(f"{which}{first.text}.")


def resolved(specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Return the jobs of a submission with ids in place of names in `after`.

    Jobs that come after each other, and are in trees of their own, become one tree, so that those
    on the longest path run first. Its id is that of the first of them.

    Raises:
        InvalidGraph: A name is used twice, jobs wait for each other, or there are too many entries.
    """
    if not any(spec.after or spec.name for spec in specs):
        return list(specs)
    ids, problems = _named(specs)
    with_ids = [
        spec.model_copy(
            update={"after": tuple(dict.fromkeys(ids.get(one, one) for one in spec.after))}
        )
        for spec in specs
    ]
    problems += _too_many(with_ids) or _cycle(with_ids)
    if problems:
        raise InvalidGraph(problems, len(specs))
    return _one_tree_each(with_ids)


def unknown_job(name: str, position: int) -> GraphProblem:
    """Return the problem of a job after one that does not exist.

    Args:
        name: What `after` says.
        position: The job's.
    """
    return GraphProblem(
        position, f"after: there is no job {name}, and none of the list has this name"
    )


def others(specs: Iterable[JobSpec]) -> dict[str, int]:
    """Return what is in `after` and no job of the submission, with its first job's position."""
    own = {name for spec in specs for name in (spec.id, spec.name)}
    found: dict[str, int] = {}
    for position, spec in enumerate(specs):
        for one in spec.after:
            if one not in own:
                found.setdefault(one, position)
    return found


def specs_in_order(specs: Sequence[JobSpec]) -> tuple[list[JobSpec], list[int]]:
    """Return jobs so that each is behind those of `after`, otherwise in their order.

    Returns:
        The jobs, and for each of `specs` its position among them.

    Raises:
        InvalidGraph: They wait for each other.
    """
    if not any(spec.after for spec in specs):
        return list(specs), list(range(len(specs)))
    before = _predecessors(specs)
    missing = [len(some) for some in before]
    following: list[list[int]] = [[] for _ in specs]
    for position, some in enumerate(before):
        for one in some:
            following[one].append(position)
    free = [position for position, count in enumerate(missing) if count == 0]
    heapify(free)
    order: list[int] = []
    while free:
        order.append(position := heappop(free))
        for one in following[position]:
            missing[one] -= 1
            if missing[one] == 0:
                heappush(free, one)
    if len(order) < len(specs):
        raise InvalidGraph(_cycle(specs), len(specs))
    return [specs[at] for at in order], sorted(range(len(order)), key=order.__getitem__)


def longest_paths(ordered: Sequence[JobSpec]) -> dict[str, int]:
    """Return for each job how many jobs are on the longest path of those that come after it.

    How long a job will take is not known: each counts the same.

    Args:
        ordered: The jobs, each behind those of its `after`.
    """
    paths = {spec.id: 0 for spec in ordered}
    for spec in reversed(ordered):
        for before in spec.after:
            if before in paths:
                paths[before] = max(paths[before], paths[spec.id] + 1)
    return paths


def _named(specs: Sequence[JobSpec]) -> tuple[dict[str, str], list[GraphProblem]]:
    """Return the ids of jobs by name, and the names that are used twice."""
    first: dict[str, int] = {}
    problems = []
    for position, spec in enumerate(specs):
        if spec.name and first.setdefault(spec.name, position) != position:
            problems.append(GraphProblem(position, f"the name {spec.name} is already used"))
    return {name: specs[at].id for name, at in first.items()}, problems


def _too_many(specs: Sequence[JobSpec]) -> list[GraphProblem]:
    count = 0
    for position, spec in enumerate(specs):
        count += len(spec.after)
        if count > MAX_EDGES:
            return [
                GraphProblem(
                    position,
                    f"after: all of them together may have {MAX_EDGES:,} entries; put a job between "
                    "the many before and the many behind it",
                )
            ]
    return []


def _cycle(specs: Sequence[JobSpec]) -> list[GraphProblem]:
    sorter = TopologicalSorter(dict(enumerate(_predecessors(specs))))
    try:
        sorter.prepare()
    except CycleError as error:
        *cycle, _ = error.args[1]  # each is before the next one, and the last one is the first
        first = cycle.index(min(cycle))
        names = [specs[at].name or specs[at].id for at in cycle[first:] + cycle[:first]]
        more = ["…"] if len(names) > SHOWN_OF_A_CYCLE else []
        shown = " → ".join([*names[:SHOWN_OF_A_CYCLE], *more, names[0]])
        return [GraphProblem(min(cycle), f"after: it would wait for itself ({shown})")]
    return []


def _predecessors(specs: Sequence[JobSpec]) -> list[set[int]]:
    """Return the positions of the jobs of the submission that are in the `after` of each."""
    position: Mapping[str, int] = {spec.id: at for at, spec in reversed(list(enumerate(specs)))}
    return [{position[one] for one in spec.after if one in position} for spec in specs]


def _one_tree_each(specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Return jobs of which those that are linked, and are roots, have the first one's tree."""
    leader = list(range(len(specs)))

    def lead(position: int) -> int:
        while leader[position] != position:
            leader[position] = leader[leader[position]]
            position = leader[position]
        return position

    for position, some in enumerate(_predecessors(specs)):
        for one in some:
            first, second = sorted((lead(position), lead(one)))
            leader[second] = first
    return [
        spec.model_copy(update={"root_id": specs[lead(position)].root_id})
        if spec.root_id == spec.id
        else spec
        for position, spec in enumerate(specs)
    ]
