"""One server process, from its settings to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from .. import extras
from ..client import JobClient
from ..client.attachment import attached, is_of_state_folder
from ..client.fleet_counts import FleetCounter
from ..client.job_counts import JobCounts
from ..configuration.api_settings import ApiSettings, is_loopback
from ..configuration.settings import Settings
from ..jobs.store.access_stores import open_access_stores
from ..workspace.exchange.cloned import GitRules
from .access.assembly import ServerAccess, make_access
from .access.authenticator import TokenCheck
from .access.login import Login
from .app import Bounds, create_app
from .connections import (
    ConnectionLimits,
    Connections,
    HttpConnection,
    log_exhaustion_seldom,
)
from .event_feed import ChangedJobs, EventFeed
from .http.requests import Service
from .metrics import Metrics
from .notifications.notifier import make_notifications
from .page import page_routes
from .person_folders import person_folders
from .uploads import GitHosts, Uploads

MAX_DESCRIPTORS = 1024 * 1024
"""What Linux permits at most unless `fs.nr_open` is raised; macOS refuses `unlimited`."""
log = structlog.get_logger(__name__)

KEEP_ALIVE_SECONDS = 65
"""The time of an idle connection. It is longer than the minute after which proxies close theirs, so
that none sends a request into a closing connection."""
ACCEPTED_AT_ONCE = 64
"""The connections that are accepted before requests have their turn again: each takes some 0.1 ms.
"""
QUEUED_CONNECTIONS = 4096
"""The connections that wait to be accepted, in the kernel: as many as Linux permits by default."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of this process to its hard limit, and return the soft one.

    The soft limit is often 1,024, for programs that use `select`; fanout does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # macOS has its own lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


class AddressUnusable(Exception):
    """The service cannot listen on its address; the text says what to do."""


@dataclass(frozen=True)
class Listening:
    """A server that accepts connections."""

    url: str
    """The address of the server for this machine."""
    is_local: bool
    """Whether only this machine reaches it."""
    access: ServerAccess

    async def login_link(self) -> str:
        """Return a link that logs in one browser, once, as the operator.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        return await self.access.login_link(self.access.settings.public_url or self.url)


async def serve(settings: Settings, ready: Callable[[Listening], Awaitable[None]]) -> None:
    """Serve until SIGTERM or SIGINT.

    Requests in progress are answered then; streams of events end, and their readers continue at
    another server or at this one's successor.

    Args:
        settings: The settings of this process.
        ready: Called when the server accepts connections.

    Raises:
        LedgerUnavailable: Redis is not configured or does not respond.
        PublicWithoutKeys: Other machines would reach it, and nobody could authenticate.
        AddressUnusable: Its address is in use or not this machine's.
    """
    descriptors = raise_descriptor_limit()
    log_exhaustion_seldom(asyncio.get_running_loop())
    found = attached(settings)
    async with (
        JobClient.from_settings(settings) as client,
        open_access_stores(str(found.redis_url), found.redis_prefix) as stores,
    ):
        access = make_access(settings.api, stores, _token_check(settings.api))
        await access.check_bind(settings.api.host)
        with _listen(settings.api.host, settings.api.port) as listener:
            url = _url(settings.api.host, listener)
            connections = Connections(_connection_limits(settings.api, descriptors))
            app = _application(settings, client, access, connections)
            server = uvicorn.Server(_configuration(settings, app, connections))
            listening = Listening(url, is_loopback(settings.api.host), access)
            _end_without_a_signal()
            async with (
                _grpc(settings.api, app.state.service, access, url),
                _announced(server, listener, ready, listening),
            ):
                await server.serve(sockets=[listener])


def _application(
    settings: Settings, client: JobClient, access: ServerAccess, connections: Connections
) -> FastAPI:
    api = settings.api
    rules = GitRules(GitHosts(api.git_hosts), api.git_seconds, api.git_ca_file)
    notifier_settings = settings.notifications
    if notifier_settings.base_url is None:
        notifier_settings = notifier_settings.model_copy(update={"base_url": api.public_url})
    notifications = make_notifications(
        client, client.notifications, notifier_settings, extras.push_builders(client)
    )
    service = Service(
        client,
        EventFeed(client),
        ChangedJobs(client),
        access.audit,
        notifications,
        Metrics(JobCounts(client), FleetCounter(client), connections),
        Uploads(rules),
        person_folders(
            client,
            api,
            settings.state_dir.expanduser(),
            is_embedded=is_of_state_folder(settings),
        ),
    )
    return create_app(
        service,
        Bounds(
            api.max_body_bytes, api.max_upload_bytes, api.stall_seconds, api.min_bytes_per_second
        ),
        Middleware(access.authenticated),
        guards=[Middleware(access.guarded)],
        routes=[
            *Login(access, has_folders=service.folders is not None).routes(),
            *page_routes(),
        ],
        public_url=settings.api.public_url,
        background=[notifications.run, connections.watch],
    )


@contextlib.asynccontextmanager
async def _grpc(
    settings: ApiSettings, service: Service, access: ServerAccess, url: str
) -> AsyncIterator[None]:
    """Also serve A2A over gRPC, if that is configured.

    Raises:
        AddressUnusable: It cannot be served as it is configured.
    """
    if settings.grpc_port is None:
        yield
        return
    try:
        grpc_door = extras.grpc_door
    except ImportError:
        raise AddressUnusable(
            "A2A over gRPC needs the extra grpc: pip install 'fanout-orchestrator[grpc]'."
        ) from None
    try:
        base_url = settings.public_url or url
        async with grpc_door(service, access.authenticator, settings, base_url):
            yield
    except extras.GrpcUnusable as failure:
        raise AddressUnusable(str(failure)) from failure


def _token_check(settings: ApiSettings) -> TokenCheck | None:
    issuer = settings.oidc.issuer
    return None if issuer is None else extras.token_verifier(issuer, settings)


def _connection_limits(api: ApiSettings, descriptors: int) -> ConnectionLimits:
    """Return the limits of connections; for each one the server may need a second descriptor."""
    most = max(1, min(api.max_connections, descriptors // 2))
    if most < api.max_connections:
        log.warning("fewer connections than configured", descriptors=descriptors, connections=most)
    return ConnectionLimits(
        in_all=most,
        of_address=api.max_connections_of_address,
        head_seconds=api.head_seconds,
        stall_seconds=api.stall_seconds,
        bytes_per_second=api.min_bytes_per_second,
        proxies=api.trusted_proxies,
    )


def _configuration(settings: Settings, app: ASGIApp, connections: Connections) -> uvicorn.Config:
    proxies = list(settings.api.trusted_proxies)
    return uvicorn.Config(
        app,
        log_config=None,
        log_level=logging.ERROR,  # warnings are about data from outside
        http=partial(HttpConnection, connections),  # type: ignore[arg-type] # called like the class
        backlog=ACCEPTED_AT_ONCE,
        access_log=False,  # it would quote search texts
        server_header=False,
        ws="none",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.api.shutdown_grace_seconds),
        reset_contextvars=True,  # a request knows nothing of others on its connection
    )


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections.

    Raises:
        AddressUnusable: The address is in use or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host.strip("[]"), port), family=family, backlog=QUEUED_CONNECTIONS
        )
    except OSError as error:
        raise AddressUnusable(
            f"The service cannot listen on {host}:{port} ({error.strerror}): choose another with "
            "--host and --port (0: any free port)."
        ) from error


def _end_without_a_signal() -> None:
    """Let this process end normally after a signal that uvicorn has obeyed and raises again."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - as it may be given
    name = everywhere.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


@contextlib.asynccontextmanager
async def _announced(
    server: uvicorn.Server,
    listener: socket.socket,
    ready: Callable[[Listening], Awaitable[None]],
    listening: Listening,
) -> AsyncIterator[None]:
    """Call `ready` when the server has started."""

    async def announce() -> None:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
        listener.listen(QUEUED_CONNECTIONS)  # uvicorn has one number for this and the other
        await ready(listening)

    task = asyncio.create_task(announce())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
