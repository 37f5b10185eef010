"""Jobs as the ledger's scripts take them and as Redis has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.jobs.approvals import Approval
from orchestrator.jobs.failures import InvalidJob, NotUnderstood
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.state import JobRecord
from orchestrator.jobs.versions import version_of

OF_ANOTHER_RELEASE = "(its specification cannot be read by this release)"
Model = TypeVar("Model", bound=BaseModel)


def submission(spec: JobSpec) -> tuple[str | int, ...]:
    """The values that submit.lua takes for a job, in the order that common.lua names.

    Raises:
        InvalidJob: its text is not Unicode.
    """
    key = json.dumps([spec.tenant, spec.idempotency_key]) if spec.idempotency_key else ""
    try:
        stored = spec.model_dump_json(exclude_defaults=True, exclude_none=True)
        wire = version_of(json.loads(stored))
    except ValueError as error:
        raise InvalidJob(f"Job {spec.id} holds text that is not valid Unicode.") from error
    lane = (spec.tenant, spec.agent, wire)
    return (
        spec.id,
        spec.root_id,
        spec.parent_id or "",
        spec.priority,
        spec.max_attempts,
        key,
        *lane,
        stored,
    )


def spec_of(stored: str) -> JobSpec:
    """A stored specification of a version that this release reads, to be worked on.

    Raises:
        InvalidJob: it is none; the text holds nothing of it.
    """
    try:
        return JobSpec.model_validate_json(stored)
    except ValidationError as error:
        places = sorted({".".join(map(str, detail["loc"])) for detail in error.errors()} - {""})
        where = f" (at {', '.join(places)})" if places else ""
        raise InvalidJob(
            f"Its stored specification cannot be read{where}: submit the task anew."
        ) from None


def entry_of_child(spec: JobSpec) -> str:
    """What a parent's journal says of a child that was submitted."""
    return json.dumps({"id": spec.id, "agent": spec.agent})


def record_of(job_id: str, fields: Mapping[str, str]) -> JobRecord:
    """A job's record from its hash.

    Of a specification that cannot be read, what is known besides.
    """
    try:
        spec = read(JobSpec, fields["spec"], "The job")
    except NotUnderstood:
        spec = _known_besides(job_id, fields)
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


def _known_besides(job_id: str, fields: Mapping[str, str]) -> JobSpec:
    known = {name: fields[name] for name in ("tenant", "agent", "priority") if name in fields}
    return JobSpec.model_validate(
        {"id": job_id, "root_id": fields["root"], "parent_id": fields["parent"] or None}
        | {"depth": int(bool(fields["parent"])), "description": OF_ANOTHER_RELEASE, **known}
    )


def read(model: type[Model], text: str | bytes, what: str) -> Model:
    """What any release may have written; fields that this one does not know are passed over.

    Raises:
        NotUnderstood: a value has a form that this release does not know. The text begins with
            `what`.
    """
    try:
        return model.model_validate_json(text, extra="ignore")
    except ValidationError:
        raise NotUnderstood(
            f"{what} is of another release of fanout: use one that is as new."
        ) from None


def _seconds(milliseconds: str | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000


def stored_approval(request: str, requested_at: str) -> Approval:
    """An approval from what the ledger holds.

    The request as JSON, and when it came, in milliseconds.
    """
    approval = read(Approval, request, "An approval that waits")
    return approval.model_copy(update={"requested_at": float(requested_at) / 1000})
