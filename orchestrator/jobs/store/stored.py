"""Conversion between jobs and their forms in Redis and in the arguments of scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.config import ExtraValues

from ...shortening import short_id
from ...valid_models import valid_json
from .. import versions
from ..approvals import Approval
from ..bounds import KIB, MAX_KEY_CHARACTERS, MAX_SPEC_BYTES
from ..failure_texts import next_step, what_happened
from ..failures import InvalidJob, NotUnderstood
from ..spec import JobSpec
from ..state import Activity, JobRecord, JobState
from ..timeline import LandedChanges, Phase, read_phases
from ..trace_context import find_trace_id
from ..understood import not_understood, read_understood

OF_ANOTHER_RELEASE = "(its specification cannot be read by this release)"
CALL_OF_ANOTHER_RELEASE = "(a call that this release cannot read)"
Model = TypeVar("Model", bound=BaseModel)
_STATE_FIELDS = (
    "state", "attempt", "worker", "waiting_for", "last_event", "tasks_failed", "tasks_unmerged", "batch",
    "wire",
)  # fmt: skip
IN_RECORD = frozenset({"name", "after", "on_failure"})
"""The fields of a specification that are in a job's record: only the ledger needs them, so that
workers of earlier releases run these jobs too."""
_TIMES = ("submitted_at", "started_at", "finished_at")


class Submission(NamedTuple):
    """A new job, as the scripts take it (`submission` in common.lua)."""

    id: str
    root: str
    parent: str
    """The id of its parent; empty: none."""
    priority: int
    max_attempts: int
    idempotency: str
    """Its idempotency key (`unique_key`); empty: none."""
    owned: str
    """The index of its owner (`owner_key`); empty: none."""
    tenant: str
    agent: str
    wire: int
    pool: str
    """The pool of the workers that are to run it; empty: all workers. A child has its parent's
    pool."""
    name: str
    """Empty: none."""
    after: tuple[str, ...]
    """The ids of the jobs that have to end before it runs."""
    on_failure: str
    path: int
    """The number of jobs on the longest path of those that come after it."""
    spec: str

    def arguments(self) -> tuple[str, str]:
        """Return the arguments for a script: two instead of sixteen take it half the time."""
        *values, spec = self
        return json.dumps(dict(zip(self._fields, values, strict=False))), spec


def submission(spec: JobSpec) -> Submission:
    """Return what is stored of a new job.

    Raises:
        InvalidJob: It is too large.
    """
    if len(spec.idempotency_key or "") > MAX_KEY_CHARACTERS:
        raise InvalidJob(f"An idempotency key has at most {MAX_KEY_CHARACTERS:,} characters.")
    stored = valid_json(spec, exclude=IN_RECORD, exclude_defaults=True, exclude_none=True)
    wire = versions.find_version(json.loads(stored))
    size = len(stored.encode())
    if size > MAX_SPEC_BYTES:
        raise InvalidJob(
            f"A job's description, context, labels and other fields may have "
            f"{MAX_SPEC_BYTES // KIB} KiB, not {math.ceil(size / KIB):,}: put long texts into "
            "files of its workspace."
        )
    return Submission(
        id=spec.id,
        root=spec.root_id,
        parent=spec.parent_id or "",
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        idempotency=unique_key(spec),
        owned=owner_key(spec.tenant, spec.owner),
        tenant=spec.tenant,
        agent=spec.agent,
        wire=wire,
        pool="",
        name=spec.name or "",
        after=tuple(dict.fromkeys(spec.after)),
        on_failure=spec.on_failure,
        path=0,
        spec=stored,
    )


def owner_key(tenant: str, owner: str) -> str:
    """Return the text by which the jobs of an owner are indexed; empty for jobs without one."""
    return json.dumps([tenant, owner]) if owner else ""


def read_owner(owned: str | None) -> str:
    """Return the owner in what `owner_key` returned; empty for a job without one."""
    return json.loads(owned)[1] if owned else ""


def unique_key(spec: JobSpec) -> str:
    """Return the job's idempotency key, which is its owner's alone; empty without one."""
    if not spec.idempotency_key:
        return ""
    owner = (spec.owner,) if spec.owner else ()
    return json.dumps([spec.tenant, *owner, spec.idempotency_key])


def read_spec(stored: str | None, *, extra: ExtraValues = "forbid") -> JobSpec:
    """Return a stored specification of a version that this release reads, for a worker.

    Args:
        stored: The text; None where this release finds none.
        extra: Whether unknown fields are ignored or refused.

    Raises:
        InvalidJob: The text is not a specification; the message quotes nothing of it.
    """
    try:
        return JobSpec.model_validate_json(stored or "", extra=extra)
    except ValidationError as error:
        fields = sorted({".".join(map(str, detail["loc"])) for detail in error.errors()} - {""})
        where = f" (at {', '.join(fields)})" if fields else ""
        raise InvalidJob(
            f"Its stored specification cannot be read{where}: submit the task again."
        ) from None


def shown_spec(job_id: str, stored: str | None) -> JobSpec:
    """Return what this release knows of a stored specification, to show it.

    Args:
        job_id: The job's id.
        stored: The text; None where this release finds none, because another moved it.

    Raises:
        InvalidJob: What it knows is not valid; the message quotes nothing of it.
    """
    if stored is None:
        return JobSpec(id=job_id, description=OF_ANOTHER_RELEASE)
    return read_spec(stored, extra="ignore")


def entry_of_child(spec: JobSpec) -> str:
    """Return the data of a parent's `child.submitted` event, as JSON."""
    return json.dumps({"id": spec.id, "agent": spec.agent})


def read_record(job_id: str, fields: Mapping[str, str]) -> JobRecord:
    """Return a job's record from its hash; what this release does not understand has its default.

    A specification that cannot be read is replaced by what the hash contains besides.

    Args:
        job_id: The job's id.
        fields: Its hash in Redis.

    Raises:
        NotUnderstood: The job's state, or another part that every record has, is of a form that
            this release does not know.
    """
    what = f"Job {job_id}"
    try:
        spec = read(JobSpec, fields["spec"], what)
    except NotUnderstood:
        spec, _ = read_understood(JobSpec, _spec_from_hash(job_id, fields), what)
    state = {name: fields[name] for name in _STATE_FIELDS if fields.get(name)}
    state |= {name: fields[name] for name in ("name", "on_failure") if fields.get(name)}
    try:
        times = {name: seconds(fields[name]) for name in _TIMES if name in fields}
        activity = _activity(fields)
        known = {
            "activity": activity,
            "approvals": fields.get("approvals", "").split(),
            "after": fields.get("after", "").split(),
            "phases": _phases(fields.get("timeline", ""), times, activity),
            "landed": _landed(fields["landed"]) if fields.get("landed") else None,
            "trace_id": find_trace_id(spec),
        }
    except (ValueError, KeyError):  # a time
        raise not_understood(what) from None
    failure = _failure(job_id, fields["result"]) if fields.get("result") else {}
    record, _ = read_understood(
        JobRecord, spec.model_dump() | state | times | known | failure, what
    )
    return record


def _phases(
    stored: str, times: Mapping[str, float], activity: Activity | None
) -> tuple[Phase, ...]:
    verifies = activity is not None and activity.kind == "verification"
    return read_phases(
        stored,
        submitted_at=times["submitted_at"],
        started_at=times.get("started_at"),
        finished_at=times.get("finished_at"),
        verifying_since=activity.since if activity and verifies else None,
    )


def _landed(stored: str) -> LandedChanges | None:
    """Return what became of a job's changes; None if another release wrote it in another form."""
    try:
        return read(LandedChanges, stored, "The landing")
    except NotUnderstood:
        return None


def _activity(fields: Mapping[str, str]) -> Activity | None:
    """Return what a job does now; None for an earlier attempt's, and for a form not known."""
    if fields.get("state") != JobState.RUNNING or not fields.get("activity"):
        return None
    try:
        noted = json.loads(fields["activity"])
        if str(noted.pop("of_attempt")) != fields.get("attempt"):
            return None
        since = seconds(fields["activity_at"]) - float(noted.pop("seconds"))
        return Activity.model_validate({**noted, "since": since})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _failure(job_id: str, result: str) -> dict[str, str]:
    """Return what a record shows of a stored result's error; nothing without a known one."""
    try:
        error = json.loads(result).get("error")
        if not error:
            return {}
        kind = str(error["type"])
        return {
            "reason": what_happened(kind, str(error["message"])),
            "next_step": next_step(kind, short_id(job_id)),
            "error_type": kind,
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_labels(stored: str) -> dict[str, str]:
    """Return the labels of a stored specification that are texts, without checking the rest."""
    labels = read_fields(stored).get("labels") if '"labels"' in stored else None
    if not isinstance(labels, dict):
        return {}
    return {name: value for name, value in labels.items() if isinstance(value, str)}


def read_fields(stored: str) -> dict[str, Any]:
    """Return the fields of a stored specification, unchecked; none of one that is damaged."""
    try:
        fields = json.loads(stored)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _spec_from_hash(job_id: str, fields: Mapping[str, str]) -> dict[str, Any]:
    known = {name: fields[name] for name in ("tenant", "agent", "priority") if name in fields}
    root, parent = fields.get("root") or job_id, fields.get("parent") or None
    return {
        "id": job_id,
        "root_id": root,
        "parent_id": parent,
        "depth": int(bool(parent)),
        "owner": read_owner(fields.get("owned")),
        "description": OF_ANOTHER_RELEASE,
        **known,
    }


def read(
    model: type[Model], text: str | bytes, what: str, *, extra: ExtraValues = "ignore"
) -> Model:
    """Return a model that any release may have written.

    Args:
        model: The model's class.
        text: The model as JSON.
        what: What the text is, for the failure's message.
        extra: Whether unknown fields are ignored or refused.

    Raises:
        NotUnderstood: A value has a form that this release does not know.
    """
    try:
        return model.model_validate_json(text, extra=extra)
    except ValidationError:
        raise not_understood(what) from None


def seconds(milliseconds: str) -> float:
    """Return a stored time in seconds."""
    return float(milliseconds) / 1000


def stored_approval(approval_id: str, fields: Mapping[str, str]) -> Approval:
    """Return an open approval; of a call that this release does not understand, only a rejection.

    Args:
        approval_id: Its id.
        fields: Its hash in Redis: the approval as JSON, the job, and when it was requested, in
            milliseconds since the epoch.
    """
    try:
        approval, _ = read_understood(Approval, read_fields(fields["request"]), "An approval")
    except NotUnderstood:
        approval = Approval(
            id=approval_id,
            job_id=fields["job"],
            agent="",
            call_id="",
            tool=CALL_OF_ANOTHER_RELEASE,
            arguments={},
            decisions=("reject",),
            sha256="",
        )
    return approval.model_copy(update={"requested_at": seconds(fields["requested_at"])})
