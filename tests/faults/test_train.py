"""A worker dies while what tasks changed lands: nothing is left half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.stopping import until_running
from tests.faults.test_worker_faults import ends_with_nothing_left, holder, two_workers
from tests.fixtures import BOTH_PROVIDERS, place_fixture
from tests.integration.worker.test_train import LEAD, MIXED, PROJECT, SCRIPT, TESTS
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SECONDS = f"60.{os.getpid()}"
"""No other test sleeps so long."""
COUNTED = (
    f"s={SECONDS}; "
    "n=$(cat runs 2>/dev/null || echo 0); n=$((n + 1)); echo $n > runs; "
    f"if [ $n -eq %d ]; then sleep $s; fi; {TESTS}"
)
"""Its own file is no test's: it says how often the command was begun."""


place = place_fixture(
    *SCRIPT, providers=BOTH_PROVIDERS, agents={"lead": LEAD}, FANOUT_WORKER__LEASE_SECONDS="4"
)


@pytest.mark.parametrize("number", [1, 4, 6])
async def test_a_landing_whose_verification_was_cut_off_is_undone_and_begun_again(
    place: Installation, tmp_path: Path, number: int
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    async with place.client() as client:
        await two_workers(place, client)
        spec = make_spec("mixed", agent="lead", verify_merges=COUNTED % number)
        job_id = await client.submit(spec, workspace=project)
        seen = 0
        async for event in client.events(job_id):
            seen += event.type is EventType.VERIFY
            if seen == number - 1 and event.type in {EventType.LANDING, EventType.VERIFY}:
                break
        await until_running(f"sleep {SECONDS}")
        holder(place, await client.get(job_id)).kill()

        result = await client.wait(job_id, 120)

        assert result.success, result.error
        assert result.usage.model_calls == 2
        await client.merge(result, project)
        assert (project / "colour.txt").read_text() == "teal\n"
        assert "add_up([3])" in (project / "extra.py").read_text()
        assert "add_up" in (project / "app.py").read_text()
        assert sorted(path.name for path in project.glob("part_*.py")) == [
            f"part_{part}.py" for part in range(1, 5)
        ]
        children = [one for one in await client.tree(job_id) if one.parent_id == job_id]
        assert len(children) == len(MIXED) + 2
        landings = [
            len(event.data["children"])
            async for event in client.events(job_id, follow=False)
            if event.type is EventType.LANDING
        ]
        assert landings == [8, 0, 8, 2]
    await ends_with_nothing_left(place)
