"""A connection to a remote agent by A2A: the only module that uses the SDK's client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping

import httpx
from a2a.client import (
    A2ACardResolver,
    A2AClientTimeoutError,
    Client,
    ClientCallContext,
    ClientConfig,
    ClientFactory,
)
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import (
    A2AError,
    InternalError,
    MethodNotFoundError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseError
from pydantic import SecretStr

from ..configuration.agent_definitions import RemoteAgentDefinition
from ..jobs.failures import (
    AgentFailed,
    InvalidJob,
    JobFailure,
    RemoteAgentUnavailable,
)

MAX_VALUES = 300_000
"""The most values in one answer, whose parsing takes a second. Base64 has no commas and brackets,
prose a few."""
RECEIVED_ANSWERS = 32
"""The most answers of full size that one connection may receive, so that an endless stream ends."""

NO_JSON = "fanout.no_json"
"""The extension of a request whose answer is not parsed, so that its values are not counted."""

_ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")
BINDINGS = (TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON)
"""The supported bindings. gRPC has its own port, so it is never at the card's origin."""
_REFUSED = frozenset({401, 403, 407})
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class OneOrigin(httpx.AsyncBaseTransport):
    """Sends requests to one origin, and limits its answers.

    Args:
        inner: The transport that is used.
        url: An address of the origin.
        max_bytes: The largest answer, and the largest event of a stream.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, url: str, max_bytes: int) -> None:
        self._inner = inner
        self._origin = parse_origin(url)
        self._max_bytes = max_bytes
        self._left_bytes = max_bytes * RECEIVED_ANSWERS

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            InvalidJob: It goes to another origin.
            AgentFailed: The answer is compressed; reading it raises this when it is too large.
            httpx.TransportError: The service is not reached.
        """
        if parse_origin(str(request.url)) != self._origin:
            raise InvalidJob(f"A remote agent is called at {self._origin} only.")
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise AgentFailed("The remote agent sent a compressed answer, which was not requested.")
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - an async transport
        response.stream = _Bounded(
            response.stream, self, is_stream=is_stream, is_json=NO_JSON not in request.extensions
        )
        return response

    def count(self, size: int, values: int, received: int) -> None:
        """Count what was received.

        Args:
            size: The bytes of the answer or event so far.
            values: The values in it so far, about.
            received: The bytes that are new.

        Raises:
            AgentFailed: It is too much.
        """
        self._left_bytes -= received
        if size > self._max_bytes:
            raise AgentFailed(
                f"The remote agent sent more than {self._max_bytes:,} bytes at once; "
                "a2a.max_bytes of its definition gives more."
            )
        if values > MAX_VALUES:
            raise AgentFailed(
                f"The remote agent sent an answer of more than {MAX_VALUES:,} values."
            )
        if self._left_bytes < 0:
            raise AgentFailed(
                f"The remote agent sent more than {RECEIVED_ANSWERS} times {self._max_bytes:,} "
                "bytes; a2a.max_bytes of its definition gives more."
            )

    async def aclose(self) -> None:
        """Close the underlying transport."""
        await self._inner.aclose()


class _Bounded(httpx.AsyncByteStream):
    def __init__(
        self,
        inner: httpx.AsyncByteStream,
        counter: OneOrigin,
        *,
        is_stream: bool,
        is_json: bool,
    ) -> None:
        self._inner = inner
        self._counter = counter
        self._is_stream = is_stream
        self._signs = (b",", b"[", b"{") if is_json else ()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        async for chunk in self._inner:
            newest = chunk[_end_of_events(chunk) :] if self._is_stream else chunk
            if len(newest) < len(chunk):
                size = values = 0
            size += len(newest)
            values += sum(map(newest.count, self._signs))
            self._counter.count(size, values, len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _end_of_events(chunk: bytes) -> int:
    """Return where the last complete event of a stream ends in a chunk; 0: none ends in it."""
    return max(chunk.rfind(end) + len(end) if end in chunk else 0 for end in _ENDS_OF_EVENTS)


def parse_origin(url: str) -> str:
    """Return an address's scheme, host and port, or an empty text if it has none."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError):
        return ""
    standard = {"http": 80, "https": 443}.get(parts.scheme)
    port = parts.port or standard
    return f"{parts.scheme}://{parts.host}:{port}" if standard and parts.host else ""


class RemoteConnection:
    """A connection to one remote agent.

    Every method raises `RemoteAgentUnavailable` if the agent is not reached, `InvalidJob` if it
    refuses the credentials, and `AgentFailed` if it breaks the protocol or a bound.

    Args:
        card: The agent's card.
        client: The SDK's client.
        http: The HTTP client that it uses.
        url: Where the agent is.
    """

    def __init__(self, card: AgentCard, client: Client, http: httpx.AsyncClient, url: str) -> None:
        self.card = card
        self._client = client
        self._http = http
        self._origin = parse_origin(url)

    @property
    def streams(self) -> bool:
        """Whether it sends updates of a task while it works."""
        return bool(self.card.capabilities.streaming)

    def accepts(self, media_type: str) -> bool:
        """Return whether files of a media type may be sent to it, as its card says."""
        modes = {mode.lower() for mode in self.card.default_input_modes}
        modes.update(mode.lower() for skill in self.card.skills for mode in skill.input_modes)
        family = media_type.partition("/")[0]
        return bool({media_type, family, f"{family}/*", "*/*", "*"} & modes)

    async def send(
        self, message: Message, timeout_seconds: float | None
    ) -> AsyncIterator[StreamResponse]:
        """Send a message and yield what is answered, until the work stops.

        An agent that does not stream answers once.

        Args:
            message: The message.
            timeout_seconds: How long one that does not stream may take to answer.
        """
        context = None if self.streams else ClientCallContext(timeout=timeout_seconds)
        with _failures():
            request = SendMessageRequest(message=message)
            async for update in self._client.send_message(request, context=context):
                yield update

    async def task(self, task_id: str) -> Task:
        """Return the current state of a task."""
        with _failures():
            return await self._client.get_task(GetTaskRequest(id=task_id))

    async def updates(self, task_id: str) -> AsyncIterator[StreamResponse]:
        """Yield the updates of a task until its work stops; none, if it gives none now."""
        with (
            _failures(),
            contextlib.suppress(
                UnsupportedOperationError,
                MethodNotFoundError,
                TaskNotFoundError,
                NotImplementedError,
            ),
        ):
            async for update in self._client.subscribe(SubscribeToTaskRequest(id=task_id)):
                yield update

    async def fetch(self, url: str) -> bytes | None:
        """Return a file of the agent; None if it is not at the agent's origin."""
        if parse_origin(url) != self._origin:
            return None
        with _failures():
            response = await self._http.get(url, extensions={NO_JSON: True})
            response.raise_for_status()
            return response.content

    async def cancel(self, task_id: str) -> None:
        """Ask the agent to stop working on a task; one that has ended does not change."""
        with _failures(), contextlib.suppress(TaskNotCancelableError, TaskNotFoundError):
            await self._client.cancel_task(CancelTaskRequest(id=task_id))


@contextlib.asynccontextmanager
async def connect_agent(
    definition: RemoteAgentDefinition,
    secrets: Mapping[str, SecretStr],
    card: AgentCard | None = None,
) -> AsyncIterator[RemoteConnection]:
    """Open a connection to an agent, for the duration of a context.

    Args:
        definition: Where the agent is, and its bounds.
        secrets: The secrets that the definition may name.
        card: The agent's card; None: it is read first.

    Raises:
        RemoteAgentUnavailable: The agent is not reached.
        InvalidJob: A secret is not set, the agent refuses the credentials, or its card names no
            address that can be used.
        AgentFailed: It breaks the protocol or a bound.
    """
    inner = await asyncio.to_thread(httpx.AsyncHTTPTransport)  # it reads certificates
    transport = OneOrigin(inner, definition.url, definition.max_bytes)
    timeout = httpx.Timeout(definition.timeout_seconds)
    async with httpx.AsyncClient(
        transport=transport,
        headers=_headers(definition, secrets),
        timeout=timeout,
        follow_redirects=False,
    ) as http:
        with _failures():
            card = card or await _card(http, definition.url)
        config = ClientConfig(
            httpx_client=http,
            polling=True,
            supported_protocol_bindings=list(BINDINGS),
        )
        yield RemoteConnection(card, ClientFactory(config).create(card), http, definition.url)


def _headers(definition: RemoteAgentDefinition, secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return the headers of each request.

    Raises:
        InvalidJob: A secret is not set; the message names it.
    """
    for credential in definition.credentials:
        if credential.secret not in secrets:
            raise InvalidJob(
                f"The remote agent needs the secret {credential.secret}: set "
                f"FANOUT_SECRETS__{credential.secret} for the worker."
            )
    return {
        one.header: one.value(secrets[one.secret].get_secret_value())
        for one in definition.credentials
    }


async def _card(http: httpx.AsyncClient, url: str) -> AgentCard:
    """Return the card, with the interfaces that are at its own origin.

    Raises:
        InvalidJob: It has none.
    """
    path = "/" if url.endswith(".json") else None
    card = await A2ACardResolver(http, url).get_agent_card(relative_card_path=path)
    spoken = [one for one in card.supported_interfaces if one.protocol_binding in BINDINGS]
    usable = [one for one in spoken if parse_origin(one.url) == parse_origin(url)]
    if not usable:
        raise InvalidJob(
            f"The card of the remote agent names no interface at {parse_origin(url)} for JSON-RPC or "
            "HTTP+JSON: give the agent's own address in a2a.url, or correct the card."
        )
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(usable)
    return card


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Raise the failure of a job instead of the SDK's and HTTP's exceptions.

    It has no text of the remote agent.
    """
    try:
        yield
    except (A2AError, httpx.HTTPError, httpx.StreamError, ParseError) as error:
        raise _failure(error) from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:  # parsers of the SDK
        raise AgentFailed("The remote agent sent an answer that is not A2A.") from error


def _failure(error: Exception) -> JobFailure:
    cause = error.__cause__ if error.__cause__ is not None else error
    if isinstance(cause, httpx.HTTPStatusError):
        return _refusal(cause.response.status_code)
    if isinstance(error, A2AClientTimeoutError) or isinstance(cause, httpx.TimeoutException):
        return RemoteAgentUnavailable("The remote agent did not answer in time.")
    if isinstance(cause, httpx.TransportError):
        kind = type(cause).__name__
        return RemoteAgentUnavailable(f"The remote agent was not reached ({kind}).")
    if isinstance(error, TaskNotFoundError):
        return AgentFailed("The remote agent no longer knows the job's task.")
    if isinstance(error, InternalError):
        return RemoteAgentUnavailable("The remote agent reported an internal error.")
    kind = type(error).__name__
    return AgentFailed(f"The remote agent refused the request, or answered it wrongly ({kind}).")


def _refusal(status: int) -> JobFailure:
    if 300 <= status < 400:  # noqa: PLR2004 - the statuses of redirects
        return InvalidJob(
            f"The remote agent redirects (HTTP {status}), which is not followed: give the address "
            "that it redirects to in a2a.url."
        )
    if status in _REFUSED:
        return InvalidJob(
            f"The remote agent refuses the caller (HTTP {status}): check a2a.credentials of its "
            "definition and the secrets that it names."
        )
    if status in _LATER:
        return RemoteAgentUnavailable(f"The remote agent answered with HTTP {status}.")
    return AgentFailed(f"The remote agent answered with HTTP {status}: check a2a.url.")
