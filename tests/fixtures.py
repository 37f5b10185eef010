"""Fixtures that many modules have, each with its own script, agents and settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.jobs.store.connection import connect
from tests.integration.jobs.bench import LONG_LEASE_SECONDS, Bench, opened_bench
from tests.integration.scripts import write_agents, write_script
from tests.services import Installation, Installer

BOTH_PROVIDERS = ("local", pytest.param("docker", marks=pytest.mark.docker))
"""The sandboxes of both kinds."""
DOCKER_SLOWLY = ("local", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow]))
"""The sandboxes of both kinds, of which the containers are for the slow tests."""


def place_fixture(
    *script: dict[str, Any],
    scope: Literal["function", "module"] = "function",
    providers: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Make the fixture `place` of a module: an installation.

    Args:
        script: The conversations of its scripted model.
        scope: Whether each test has its own or the module has one.
        providers: The kinds of sandbox for each of which there is one, if not only the local kind.
        options: What an `Installer` takes.
    """
    installer = "install" if scope == "function" else "install_for_module"

    @pytest.fixture(scope=scope, params=providers or None)
    def place(request: pytest.FixtureRequest) -> Installation:
        install: Installer = request.getfixturevalue(installer)
        if not providers:
            return install(*script, **options)
        kind = str(request.param)
        return install.below(kind)(*script, **{"FANOUT_SANDBOX__PROVIDER": kind, **options})

    return place


def bench_fixture(
    *script: dict[str, Any],
    agents: Mapping[str, str] | None = None,
    lease_seconds: float = LONG_LEASE_SECONDS,
    retry_pause_seconds: float | None = None,
    real_redis: bool = False,
) -> Any:
    """Make the fixture `bench` of a module: both halves of a job in one process.

    Args:
        script: The conversations of its scripted model.
        agents: The text of each agent's definition, by its name.
        lease_seconds: How long a lease is.
        retry_pause_seconds: How long a failed attempt waits for the next, if not as it is shipped.
        real_redis: Whether its ledger is in a Redis, and not in a fake one of this process.
    """

    @pytest.fixture
    async def bench(
        request: pytest.FixtureRequest,
        redis: FakeAsyncRedis,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> AsyncIterator[Bench]:
        if retry_pause_seconds is not None:
            monkeypatch.setattr(
                "fanout.workers.attempt.job_runner.RETRY_PAUSE_SECONDS", retry_pause_seconds
            )
        url = request.getfixturevalue("redis_url") if real_redis else None
        path = await asyncio.to_thread(write_script, tmp_path, *script)
        async with (
            connect(url) if url else nullcontext(redis) as ledger,
            opened_bench(ledger, tmp_path, path, lease_seconds) as made,
        ):
            if agents:
                folder = await asyncio.to_thread(write_agents, tmp_path, agents)
                made.configure(await asyncio.to_thread(load_agent_definitions, folder))
            yield made

    return bench
