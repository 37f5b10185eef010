"""The operations of the protocol over the jobs of the caller, and their routes over HTTP.

The handler keeps nothing: a task is read from the ledger and its journal, so it survives this
process, and any other server continues where this one was killed. Failures become errors of the
protocol: a sentence if the caller can correct it, else a fault.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import structlog
from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, VERSION_HEADER
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ...cancellation import cancel_and_wait
from ...configuration.api_settings import Scope
from ...jobs.failures import (
    JobFailure,
    LedgerFull,
    LedgerUnavailable,
    UnknownAgent,
    UnknownJob,
)
from ...server.access.callers import Caller, NotAllowed, NotAuthenticated
from ...server.http.requests import Service, request_caller
from ...server.owned_jobs import KeyReused, OwnedJobs
from ...server.problems import Problem
from . import cards, received
from .approval_requests import HITL_URI
from .cards import PATH, card
from .protocol import DIGEST_LABEL, job_context, plain
from .push import PushConfigs
from .received import (
    find_place,
    give_decisions,
    media_kind,
    read_decisions,
    read_files,
)
from .tasks import Snapshot, TaskUpdates, TaskView, Update, list_tasks

CALLER = "caller"
AGENT = "agent"
BASE_URL = "base_url"
REQUEST = "request"
log = structlog.get_logger(__name__)

FAULT = "This is a fault of the service; its log has the request's id."
UNAVAILABLE = "The service cannot reach its store at the moment: try again in a few seconds."
FILES_FIRST = "Files are sent with the first message of a context, and without a fanout.snapshot."
DISCONNECT_SECONDS = 5.0
"""The interval of checks whether a client that waits for an answer is still connected."""


P = ParamSpec("P")
R = TypeVar("R")
AGENT_PATH = f"{PATH}/agents/{{agent}}"
"""The path of an agent's own address: messages sent there are for this agent."""
CARD_SECONDS = 60
"""The time for which a client may keep a card: agents change with the configuration, which is rare.
"""


class KnownCaller(User):
    """A caller in the form that the SDK needs."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        """Always true: the authentication let the request pass."""
        return True

    @property
    def user_name(self) -> str:
        """The name of the caller."""
        return self._caller.name


class CallerContexts(ServerCallContextBuilder):
    """Builds contexts of HTTP requests.

    Args:
        public_url: The origin of the service; None: that of each request.
    """

    def __init__(self, public_url: str | None) -> None:
        self._public_url = public_url

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request; with only the protocol's own headers, no credentials.

        Raises:
            NotAuthenticated: The request has no caller.
        """
        caller = request_caller(request)
        version = request.headers.get(VERSION_HEADER)
        return ServerCallContext(
            user=KnownCaller(caller),
            requested_extensions=get_requested_extensions(
                request.headers.getlist(HTTP_EXTENSION_HEADER)
            ),
            state={
                "headers": {VERSION_HEADER: version} if version else {},
                CALLER: caller,
                AGENT: request.path_params.get("agent"),
                BASE_URL: origin(request, self._public_url),
                REQUEST: request,
            },
        )


def origin(request: Request, public_url: str | None) -> str:
    """Return the origin under which clients reach the service."""
    return (public_url or str(request.base_url)).rstrip("/")


def protocol_error(failure: Exception) -> A2AError:
    """Return a failure as an error of the protocol; of an unexpected one, only its kind.

    A task of another owner is answered like one that never existed.
    """
    match failure:
        case A2AError():
            return failure
        case UnknownJob():
            return TaskNotFoundError()
        case LedgerFull():
            return InternalError(str(failure))
        case LedgerUnavailable():
            return InternalError(UNAVAILABLE)
        case JobFailure() | KeyReused():
            return InvalidParamsError(str(failure))
        case NotAllowed() | NotAuthenticated():
            return InvalidRequestError(str(failure))
    log.error("a2a request failed", kind=type(failure).__name__)
    return InternalError(FAULT)


@contextmanager
def protocol_errors() -> Iterator[None]:
    """Raise every failure of a context as an error of the protocol."""
    try:
        yield
    except Exception as failure:
        raise protocol_error(failure) from failure


def _answered(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Raise the failures of an operation as errors of the protocol."""

    @wraps(method)
    async def with_protocol_errors(*args: P.args, **kwargs: P.kwargs) -> R:
        with protocol_errors():
            return await method(*args, **kwargs)

    return with_protocol_errors


class JobRequestHandler(RequestHandler):
    """Serves all transports of the protocol.

    Args:
        service: What all requests share.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    @_answered
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        """Submit the job of a message, or answer one, and wait until it ends or asks something."""
        view = self._view(context)
        start = await self._received(params, context, view)
        configuration = params.configuration
        if configuration.return_immediately or _is_done(start):
            return start.task
        async with aclosing(TaskUpdates(view, self._service.changed, start).follow()) as updates:
            await _drained(updates, context)
        return (await view.snapshot(start.task.id, _history_length(configuration))).task

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Do the same, and yield the task and its updates."""
        with protocol_errors():
            view = self._view(context)
            start = await self._received(params, context, view)
            yield start.task
            if _is_done(start):
                return
            async with aclosing(self._follow(view, start)) as updates:
                async for update in updates:
                    yield update

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        """Yield a task that has not ended, and its updates until it ends or asks something new."""
        with protocol_errors():
            view = self._view(context)
            start = await view.snapshot(params.id)
            if start.has_ended:
                raise UnsupportedOperationError(f"Task {params.id} has ended: get it instead.")
            yield start.task
            async with aclosing(self._follow(view, start)) as updates:
                async for update in updates:
                    yield update

    def _follow(self, view: TaskView, start: Snapshot) -> AsyncGenerator[Update]:
        return TaskUpdates(view, self._service.changed, start).follow()

    @_answered
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task."""
        return (await self._view(context).snapshot(params.id, _history_length(params))).task

    @_answered
    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """Return a page of the caller's tasks, newest first."""
        _history_length(params)
        return await list_tasks(self._view(context), params)

    @_answered
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a task with those below it; what runs is stopped by its worker."""
        view = self._view(context)
        if (await view.jobs.cancel(params.id)).state.is_terminal:
            raise TaskNotCancelableError(f"Task {params.id} has ended.")
        return (await view.snapshot(params.id)).task

    @_answered
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Return the card with the details for authenticated callers."""
        del params
        jobs = self._view(context).jobs
        jobs.caller.require(Scope.READ)
        base_url = context.state[BASE_URL]
        definitions = await jobs.definitions()
        return cards.card(definitions, base_url, context.state.get(AGENT), details=True)

    @_answered
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Register a URL for notifications about a task."""
        return await self._push(context).create(params.task_id, params)

    @_answered
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return a registered URL, without secrets."""
        return await self._push(context).get(params.task_id, params.id)

    @_answered
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return all registered URLs: a task has few."""
        configs = await self._push(context).all(params.task_id)
        return ListTaskPushNotificationConfigsResponse(configs=configs)

    @_answered
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Remove a registered URL."""
        await self._push(context).delete(params.task_id, params.id)

    def _push(self, context: ServerCallContext) -> PushConfigs:
        return PushConfigs(self._view(context).jobs, self._service.notifications.subscriptions)

    def _view(self, context: ServerCallContext) -> TaskView:
        jobs = OwnedJobs(self._service.client, context.state[CALLER], self._service.audit)
        hitl = HITL_URI in context.requested_extensions
        return TaskView(jobs, context.state[BASE_URL], hitl=hitl)

    async def _received(
        self, params: SendMessageRequest, context: ServerCallContext, view: TaskView
    ) -> Snapshot:
        """Carry out the request of a message, and return its task afterwards."""
        length = _history_length(params.configuration)
        _check_output_modes(params.configuration)
        received.check_parts(params.message)
        push = self._push(context)
        config = params.configuration.task_push_notification_config
        if config.url:
            await push.check(config)
        task_id = await self._done(params, context, view)
        if config.url:
            await push.create(task_id, config)
        return await view.snapshot(task_id, length)

    async def _done(
        self, params: SendMessageRequest, context: ServerCallContext, view: TaskView
    ) -> str:
        """Carry out the request of a message, and return the id of its task."""
        if params.message.task_id:
            await self._tell(params.message, view)
            return params.message.task_id
        job_id = received.make_task_id(view.jobs.caller, params.message)
        if await self._is_repeated(params, view.jobs, job_id):
            return job_id
        place = await find_place(view.jobs, params.message, job_id, context.state.get(AGENT))
        metadata = plain(params.metadata)
        spec = received.specification(job_id, params.message, metadata, place)
        files = read_files(params.message)
        if files and (spec.continues or spec.snapshot):
            raise InvalidParamsError(FILES_FIRST)
        if files:
            stored = await self._service.uploads.files(view.jobs, files)
            spec = spec.model_copy(update={"snapshot": stored.snapshot})
        script = received.read_script(params.message, metadata)
        if script is not None:
            spec = await view.jobs.script_job(script.source, script.inputs, spec)
        await view.jobs.submit_many([spec])
        return job_id

    async def _is_repeated(self, params: SendMessageRequest, jobs: OwnedJobs, job_id: str) -> bool:
        """Return whether the same message was sent before.

        Raises:
            InvalidParamsError: Another message had this id.
        """
        found = await jobs.owned_records([job_id])
        if found and found[0].labels.get(DIGEST_LABEL) != received.message_digest(params.message):
            raise InvalidParamsError("This messageId was used for another message: use a new one.")
        return bool(found)

    async def _tell(self, message: Message, view: TaskView) -> None:
        """Give the text of a message to the agent, and its decisions to a task that waits for them.

        A text is never a decision: the task continues to wait, and repeats how to answer.
        """
        start = await view.snapshot(message.task_id, 0)
        if message.context_id and message.context_id != job_context(start.record):
            raise InvalidParamsError("This task belongs to another context.")
        if start.has_ended:
            raise UnsupportedOperationError(
                f"Task {start.task.id} has ended: continue in its context, without a taskId."
            )
        if read_files(message):
            raise InvalidParamsError(FILES_FIRST)
        answers = read_decisions(message, start.waiting)
        text = received.text_for_agent(message)
        if not answers and not text:
            raise InvalidParamsError("A message to a task has a text, data or a decision.")
        if text:  # before the decisions, with which the agent may come to its end
            await view.jobs.send(start.task.id, text)
        await give_decisions(view.jobs, answers)


def _is_done(start: Snapshot) -> bool:
    """Return whether the client has to act before anything further happens."""
    return start.has_ended or bool(start.waiting)


async def _drained(updates: AsyncIterator[Update], context: ServerCallContext) -> None:
    """Wait for the end of updates, as long as the client is there."""

    async def drain() -> None:
        async for _ in updates:
            pass

    waiting = asyncio.create_task(drain())
    try:
        while not (await asyncio.wait([waiting], timeout=DISCONNECT_SECONDS))[0]:
            request = context.state.get(REQUEST)
            if request is not None and await request.is_disconnected():
                return
        await waiting
    finally:
        await cancel_and_wait(waiting)


def _history_length(
    params: GetTaskRequest | ListTasksRequest | SendMessageConfiguration,
) -> int | None:
    """Return the requested number of messages; None if the client names none.

    Raises:
        InvalidParamsError: It is negative.
    """
    if not params.HasField("history_length"):
        return None
    if params.history_length < 0:
        raise InvalidParamsError("historyLength is at least 0.")
    return params.history_length


def _check_output_modes(configuration: SendMessageConfiguration) -> None:
    """Check that the client can use some of the tasks' outputs.

    Raises:
        ContentTypeNotSupportedError: It can use none.
    """
    accepted = list(filter(None, map(media_kind, configuration.accepted_output_modes)))
    offered = (*cards.OUTPUT_MODES, "text")
    if accepted and not any(fnmatchcase(one, mode) for one in offered for mode in accepted):
        known = ", ".join(cards.OUTPUT_MODES)
        raise ContentTypeNotSupportedError(f"The agents answer in {known}.")


def a2a_routes(service: Service, public_url: str | None = None) -> list[BaseRoute]:
    """Return the routes.

    Args:
        service: What all requests share.
        public_url: The origin under which clients reach the service; None: that of each request.
    """
    # The SDK logs requests that it does not understand with their contents: prompts, files.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    handler = JobRequestHandler(service)
    contexts = CallerContexts(public_url)
    routes: list[BaseRoute] = []
    for path in (PATH, AGENT_PATH):
        routes += create_jsonrpc_routes(handler, path, contexts, enable_v0_3_compat=True)
        found = create_rest_routes(handler, contexts, enable_v0_3_compat=True, path_prefix=path)
        # The SDK adds a route that treats every path of the application as a tenant.
        routes += [one for one in found if isinstance(one, Route)]
    cards = _Cards(service, public_url)
    routes += [
        Route(AGENT_CARD_WELL_KNOWN_PATH, cards.serve, methods=["GET"]),
        Route(f"{AGENT_PATH}{AGENT_CARD_WELL_KNOWN_PATH}", cards.serve, methods=["GET"]),
    ]
    return routes


class _Cards:
    def __init__(self, service: Service, public_url: str | None) -> None:
        self._client = service.client
        self._public_url = public_url

    async def serve(self, request: Request) -> Response:
        """Return a card, or that the client's copy is current."""
        agent = request.path_params.get("agent")
        try:
            definitions = await self._client.current_definitions()
            found = card(definitions, origin(request, self._public_url), agent)
        except UnknownAgent as failure:
            raise Problem(404, str(failure)) from None
        shown = agent_card_to_dict(found)
        digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
        headers = {"ETag": f'W/"{digest}"', "Cache-Control": f"private, max-age={CARD_SECONDS}"}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return JSONResponse(shown, headers=headers)
