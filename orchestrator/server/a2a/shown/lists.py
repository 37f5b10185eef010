"""Pages of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from a2a.types import ListTasksRequest, ListTasksResponse, TaskState
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import validate_page_size

from fanout.orchestrator.client.job_pages import JobFilter
from fanout.orchestrator.jobs.state import LIVE_STATES, JobRecord, JobState
from fanout.orchestrator.server.a2a.shown.approval_requests import Waiting, waiting_calls
from fanout.orchestrator.server.a2a.shown.conversation import history
from fanout.orchestrator.server.a2a.shown.records import CONTEXT_LABEL, changed_at
from fanout.orchestrator.server.a2a.shown.task_view import TaskView
from fanout.orchestrator.server.pages import cursor_of, position_of
from fanout.orchestrator.server.problems import Problem

DEFAULT_PAGE_SIZE = 50
MAX_COUNTED = 5_000
"""Tasks that are counted for one answer: as many records as a page of jobs looks at."""
NANOSECONDS = 1_000_000_000

JOB_STATES: Mapping[int, frozenset[JobState]] = {
    TaskState.TASK_STATE_SUBMITTED: frozenset({JobState.QUEUED}),
    TaskState.TASK_STATE_WORKING: frozenset({JobState.RUNNING, JobState.WAITING}),
    TaskState.TASK_STATE_INPUT_REQUIRED: LIVE_STATES,
    TaskState.TASK_STATE_COMPLETED: frozenset({JobState.SUCCEEDED}),
    TaskState.TASK_STATE_FAILED: frozenset({JobState.FAILED, JobState.TIMED_OUT}),
    TaskState.TASK_STATE_CANCELED: frozenset({JobState.CANCELLED}),
}
"""In which states the job of a task in a state may be; of other states there are no tasks."""


async def tasks(view: TaskView, params: ListTasksRequest) -> ListTasksResponse:
    """Return a page of tasks, those submitted last first.

    The tasks of sub-agents are in no list: their parents' tasks tell of them.

    Raises:
        InvalidParamsError: The size, the token or the state is none.
    """
    size = params.page_size if params.HasField("page_size") else DEFAULT_PAGE_SIZE
    validate_page_size(size)
    position = _position(params.page_token)
    response = ListTasksResponse(page_size=size)
    if params.status and params.status not in JOB_STATES:
        return response
    labels = {CONTEXT_LABEL: params.context_id} if params.context_id else None
    states = JOB_STATES[params.status] if params.status else None
    wanted = JobFilter(states=states, labels=labels, roots_only=True)
    page = await view.jobs.page(wanted, position, size)
    waiting = await waiting_calls(view.jobs)
    for record in page.records:
        below = [one for one in waiting if one.record.root_id == record.root_id]
        await _add(response, view, params, record, [] if record.state.is_terminal else below)
    response.next_page_token = cursor_of(page.next) or ""
    response.total_size = await view.jobs.count(wanted, MAX_COUNTED)
    return response


async def _add(
    response: ListTasksResponse,
    view: TaskView,
    params: ListTasksRequest,
    record: JobRecord,
    waiting: list[Waiting],
) -> None:
    after = params.status_timestamp_after
    if params.HasField("status_timestamp_after") and (
        changed_at(record) < after.ToNanoseconds() / NANOSECONDS
    ):
        return
    task = await view.listed(record, waiting, artifacts=params.include_artifacts)
    if params.status and task.status.state != params.status:
        return
    if params.history_length:
        task.history.extend((await history(view.jobs, record, params.history_length))[0])
    response.tasks.append(task)


def _position(token: str) -> int | None:
    try:
        return position_of(token or None)
    except Problem:
        raise InvalidParamsError("pageToken is the nextPageToken of the page before.") from None
