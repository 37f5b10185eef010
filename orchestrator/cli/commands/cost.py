"""`cost`: prints the costs by agent, model, day or label."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

from ...jobs.accounts import JobAccount
from ...jobs.result import Usage
from ..terminal import formatting, output
from ..terminal.exit_codes import UsageProblem
from ..terminal.options import AsJson
from ..terminal.session import open_reader


class By(StrEnum):
    """The groups by which costs are summed."""

    AGENT = "agent"
    MODEL = "model"
    DAY = "day"
    LABEL = "label"


@dataclass
class Group:
    """The costs of one agent, model, day or label."""

    jobs: int = 0
    usage: Usage = field(default_factory=Usage)

    def add(self, used: Usage) -> None:
        """Add the usage of one job."""
        self.jobs += 1
        self.usage = self.usage.plus(used)


class Groups:
    """The sums of what jobs have used, in groups.

    Args:
        by: The kind of the groups.
        label: The key of the label whose values are the groups; None: each label is one.
    """

    def __init__(self, by: By, label: str | None) -> None:
        self._by = by
        self._label = label
        self._groups: dict[str, Group] = {}

    def add(self, job: JobAccount) -> None:
        """Add a job's own usage."""
        for name, used in _parts(job, self._by, self._label):
            self._groups.setdefault(name, Group()).add(used)

    def sorted(self) -> dict[str, Group]:
        """Return the groups with the highest costs first; days are in their order."""
        found = self._groups.items()
        if self._by is By.DAY:
            return dict(sorted(found, reverse=True))
        return dict(sorted(found, key=lambda named: (*_weight(named[1].usage), named[0])))


def cost(
    by: Annotated[By, typer.Option(help="What the costs are summed by.")] = By.AGENT,
    label: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="With --by label: by the values of this label."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the costs by agent, model, day or label.

    Prices are the models' list prices. The jobs whose records still exist are summed, running ones
    included. Each job counts with its own calls only, without those of the jobs below it. A day is
    that of the submission, in local time. A job also has the labels of the jobs above it; one with
    several labels counts for each of them. What model calls in progress have reserved of a budget
    is not in the sums.
    """
    if label is not None and by is not By.LABEL:
        raise UsageProblem("--label KEY selects the label: use it with --by label.")
    asyncio.run(_cost(by, label, as_json=as_json))


async def _cost(by: By, label: str | None, *, as_json: bool) -> None:
    summed, total, since = Groups(by, label), Group(), None
    reserved, seen = 0.0, set[str]()
    async with open_reader() as reader:
        async for jobs in reader.accounts():
            for job in jobs:
                summed.add(job)
                total.add(job.account.usage)
                since = min(since or job.submitted_at, job.submitted_at)
            trees = {job.root_id for job in jobs if not job.parent_id} - seen
            reserved += sum(one.reserved_cost_usd for one in await reader.budgets(sorted(trees)))
            seen |= trees
    groups = summed.sorted()
    if as_json:
        found = [_document(group) | {"name": name} for name, group in groups.items()]
        whole = _document(total) | {"since": since, "reserved_cost_usd": reserved}
        output.document({"by": by, "groups": found, "total": whole})
        return
    if not total.jobs:
        output.notice("No job's record exists, so no costs are known.")
        return
    rows = [_row(name, group) for name, group in groups.items()]
    rows.append(_row("total", total))
    header = (by.upper(), "JOBS", "CALLS", "TOKENS IN", "CACHED", "TOKENS OUT", "COST")
    output.table(header, rows, elastic=(0,))
    if reserved:
        output.notice(
            f"{formatting.dollars(reserved)} more is reserved for model calls in progress."
        )
    output.notice(
        f"Sums of the jobs whose records still exist, since {formatting.moment(since)}; records "
        "of ended jobs are kept for FANOUT_RETENTION_SECONDS. Prices are list prices; - is "
        "unknown."
    )


def _parts(job: JobAccount, by: By, label: str | None) -> Iterator[tuple[str, Usage]]:
    """Yield the groups of a job, with its usage in each."""
    usage = job.account.usage
    if by is By.AGENT:
        yield job.agent, usage
    elif by is By.DAY:
        yield formatting.moment(job.submitted_at).partition(" ")[0], usage
    elif by is By.MODEL:
        for model, used in job.account.by_model.items():
            yield model or "(not known)", used
    elif label is not None:
        yield job.labels.get(label, f"(no {label})"), usage
    elif job.labels:
        for key, value in job.labels.items():
            yield f"{key}={value}", usage
    else:
        yield "(no label)", usage


def _weight(usage: Usage) -> tuple[float, int]:
    return -(usage.cost_usd or 0), -(usage.input_tokens + usage.output_tokens)


def _document(group: Group) -> dict[str, Any]:
    return {"jobs": group.jobs, "usage": group.usage.model_dump(mode="json")}


def _row(name: str, group: Group) -> tuple[str, ...]:
    usage = group.usage
    counts = (usage.model_calls, usage.input_tokens, usage.cached_tokens, usage.output_tokens)
    numbers = [f"{count:,}" for count in counts]
    return output.one_line(name), f"{group.jobs:,}", *numbers, formatting.cost(usage)
