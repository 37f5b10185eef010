"""What running jobs do at this moment: a volatile line in their records, for who watches.

It is written at most once a second for all jobs of a worker together, and nothing depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import structlog

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.totals import Totals

log = structlog.get_logger(__name__)

WRITE_SECONDS = 1.0
"""Between two writes: a person reads no faster."""
CHARACTERS_PER_TOKEN = 4
"""The usual rule of thumb: the service's count comes with the end of the reply."""


class JobActivity:
    """What one attempt of a job does now; it implements `ModelProgress`.

    Args:
        attempt: The number of the attempt.
        totals: Where requests to models are counted; None: nowhere.
    """

    def __init__(self, attempt: int = 1, totals: Totals | None = None) -> None:
        self._attempt = attempt
        self._totals = totals or Totals()
        self._model = ""
        self._now: dict[str, Any] = {}
        self._begun_at = time.monotonic()
        self._characters = 0
        self._error = ""
        self.is_changed = False

    def begin(self, kind: str, **details: Any) -> None:
        """Note that something begins.

        Args:
            kind: What it is, as `Activity.kind` has it.
            details: The fields of `Activity` that say more.
        """
        self._now = {"kind": kind, **details}
        self._begun_at = time.monotonic()
        self._characters = 0
        self.is_changed = True

    def end(self, kind: str) -> None:
        """Note that it is over, unless something else has begun since."""
        if self._now.get("kind") == kind:
            self._now = {}
            self.is_changed = True

    def asked(self, model: str, attempt: int) -> None:
        """See `ModelProgress`."""
        self._model = model
        self._totals.model_asked(model)
        failed = {"error": self._error} if attempt > 1 and self._error else {}
        begun_at = self._begun_at
        self.begin("model", model=model, attempt=attempt, **failed)
        if failed:
            self._begun_at = begun_at

    def received(self, characters: int) -> None:
        """See `ModelProgress`."""
        self._characters += characters
        self.is_changed = True

    def failed(self, why: str) -> None:
        """See `ModelProgress`."""
        self._totals.model_failed(self._model, why)
        self._error = self._now["error"] = why
        self.is_changed = True

    def answered(self) -> None:
        """See `ModelProgress`."""
        self.end("model")

    def taken(self) -> str:
        """Return what is to be written, as JSON, and count it as written; empty for nothing."""
        self.is_changed = False
        if not self._now:
            return ""
        tokens = {"tokens": self._characters // CHARACTERS_PER_TOKEN} if self._characters else {}
        seconds = round(time.monotonic() - self._begun_at, 1)
        return json.dumps({**self._now, **tokens, "seconds": seconds, "of_attempt": self._attempt})


class Activities:
    """Those of all jobs that a worker runs.

    Args:
        ledger: Has the jobs' records.
        totals: Where requests to models are counted.
    """

    def __init__(self, ledger: Ledger, totals: Totals) -> None:
        self._ledger = ledger
        self._totals = totals
        self._known: dict[str, tuple[int, JobActivity]] = {}

    @contextlib.contextmanager
    def of(self, claim: Claim) -> Iterator[JobActivity]:
        """Yield the activity of an attempt, which is written until the context is left."""
        activity = JobActivity(claim.attempt, self._totals)
        self._known[claim.spec.id] = claim.token, activity
        try:
            yield activity
        finally:
            if self._known.get(claim.spec.id, (0, None))[1] is activity:
                del self._known[claim.spec.id]

    async def run(self) -> None:
        """Write what has changed, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            changed = {
                job_id: (token, activity.taken())
                for job_id, (token, activity) in self._known.items()
                if activity.is_changed
            }
            if changed:
                with contextlib.suppress(LedgerUnavailable):  # the next one is newer anyway
                    await self._ledger.note_activities(changed)
