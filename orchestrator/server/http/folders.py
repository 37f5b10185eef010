"""The routes of the page for folders of its person's own machine (`person_folders.py`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ...configuration.api_settings import Scope
from ...jobs.failures import InvalidJob
from ...jobs.spec import JobId
from ...workspace.merge_report import MergeReport
from ..access.sessions import is_operator
from ..person_folders import MAX_PATH_CHARACTERS, PersonFolders
from ..problems import Problem
from .jobs import IdempotencyKey, links, make_spec
from .models import JobRequest, SubmittedJob, Text
from .requests import Jobs, Shared, request_caller, request_service
from .webhooks import add_webhooks, check_webhooks

router = APIRouter(prefix="/v1/folders", include_in_schema=False)

FolderPath = Annotated[Text, Field(min_length=1, max_length=MAX_PATH_CHARACTERS)]


def _allowed_folders(request: Request) -> PersonFolders:
    """Return the folders, for the browser of the person who owns the service.

    Raises:
        Problem: Another person asks, or others use the service too.
    """
    folders = request_service(request).folders
    if folders is None or not is_operator(request_caller(request), request.state):
        raise Problem(404, "This service has no folders for you: send an archive.")
    request_caller(request).require(Scope.SUBMIT)
    return folders


Folders = Annotated[PersonFolders, Depends(_allowed_folders)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FolderView(_Body):
    """A folder and those in it."""

    path: str
    parent: str | None
    folders: list[str]
    omitted: int
    is_repository: bool


class FolderJob(_Body):
    """A job that starts from a folder."""

    folder: FolderPath
    job: JobRequest


class MergedFolder(_Body):
    """A folder that the changes of a job are merged into."""

    job_id: JobId
    folder: FolderPath
    check: bool = False


class ChosenFolder(_Body):
    """The folder that a job has started from; null: it is not known."""

    folder: str | None


@router.get("")
async def list_folder(
    folders: Folders, path: Annotated[str, Query(max_length=MAX_PATH_CHARACTERS)] = ""
) -> FolderView:
    """Return a folder with the folders in it."""
    found = await folders.look(path)
    return FolderView(
        path=str(found.path),
        parent=None if found.parent is None else str(found.parent),
        folders=list(found.names),
        omitted=found.omitted,
        is_repository=found.is_repository,
    )


@router.post("/jobs", status_code=201)
async def submit(
    folders: Folders,
    jobs: Jobs,
    shared: Shared,
    response: Response,
    body: FolderJob,
    idempotency_key: IdempotencyKey = None,
) -> SubmittedJob:
    """Submit a job that starts from a folder as it is now."""
    if body.job.snapshot is not None or body.job.continues is not None:
        raise InvalidJob("A job that starts from a folder has no other files: leave them out.")
    subscriptions = shared.notifications.subscriptions
    await check_webhooks([body.job], subscriptions)
    folder, start = await folders.start_files(body.folder, body.job.agent)
    spec = make_spec(body.job, idempotency_key).model_copy(update=start.update())
    [job_id] = await jobs.submit_many([spec])
    await add_webhooks(jobs, [body.job], [job_id], subscriptions)
    await folders.remember(job_id, folder)
    response.headers["Location"] = f"/v1/jobs/{job_id}"
    return SubmittedJob(id=job_id, links=links(job_id))


@router.get("/of/{job_id}")
async def folder_of(folders: Folders, jobs: Jobs, job_id: str) -> ChosenFolder:
    """Return the folder that a job has started from."""
    await jobs.get(job_id)
    found = await folders.folder_of(job_id)
    return ChosenFolder(folder=None if found is None else str(found))


@router.post("/merge")
async def merge(folders: Folders, jobs: Jobs, body: MergedFolder) -> MergeReport:
    """Merge what a job has changed into a folder."""
    result = await jobs.complete_result(body.job_id)
    if result is not None and result.changed_nothing:
        return MergeReport()
    async with jobs.merging(body.job_id):
        return await folders.apply(body.job_id, body.folder, check=body.check)
