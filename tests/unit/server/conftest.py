"""A small service behind the real middlewares, its keys on fakeredis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from fakeredis import FakeAsyncRedis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fanout.orchestrator.configuration.api_settings import ApiSettings
from fanout.orchestrator.jobs.store.access.api_keys import KeyStore
from fanout.orchestrator.jobs.store.access.audit_stream import AuditStream
from fanout.orchestrator.jobs.store.access.browser_sessions import BrowserSessions
from fanout.orchestrator.jobs.store.access.stores import AccessStores
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.server.access.assembly import Access, make_access
from fanout.orchestrator.server.access.login import Login

HERE = "http://127.0.0.1:8642"


@dataclass
class Site:
    """A service, and a browser or program that calls it."""

    access: Access
    http: httpx2.AsyncClient

    async def key(self, name: str = "ann", *scopes: str, **more: Any) -> str:
        """A new key."""
        given = {"owner": name, "tenant": "default", "created_by": "test"} | more
        key, _ = await self.access.stores.keys.create(name, scopes or ("read",), **given)
        return key

    async def audited(self) -> list[tuple[str, str, str]]:
        """The action, the outcome and the name of each entry of the audit log, newest first."""
        page = await self.access.audit.page()
        return [(one.action, one.outcome, one.name) for one in page.items]


async def who(request: Request) -> JSONResponse:
    """The caller, as the authentication has found it."""
    caller = getattr(request.state, "caller", None)
    return JSONResponse(caller and {"name": caller.name, "scopes": sorted(caller.scopes)})


@pytest.fixture
async def redis() -> AsyncIterator[FakeAsyncRedis]:
    async with FakeAsyncRedis(decode_responses=True) as client:
        yield client


@pytest.fixture
def stores(redis: FakeAsyncRedis) -> AccessStores:
    keys = Keys()
    return AccessStores(
        KeyStore(redis, keys), BrowserSessions(redis, keys), AuditStream(redis, keys), redis
    )


@pytest.fixture
async def site(
    stores: AccessStores,
) -> AsyncIterator[Callable[..., Site]]:
    opened: list[httpx2.AsyncClient] = []

    def make(base_url: str = HERE, **settings: Any) -> Site:
        access = make_access(ApiSettings(**settings), stores)
        paths = ("/", "/healthz", "/v1/jobs", "/v1/jobs/{id}")
        routes = [Route(path, who, methods=["GET", "POST"]) for path in paths]
        app = Starlette(routes=[*Login(access).routes(), *routes])
        transport = httpx2.ASGITransport(access.guarded(access.authenticated(app)))
        opened.append(httpx2.AsyncClient(transport=transport, base_url=base_url))
        return Site(access, opened[-1])

    yield make
    for client in opened:
        await client.aclose()
