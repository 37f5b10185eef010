"""The public door: the names that programs import.

- Jobs: `JobClient` submits a `JobSpec` (an agent, a task, `Limits`) and returns its `JobResult`;
  `JobRecord` and `JobState` say how a job is doing; `JobFailure` is the base of what it raises.
- Agents for any ADK Runner: `create_deep_agent` and `create_deep_app` in this process,
  `create_coordinator` and `create_coordinator_app` for one whose tasks become jobs.
- Approvals: `InterruptOn` (a policy), `Decision`, `ApprovalAnswer`.

    from fanout import JobClient, JobSpec

    client = JobClient.from_settings()
    result = await client.run(JobSpec(agent="researcher", description="…"), workspace=Path("."))

Each name is loaded when it is first used, so that importing this package takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orchestrator

if TYPE_CHECKING:
    from orchestrator import (
        ApprovalAnswer,
        Decision,
        InterruptOn,
        JobClient,
        JobFailure,
        JobRecord,
        JobResult,
        JobSpec,
        JobState,
        Limits,
        create_coordinator,
        create_coordinator_app,
        create_deep_agent,
        create_deep_app,
    )

__all__ = [
    "ApprovalAnswer",
    "Decision",
    "InterruptOn",
    "JobClient",
    "JobFailure",
    "JobRecord",
    "JobResult",
    "JobSpec",
    "JobState",
    "Limits",
    "create_coordinator",
    "create_coordinator_app",
    "create_deep_agent",
    "create_deep_app",
]


def __getattr__(name: str) -> Any:
    """Return a public name from the module that defines it.

    Raises:
        AttributeError: The name is not public.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(orchestrator, name)
