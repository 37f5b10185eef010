"""Descriptions of the tools that delegate, as the model reads them."""

from __future__ import annotations

from dataclasses import dataclass

from ..deep_agent import DelegationTexts
from ..scripts.texts import VOCABULARY

_WORKSPACE = """\
The sub-agent works in its own sandbox on a copy of {workspace}, which it sees at /workspace. When
it succeeds, its changes are merged into {workspace}."""

_DESCRIPTION = """\
    description: What to do, complete in itself: the sub-agent sees nothing of this conversation."""

_OPTIONS = """\
    context: What it should know besides: findings, constraints, file paths.
    timeout_seconds: How long it may take; leave it out for the agent's own limit.
    verify: A shell command that has to succeed in the sub-agent's sandbox, such as its tests. While
        it fails, the sub-agent gets its output and corrects its work.
    inherit: "conversation" begins it with all of this conversation, whose tokens are paid for
        again{copy}; leave it out for work that can be told."""

_COPY = ", as a copy of you unless you name a subagent_type"
"""What an agent reads that its definition describes: a program's cannot be made again."""

_TASK = f"""\
Delegate one self-contained task to a sub-agent and wait for its result.

{_WORKSPACE} Call `task` several times in one reply to run sub-agents at the same time.{{note}}

Args:
{_DESCRIPTION}
    subagent_type: Which agent does it.
{_OPTIONS}

Returns:
    status, success, task_id, agent, summary, files_modified, merge (applied, a number;
    conflicts), execution_time, usage, and output or error. Results that are together too long
    come as a table with the last one; each whole one is in /task_results/TASK_ID.md."""

_TASKS = """\
Delegate many tasks at once and wait for all of them.

One that fails does not stop the others.

Args:
    tasks: Objects with `description` and, if wanted, `subagent_type`, `context`,
        `timeout_seconds`, `verify`, `inherit`, as for `task`.

Returns:
    success, true only if all succeeded; summary ("Completed 2 of 3 tasks."); and `results`: one
    answer as of `task` for each, in order."""

LONGEST_WAIT_SECONDS = 600.0
"""How long one `wait_tasks` call may last: the agent can ask again, and sees its other tasks
meanwhile."""

_START_TASK = f"""\
Start a task as `task` does, without waiting for it.

Args:
{_DESCRIPTION}
    subagent_type: Which agent does it.
{_OPTIONS}

Returns:
    status and task_id: give it to check_task, wait_tasks, update_task or cancel_task."""

RUN_SCRIPT = f"""\
Run a Python script that calls your sub-agents, and wait for its value.

Use it for many tasks whose steps you know: their results stay in the script's variables, and only
its value comes back to you. Its agents' changes are merged into your workspace.

{VOCABULARY}

Args:
    script: The script.
    inputs: Values that it reads as inputs["name"].

Returns:
    status, task_id and value; merge, if changes were not merged; error with the lines of faults."""

CHECK_TASK = """\
How a started task stands; when it has ended, its result, merged as `task` does.

Args:
    task_id: The id that start_task gave."""

WAIT_TASKS = f"""\
Wait until all of these tasks have ended or the time is over.

Args:
    task_ids: Ids that start_task gave.
    timeout_seconds: How long to wait, {LONGEST_WAIT_SECONDS:g} at the most; what has not ended goes on.

Returns:
    status; `results`, as of `task`, of those that ended; `unfinished`: the ids of the others."""

UPDATE_TASK = """\
Tell a started task's sub-agent something while it works.

It reads it before its next step.

Args:
    task_id: The id that start_task gave.
    message: What changes in the task, or what it should know besides."""

CANCEL_TASK = """\
Stop a started task; what it did stays out of the workspace.

Args:
    task_id: The id that start_task gave."""

LIST_TASKS = """\
All tasks of this conversation, oldest first, and how they stand."""

_AGENT_TOOL = f"""\
Delegate one self-contained task to the sub-agent {{agent}} and wait for its result. {{description}}

{_WORKSPACE} Several calls in one reply run at the same time.

Args:
{_DESCRIPTION}
{_OPTIONS}"""


@dataclass(frozen=True, kw_only=True)
class JobTexts(DelegationTexts):
    """What a model reads about the tools whose tasks are jobs."""

    start_task: str


def _agent_tool(agent: str, description: str) -> str:
    return _AGENT_TOOL.format(
        workspace="the workspace", agent=agent, description=description, copy=""
    )


OF_PROGRAM = JobTexts(
    task=_TASK.format(workspace="the workspace", note="", copy=""),
    tasks=_TASKS,
    agent_tool=_agent_tool,
    start_task=_START_TASK.format(copy=""),
)
OF_JOB = JobTexts(
    task=_TASK.format(
        workspace="your workspace",
        note=" Processes that you left running end when you delegate.",
        copy=_COPY,
    ),
    tasks=_TASKS,
    agent_tool=_agent_tool,
    start_task=_START_TASK.format(copy=_COPY),
)
"""Differs from a program's because a job's sandbox is closed while the job waits."""
