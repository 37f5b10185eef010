"""What workers count for operators: attempts, sandboxes, verifications, requests to models.

A worker counts in memory (`Totals`), and adds what it has counted every few seconds to the totals
of the installation (`store/fleet_totals.py`), which the service's `/metrics` shows. So they outlive
a worker, a reader reads one hash however many workers there are, and no worker has an open port.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from ..valid_text import clean_text
from .result import Usage

MODEL = "model"
"""The label whose values are not known in advance: a job may name any model."""
OTHER = "other"
"""The common value of a label for all values beyond the limit."""
MAX_MODEL_CHARACTERS = 100
"""The longest name of a model in a label; a job's account has the same limit."""
SUM = "sum"
"""The value that replaces a histogram's bound for the sum of all observations."""
INFINITY = "+Inf"
"""The bound for values larger than a histogram's last bound."""

Label = tuple[str, ...]
"""The name of a series and the values of its labels; of a histogram, a bound or `SUM` as well."""


@dataclass(frozen=True)
class Series:
    """A counter, or with bounds a histogram.

    Its name is that in `/metrics`, without the `_total` of a counter.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """The bounds of a histogram; empty: a counter."""
    known: tuple[Label, ...] = ((),)
    """The labels' values that are shown as 0 before the first one is counted, so that a rule sees
    the first increase."""


SHORT_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds of a sandbox's start, which takes half a second or has to wait for an image."""
LONG_BOUNDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Seconds of a verification, which runs a test suite."""
DELAY_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Seconds of a loop's delay: a healthy loop stays below 0.05, the watchdog reports 1."""

ENDS = ("succeeded", "failed", "timed_out", "cancelled", "waiting", "repeated")
"""How an attempt ends: with the end of its job, with a wait for a person or for tasks, or with a
repetition."""

ATTEMPTS_STARTED = Series("fanout_attempts_started", "Attempts that workers have begun.")
ATTEMPTS_ENDED = Series(
    "fanout_attempts_ended",
    "Attempts that have ended, by outcome: the state of the job, waiting (for a decision or for "
    "tasks), or repeated (another attempt follows).",
    ("outcome",),
    known=tuple((end,) for end in ENDS),
)
ATTEMPT_FAILURES = Series(
    "fanout_attempt_failures",
    "Attempts that did not succeed, by the type of the failure, as in a job's error.",
    ("kind",),
    known=(),
)
LEASES_LOST = Series(
    "fanout_leases_lost",
    "Leases that were lost: lapsed (a reaper took the job from a worker that was silent), "
    "not_renewed (a worker stopped its attempt), taken (it found that another has the job).",
    ("reason",),
    known=(("lapsed",), ("not_renewed",), ("taken",)),
)
SANDBOX_STARTS = Series(
    "fanout_sandbox_start_seconds",
    "From the wish for a sandbox until it has the job's files, by result: opened, failed.",
    ("result",),
    SHORT_BOUNDS,
    known=(("opened",), ("failed",)),
)
SANDBOX_FAILURES = Series(
    "fanout_sandbox_failures",
    "Sandboxes that could not be opened, by the type of the failure.",
    ("kind",),
    known=(),
)
VERIFICATIONS = Series(
    "fanout_verification_seconds",
    "Duration of verifications, by result: passed, failed.",
    ("result",),
    LONG_BOUNDS,
    known=(("passed",), ("failed",)),
)
MODEL_REQUESTS = Series(
    "fanout_model_calls", "Requests sent to models, repeated ones too.", (MODEL,), known=()
)
MODEL_ERRORS = Series(
    "fanout_model_errors",
    "Requests to models that failed, by the HTTP status of the answer: 429 is a rate limit, none "
    "an answer without one.",
    (MODEL, "status"),
    known=(),
)
MODEL_USAGE = Series(
    "fanout_model_tokens",
    "Tokens of models by kind: input (cached ones too), output, cached.",
    (MODEL, "kind"),
    known=(),
)
MODEL_COST = Series(
    "fanout_model_cost_dollars",
    "Cost of models in US dollars, where their prices are known.",
    (MODEL,),
    known=(),
)
LOOP_DELAYS = Series(
    "fanout_worker_loop_delay_seconds",
    "How late the loops of workers run what is due.",
    bounds=DELAY_BOUNDS,
)
SERIES = {
    one.name: one
    for one in (
        *(ATTEMPTS_STARTED, ATTEMPTS_ENDED, ATTEMPT_FAILURES, LEASES_LOST),
        *(SANDBOX_STARTS, SANDBOX_FAILURES, VERIFICATIONS),
        *(MODEL_REQUESTS, MODEL_ERRORS, MODEL_USAGE, MODEL_COST, LOOP_DELAYS),
    )
}
"""All series by name."""

_STATUSES = {"400", "401", "403", "404", "408", "413", "422", "429", "500", "502", "503", "504"}
"""Those with a meaning for an operator; others are counted by their class."""


class Totals:
    """What one process has counted since it was last taken; not for several threads."""

    def __init__(self) -> None:
        self._counted: dict[Label, float] = {}

    def add(self, series: Series, *labels: str, by: float = 1) -> None:
        """Add to a counter.

        Args:
            series: The counter.
            labels: The values of its labels, in their order.
            by: What is added.
        """
        self._add((series.name, *labels), by)

    def observe(self, series: Series, seconds: float, *labels: str) -> None:
        """Add a value to a histogram.

        Args:
            series: The histogram.
            seconds: The value.
            labels: The values of its labels, in their order.
        """
        at = bisect_left(series.bounds, seconds)
        bound = str(series.bounds[at]) if at < len(series.bounds) else INFINITY
        self._add((series.name, *labels, bound), 1)
        self._add((series.name, *labels, SUM), seconds)

    def model_asked(self, model: str) -> None:
        """Count a request to a model."""
        self.add(MODEL_REQUESTS, _short(model))

    def model_failed(self, model: str, status: str) -> None:
        """Count a request to a model that failed.

        Args:
            model: The model.
            status: The HTTP status of the answer, or words that say why it was none.
        """
        self.add(MODEL_ERRORS, _short(model), _status(status))

    def model_used(self, model: str, used: Mapping[str, float]) -> None:
        """Count what a reply has used.

        Args:
            model: The model that gave it.
            used: What it used, by the names of `Usage`; without what is 0 or unknown.
        """
        name = _short(model)
        for kind in ("input", "output", "cached"):
            if tokens := used.get(f"{kind}_tokens"):
                self.add(MODEL_USAGE, name, kind, by=tokens)
        if cost := used.get("cost_usd"):
            self.add(MODEL_COST, name, by=cost)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was counted but the loop's delays."""
        return all(name == LOOP_DELAYS.name for name, *_ in self._counted)

    def take(self) -> dict[Label, float]:
        """Return what was counted, and reset the counts to zero."""
        taken, self._counted = self._counted, {}
        return taken

    def _add(self, label: Label, by: float) -> None:
        self._counted[label] = self._counted.get(label, 0) + by


def spent(counted: Mapping[Label, float]) -> Usage:
    """Return the tokens and the cost among what was counted."""
    tokens = dict.fromkeys(("input", "output", "cached"), 0.0)
    cost = 0.0
    for (name, *values), value in counted.items():
        if name == MODEL_USAGE.name and values[-1] in tokens:
            tokens[values[-1]] += value
        elif name == MODEL_COST.name:
            cost += value
    return Usage(
        input_tokens=round(tokens["input"]),
        output_tokens=round(tokens["output"]),
        cached_tokens=round(tokens["cached"]),
        cost_usd=cost,
    )


def _short(model: str) -> str:
    return clean_text(model)[:MAX_MODEL_CHARACTERS] or OTHER


def _status(status: str) -> str:
    if status in _STATUSES:
        return status
    is_status = status.isdecimal() and len(status) == len("500")
    return f"{status[0]}xx" if is_status else "none"
