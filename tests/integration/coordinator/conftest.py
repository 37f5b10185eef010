"""One Redis and one worker for all tests of this folder that do not break them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.coordinator.driving import WORKER_SCRIPT, Coordination
from tests.integration.scripts import write_script
from tests.services import Installation, installation


@pytest.fixture(scope="session")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("coordinator")
    with installation(folder, script=write_script(folder, *WORKER_SCRIPT)) as made:
        made.start_worker(concurrency=8)
        yield made


@pytest.fixture
async def coordination(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> AsyncIterator[Coordination]:
    async with shared_place.client() as client:
        await shared_place.ready(client)
        yield Coordination(client, tmp_path, workspace)
