"""A small service behind the real middlewares, its keys on fakeredis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from fakeredis import FakeAsyncRedis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from fanout.orchestrator import extras
from fanout.orchestrator.configuration.api_settings import ApiSettings
from fanout.orchestrator.jobs.store.access_stores import AccessStores
from fanout.orchestrator.jobs.store.api_keys import KeyStore
from fanout.orchestrator.jobs.store.audit_stream import AuditStream
from fanout.orchestrator.jobs.store.browser_sessions import BrowserSessions
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.server.access.assembly import ServerAccess, make_access
from fanout.orchestrator.server.access.login import Login

HERE = "http://127.0.0.1:8642"


@dataclass
class Site:
    """A service, and a browser or program that calls it."""

    access: ServerAccess
    app: ASGIApp
    http: httpx2.AsyncClient

    async def key(self, name: str = "ann", *scopes: str, **more: Any) -> str:
        """A new key."""
        given = {"owner": name, "tenant": "default", "created_by": "test"} | more
        key, _ = await self.access.stores.keys.create(name, scopes or ("read",), **given)
        return key

    async def audited(self) -> list[tuple[str, str, str]]:
        """The action, the outcome and the name of each entry of the audit log, newest first."""
        page = await self.access.stores.audit.page()
        return [(one.action, one.outcome, one.name) for one in page.items]


async def who(request: Request) -> JSONResponse:
    """The caller, as the authentication has found it."""
    caller = getattr(request.state, "caller", None)
    return JSONResponse(caller and {"name": caller.name, "scopes": sorted(caller.scopes)})


@asynccontextmanager
async def running_sites(redis: FakeAsyncRedis) -> AsyncIterator[Callable[..., Site]]:
    """Makes services whose keys are in one Redis: several are several servers of a service."""
    keys = Keys()
    stores = AccessStores(
        KeyStore(redis, keys), BrowserSessions(redis, keys), AuditStream(redis, keys), redis
    )
    async with AsyncExitStack() as opened:

        def make(base_url: str = HERE, address: str = "127.0.0.1", **settings: Any) -> Site:
            api = ApiSettings(**settings)
            issuer = api.oidc.issuer
            tokens = None if issuer is None else extras.token_verifier(issuer, api)
            access = make_access(api, stores, tokens)
            paths = ("/", "/healthz", "/v1/jobs", "/v1/jobs/{id}")
            routes = [Route(path, who, methods=["GET", "POST"]) for path in paths]
            app = Starlette(routes=[*Login(access).routes(), *routes])
            guarded = access.guarded(access.authenticated(app))
            transport = httpx2.ASGITransport(guarded, client=(address, 4711))
            client = httpx2.AsyncClient(transport=transport, base_url=base_url)
            opened.push_async_callback(client.aclose)
            return Site(access, guarded, client)

        yield make
