"""Short ways to the models that tests need."""

from __future__ import annotations

from typing import Any

from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.worker_info import WorkerInfo


def make_spec(description: str = "do it", **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"description": description, **fields})


def make_result(job_id: str, state: JobState = JobState.SUCCEEDED, **fields: Any) -> JobResult:
    success = state is JobState.SUCCEEDED
    return JobResult.model_validate(
        {"job_id": job_id, "state": state, "success": success, **fields}
    )


def make_worker(name: str = "w1", **fields: Any) -> WorkerInfo:
    values: dict[str, Any] = {
        "host": "h1",
        "concurrency": 8,
        "running": 0,
        "sandbox": "local",
        **fields,
    }
    return WorkerInfo(name=name, **values)
