"""The protocol over gRPC, on a separate port: the same handler, the same keys.

It is in no card: ADK's clients refuse cards with addresses of another origin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import grpc
import grpc.aio
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import add_A2AServiceServicer_to_server as add_older
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError

from ...configuration.api_settings import ApiSettings, is_loopback
from ...jobs.failures import LedgerUnavailable
from ...jobs.trace_context import TraceContext, read_traceparent
from ...server.access.authenticator import presented
from ...server.access.callers import (
    AuthenticationUnavailable,
    Caller,
    NotAllowed,
    NotAuthenticated,
)
from ...server.access.limits import Buckets, TooManyAttempts
from ...server.http.requests import Service
from ...server.middleware import TRACEPARENT
from ...tracing import spans
from .handler import (
    AGENT,
    BASE_URL,
    CALLER,
    JobRequestHandler,
    KnownCaller,
)

NEEDS_KEY = "Send a key as the metadata `authorization: Bearer …` (fanout keys create)."
TOO_MANY = "Too many requests a minute: wait a moment."
IDLE_SECONDS = 300
"""The time after which a connection without a call is closed; clients of gRPC connect again with
their next call."""
STATUS: dict[type[Exception], grpc.StatusCode] = {
    NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    TooManyAttempts: grpc.StatusCode.RESOURCE_EXHAUSTED,
    AuthenticationUnavailable: grpc.StatusCode.UNAVAILABLE,
    LedgerUnavailable: grpc.StatusCode.UNAVAILABLE,
}
"""The status in gRPC of each refusal."""

_caller: ContextVar[Caller] = ContextVar("caller")


class GrpcUnusable(Exception):
    """The door cannot be opened as it is configured; the text says what to do."""


class Authenticates(Protocol):
    """The part that finds callers by their keys and tokens."""

    async def find_caller(self, credential: str, address: str) -> Caller:
        """Return the caller of a key or a token, or raise one of the kinds of `STATUS`."""


@asynccontextmanager
async def grpc_door(
    service: Service, authenticator: Authenticates, settings: ApiSettings, base_url: str
) -> AsyncIterator[int]:
    """Serve gRPC for the duration of a context; yields the port.

    Args:
        service: What all requests share.
        authenticator: Finds callers.
        settings: The address, the limits and the certificate.
        base_url: The origin of the HTTP service, for contents that are too large for a task.

    Raises:
        GrpcUnusable: The address is in use, a certificate cannot be read, or keys would cross a
            network without TLS.
    """
    keys = _Keys(authenticator, Buckets(settings.requests_per_minute))
    server = grpc.aio.server(
        interceptors=[keys],
        maximum_concurrent_rpcs=settings.max_streams,
        options=[
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.server_handshake_timeout_ms", round(settings.head_seconds * 1000)),
            ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ],
    )
    handler = JobRequestHandler(service)
    servicer = GrpcHandler(handler, _Contexts(base_url, PROTOCOL_VERSION_1_0))
    add_A2AServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call] # generated
    older = CompatGrpcHandler(handler, _Contexts(base_url, PROTOCOL_VERSION_0_3))
    add_older(older, server)  # type: ignore[no-untyped-call] # generated
    port = _bind(server, settings)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(settings.shutdown_grace_seconds)


def _bind(server: grpc.aio.Server, settings: ApiSettings) -> int:
    host, port = settings.host, settings.grpc_port or 0
    address = f"[{host}]:{port}" if ":" in host.strip("[]") else f"{host}:{port}"
    certificate, key = settings.grpc_certificate_file, settings.grpc_key_file
    try:
        if certificate is not None and key is not None:
            pair = (key.read_bytes(), certificate.read_bytes())
            return int(server.add_secure_port(address, grpc.ssl_server_credentials([pair])))
        if not is_loopback(host) and not settings.grpc_without_tls:
            raise GrpcUnusable(
                "Keys would cross the network unencrypted over gRPC: set "
                "FANOUT_API__GRPC_CERTIFICATE_FILE and FANOUT_API__GRPC_KEY_FILE, or, where a "
                "proxy "
                "adds TLS, FANOUT_API__GRPC_WITHOUT_TLS=true."
            )
        return int(server.add_insecure_port(address))
    except OSError as error:
        raise GrpcUnusable(f"{error.filename} cannot be read ({error.strerror}).") from error
    except RuntimeError as error:
        raise GrpcUnusable(
            f"gRPC cannot listen on {address}: choose another FANOUT_API__GRPC_PORT."
        ) from error


class _Contexts(GrpcServerCallContextBuilder):
    """Makes the contexts of one of the two generated services.

    Args:
        base_url: The origin of the HTTP service.
        version: The version of the protocol of the generated service.
    """

    def __init__(self, base_url: str, version: str) -> None:
        self._base_url = base_url
        self._version = version

    def build(self, context: grpc.aio.ServicerContext[Any, Any]) -> ServerCallContext:
        """Return the context of a call whose caller is known.

        Raises:
            VersionNotSupportedError: The call names another version than that of its service. A
                call without a version has that of its service.
        """
        caller = _caller.get()
        metadata = _metadata(context)
        for name, text in metadata:
            if name == VERSION_HEADER.lower() and text and not _is_of(text, self._version):
                raise VersionNotSupportedError(
                    message=f"A2A {text[:20]} is not supported by this gRPC service, which speaks "
                    f"{self._version}."
                )
        given = [text for name, text in metadata if name == HTTP_EXTENSION_HEADER.lower()]
        return ServerCallContext(
            user=KnownCaller(caller),
            requested_extensions=get_requested_extensions(given),
            state={CALLER: caller, AGENT: None, BASE_URL: self._base_url},
        )


class _Keys(grpc.aio.ServerInterceptor):  # type: ignore[misc] # untyped
    """An interceptor that lets no call reach its method without a caller."""

    def __init__(self, authenticator: Authenticates, requests: Buckets) -> None:
        self._authenticator = authenticator
        self._requests = requests

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        """Return the method with the check in front of it."""
        method = await continuation(handler_call_details)
        if method is None:
            return None
        codecs = (method.request_deserializer, method.response_serializer)
        if method.unary_stream is not None:

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                await self._admit(context)
                spans.continue_in_task(_traceparent(context))
                async for item in method.unary_stream(request, context):
                    yield item

            return grpc.unary_stream_rpc_method_handler(stream, *codecs)

        async def call(request: Any, context: Any) -> Any:
            await self._admit(context)
            with spans.below(_traceparent(context)):
                return await method.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(call, *codecs)

    async def _admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Find the caller of a call, or end the call."""
        try:
            credential = presented(_metadata(context))
            if credential is None:
                raise NotAuthenticated(NEEDS_KEY)
            caller = await self._authenticator.find_caller(credential, _address(context.peer()))
        except tuple(STATUS) as refusal:
            status = next(STATUS[kind] for kind in type(refusal).__mro__ if kind in STATUS)
            await context.abort(status, str(refusal))
        name = f"{caller.tenant}/{caller.owner}/{caller.name}"
        if self._requests.wait(name):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY)
        self._requests.take(name)
        _caller.set(caller)


def _is_of(given: str, version: str) -> bool:
    """Return whether a version has the major number of another: minor ones are compatible."""
    return given.strip().split(".")[0] == version.split(".", maxsplit=1)[0] and "," not in given


def _metadata(context: grpc.aio.ServicerContext[Any, Any]) -> list[tuple[str, str]]:
    return [
        (str(name).lower(), value)
        for name, value in context.invocation_metadata() or ()
        if isinstance(value, str)
    ]


def _traceparent(context: grpc.aio.ServicerContext[Any, Any]) -> TraceContext | None:
    """Return the span of the caller, if it names one."""
    given = [value for name, value in _metadata(context) if name == TRACEPARENT]
    return read_traceparent(given[0]) if len(given) == 1 else None


def _address(peer: str) -> str:
    """Return the address of a peer such as `ipv4:127.0.0.1:4711`, without its port."""
    return peer.partition(":")[2].rpartition(":")[0].strip("[]") or peer
