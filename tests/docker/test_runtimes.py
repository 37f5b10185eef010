"""The runtime of sandboxes where no setting names one: a lighter one if it works there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanout.workers.sandbox.docker import starts
from fanout.workers.sandbox.docker.engine import Engine
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import make_sandbox_spec

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(300)]

WORKS = "io.containerd.runc.v2"
"""Another name that engines have for runc."""
DEFAULT = "the engine's default"

Listing = Callable[..., None]


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Makes the engine say that it has another runtime, and which one is its default."""
    genuine = Engine.info

    def have(runtime: str, default: str = "runc") -> None:
        async def info(engine: Engine) -> dict[str, Any]:
            known = await genuine(engine)
            listed = {**(known.get("Runtimes") or {}), runtime: {"path": runtime}}
            return {**known, "Runtimes": listed, "DefaultRuntime": default}

        monkeypatch.setattr(Engine, "info", info)
        monkeypatch.setattr(starts, "_LIGHTER", runtime)

    return have


async def used(provider: DockerProvider) -> str:
    """The runtime that a worker names; a sandbox runs with it."""
    async with provider.open(make_sandbox_spec()) as sandbox:
        assert (await sandbox.run(Command(argv="true"))).exit_code == 0
    return (await provider.protection())["runtime"]


async def test_a_lighter_runtime_that_works_is_used(
    make_provider: Callable[..., DockerProvider], listing: Listing
) -> None:
    listing(WORKS)

    assert await used(make_provider()) == WORKS


async def test_a_lighter_runtime_that_starts_nothing_is_not_used(
    make_provider: Callable[..., DockerProvider], listing: Listing
) -> None:
    listing("listed-but-missing")

    assert await used(make_provider()) == DEFAULT


async def test_a_lighter_runtime_that_lets_jobs_write_where_they_must_not_is_not_used(
    make_provider: Callable[..., DockerProvider],
    listing: Listing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing(WORKS)
    monkeypatch.setattr(starts, "_PROBE", ("sh", "-c", "mkdir /dev/shm/probe || echo fit"))

    assert await used(make_provider()) == DEFAULT


async def test_a_runtime_that_somebody_chose_is_kept(
    make_provider: Callable[..., DockerProvider], listing: Listing
) -> None:
    listing(WORKS, default="kept")

    assert await used(make_provider()) == DEFAULT
    assert await used(make_provider(runtime="runc")) == "runc"
