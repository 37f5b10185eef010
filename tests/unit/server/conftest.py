"""Services behind the real middlewares, their keys on fakeredis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from fakeredis import FakeAsyncRedis

from tests.site import Site, running_sites


@pytest.fixture
async def redis() -> AsyncIterator[FakeAsyncRedis]:
    async with FakeAsyncRedis(decode_responses=True) as client:
        yield client


@pytest.fixture
async def site(redis: FakeAsyncRedis) -> AsyncIterator[Callable[..., Site]]:
    async with running_sites(redis) as make:
        yield make
