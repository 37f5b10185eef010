"""What jobs have used, by job and by model, and how it is summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .result import Usage
from .understood import read_understood

OF_MODEL = "@"
"""The separator between a field of `Usage` and a model's name, in the names of what is charged."""
MAX_MODEL_CHARACTERS = 100
"""The longest name of a model that is kept; the model's service reports it."""


def charged(used: Mapping[str, float], model: str) -> dict[str, float]:
    """Return what is charged to a job for a reply, in total and for its model.

    Args:
        used: What the reply has used, by the names of `Usage`.
        model: The model that gave it; empty if that is not known.
    """
    name = model[:MAX_MODEL_CHARACTERS]
    return {**used, **{f"{what}{OF_MODEL}{name}": value for what, value in used.items()}}


@dataclass(frozen=True)
class UsageAccount:
    """What a job, or a group of jobs, has used."""

    usage: Usage = field(default_factory=Usage)
    by_model: Mapping[str, Usage] = field(default_factory=dict)

    def plus(self, other: UsageAccount) -> UsageAccount:
        """Return the sum."""
        names = dict.fromkeys([*self.by_model, *other.by_model])
        none = Usage()
        models = {
            name: self.by_model.get(name, none).plus(other.by_model.get(name, none))
            for name in names
        }
        return UsageAccount(self.usage.plus(other.usage), models)

    def minus(self, part: UsageAccount) -> UsageAccount:
        """Return the difference: this account without one of its parts."""
        none = Usage()
        models = {
            name: usage.minus(part.by_model.get(name, none))
            for name, usage in self.by_model.items()
        }
        used = {name: usage for name, usage in models.items() if usage.model_calls}
        return UsageAccount(self.usage.minus(part.usage), used)


def read_account(fields: Mapping[str, str]) -> UsageAccount:
    """Return an account as the ledger stores it; what another release counts besides is ignored."""
    whole: dict[str, str] = {}
    models: dict[str, dict[str, str]] = {}
    for name, value in fields.items():
        what, mark, model = name.partition(OF_MODEL)
        (models.setdefault(model, {}) if mark else whole)[what] = value
    by_model = {model: _usage(used) for model, used in models.items()}
    return UsageAccount(_usage(whole), by_model)


def _usage(stored: Mapping[str, str]) -> Usage:
    usage, _ = read_understood(Usage, stored, "What was used")
    return usage


@dataclass(frozen=True)
class JobAccount:
    """What a job has used, with what is needed to sum it."""

    id: str
    root_id: str
    parent_id: str | None
    agent: str
    submitted_at: float
    """Seconds since the epoch."""
    labels: Mapping[str, str]
    account: UsageAccount
    """The usage of the job and of all jobs below it, as the ledger stores it; see `OwnAccounts`."""


class OwnAccounts:
    """Separates what each job has used itself from what the jobs below it have used.

    It is given the jobs newest first, each after all jobs below it, and keeps a sum for each job
    that is still to come and has jobs below it. What jobs have used whose records do not exist any
    more stays with the jobs above them.
    """

    def __init__(self) -> None:
        self._below: dict[str, UsageAccount] = {}

    def account(self, job: JobAccount, above: Mapping[str, JobAccount]) -> JobAccount:
        """Return a job with what it has used itself, and with the labels of the jobs above it.

        Args:
            job: The job, as the ledger has it.
            above: The jobs above it, by id, as far as their records exist.
        """
        # The account of a tree, under its root id, is that of the job which has this id.
        parent = job.parent_id if job.parent_id and job.parent_id in above else job.root_id
        if parent != job.id:
            self._below[parent] = self._below.get(parent, UsageAccount()).plus(job.account)
        own = job.account.minus(self._below.pop(job.id, UsageAccount()))
        return replace(job, account=own, labels=_all_labels(job, above))


def _all_labels(job: JobAccount, above: Mapping[str, JobAccount]) -> dict[str, str]:
    labels = dict(job.labels)
    while job.parent_id and (parent := above.get(job.parent_id)):
        labels = {**parent.labels, **labels}
        job = parent
    return labels
