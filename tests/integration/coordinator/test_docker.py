"""The main path once with containers: two sub-agents at once, merged; nothing of them is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import place_fixture
from tests.integration.coordinator.driving import WORKER_SCRIPT, Coordination, running_times, task
from tests.integration.scripts import calls
from tests.services import Installation, containers_of, volumes_of

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.timeout(300)]


place = place_fixture(*WORKER_SCRIPT, workers=1, FANOUT_SANDBOX__PROVIDER="docker")


@pytest.mark.slow
async def test_sub_agents_in_containers_edit_one_file_at_once(
    place: Installation, tmp_path: Path, workspace: Path
) -> None:
    (workspace / "shared.txt").write_text("".join(f"line {number}\n" for number in range(9)))
    async with place.client() as client:
        await place.ready(client)
        coordination = Coordination(client, tmp_path, workspace)
        run = await coordination.run(
            calls(
                task("run: sleep 8; sed -i 1s/.*/first/ shared.txt; id -u > who.txt"),
                task("run: sleep 8; sed -i 9s/.*/last/ /workspace/shared.txt"),
            )
        )

        assert [result["status"] for result in run.results] == ["success"] * 2, run.results
        (begun_a, ended_a), (begun_b, ended_b) = [
            await running_times(client, result["task_id"]) for result in run.results
        ]
        assert max(begun_a, begun_b) < min(ended_a, ended_b)
        results = [await client.result(result["task_id"]) for result in run.results]
        assert [result.sandbox for result in results if result] == ["docker"] * 2
    text = (workspace / "shared.txt").read_text().splitlines()
    assert text == ["first", *(f"line {number}" for number in range(1, 8)), "last"]
    assert (workspace / "who.txt").read_text().strip() != "0"
    place.stop()
    assert containers_of(place.identity) + volumes_of(place.identity) == []
