"""Jobs as the ledger's scripts take them and as Redis has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.jobs.failures import InvalidJob, NotUnderstood
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.state import JobRecord
from orchestrator.jobs.wire import version_of

OF_ANOTHER_RELEASE = "(another release of fanout wrote this job in a form that this one does not know)"
Model = TypeVar("Model", bound=BaseModel)


def submission(spec: JobSpec) -> tuple[str | int, ...]:
    """The eight values that submit.lua takes for a job.

    Raises:
        InvalidJob: its text is not Unicode.
    """
    key = json.dumps([spec.tenant, spec.idempotency_key]) if spec.idempotency_key else ""
    try:
        stored = spec.model_dump_json(exclude_defaults=True, exclude_none=True)
        wire = version_of(json.loads(stored))
    except ValueError as error:
        raise InvalidJob(f"Job {spec.id} holds text that is not valid Unicode.") from error
    return spec.id, spec.root_id, spec.parent_id or "", spec.priority, spec.max_attempts, key, stored, wire


def entry_of_child(spec: JobSpec) -> str:
    """What a parent's journal says of a child that was submitted."""
    return json.dumps({"id": spec.id, "agent": spec.agent})


def record_of(fields: Mapping[str, str]) -> JobRecord:
    """A job's record from its hash."""
    spec = shown_specification(fields["spec"], fields["root"])
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
            "wire": int(fields.get("wire") or 1),
        },
    )


def read(model: type[Model], text: str | bytes, what: str) -> Model:
    """What any release may have written; fields that this one does not know are passed over.

    Raises:
        NotUnderstood: a value has a form that this release does not know. The text begins with `what`.
    """
    try:
        return model.model_validate_json(text, extra="ignore")
    except ValidationError:
        raise NotUnderstood(f"{what} is of another release of fanout: use one that is as new.") from None


def shown_specification(text: str, root_id: str) -> JobSpec:
    """A specification to be shown. To be worked on it must be read strictly."""
    try:
        return read(JobSpec, text, "The job")
    except NotUnderstood:
        return JobSpec(id=json.loads(text)["id"], root_id=root_id, description=OF_ANOTHER_RELEASE)


def _seconds(milliseconds: str | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000
