"""Jobs as the ledger's scripts take them and as Redis has them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.jobs.failures import InvalidJob
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.state import JobRecord


def submission(spec: JobSpec) -> tuple[str | int, ...]:
    """The seven values that submit.lua takes for a job.

    Raises:
        InvalidJob: its text is not Unicode.
    """
    key = json.dumps([spec.tenant, spec.idempotency_key]) if spec.idempotency_key else ""
    try:
        stored = spec.model_dump_json(exclude_defaults=True, exclude_none=True)
    except ValueError as error:
        raise InvalidJob(f"Job {spec.id} holds text that is not valid Unicode.") from error
    return spec.id, spec.root_id, spec.parent_id or "", spec.priority, spec.max_attempts, key, stored


def entry_of_child(spec: JobSpec) -> str:
    """What a parent's journal says of a child that was submitted."""
    return json.dumps({"id": spec.id, "agent": spec.agent})


def record_of(fields: Mapping[str, str]) -> JobRecord:
    """A job's record from its hash."""
    spec = JobSpec.model_validate_json(fields["spec"])
    return JobRecord.model_validate(
        {
            **spec.model_dump(),
            "state": fields["state"],
            "attempt": int(fields["attempt"]),
            "worker": fields.get("worker") or None,
            "submitted_at": _seconds(fields["submitted_at"]),
            "started_at": _seconds(fields.get("started_at")),
            "finished_at": _seconds(fields.get("finished_at")),
            "waiting_for": fields.get("waiting_for"),
            "approvals": (fields.get("approvals") or "").split(),
            "last_event": fields.get("last_event"),
        },
    )


def _seconds(milliseconds: str | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000
