"""Services behind the real middlewares, their keys on the fake Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from fakeredis import FakeAsyncRedis

from tests.site import Site, running_sites


@pytest.fixture
async def site(redis: FakeAsyncRedis) -> AsyncIterator[Callable[..., Site]]:
    async with running_sites(redis) as make:
        yield make
