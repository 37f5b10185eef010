"""A model's service that is down for two hours, in virtual time: no job fails, no clock runs."""

from __future__ import annotations

import mmap
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import LIVE_STATES, JobState
from fanout.orchestrator.jobs.store.keys import Keys
from tests.builders import make_spec
from tests.integration.models.wires import Answer, call
from tests.quota_service import QuotaService, quota_service
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the virtual clock"),
]

HOURS_2 = 7_200
STEP = 30
LEAD = "name: lead\ndescription: leads\ninstruction: Lead.\nsubagents: [general-purpose]\n"
SOURCE = Path(__file__).parent.parent / "virtual_clock.c"


class VirtualClock:
    """The clocks of Redis and the worker, which the test moves on."""

    def __init__(self, folder: Path) -> None:
        self.library, self.file = folder / "virtual_clock.so", folder / "shift"
        compiled = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self.library), str(SOURCE)]
        subprocess.run(compiled, check=True)
        self.file.write_bytes(bytes(8))
        with self.file.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self.shift = 0

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "SHIFT_FILE": str(self.file)}

    def advance(self, seconds: int) -> None:
        self.shift += seconds
        self._shared[:] = self.shift.to_bytes(8, "little")


@pytest.fixture
def service() -> Iterator[QuotaService]:
    with quota_service() as service:
        yield service


@pytest.fixture
def clock(tmp_path: Path) -> VirtualClock:
    return VirtualClock(tmp_path)


@pytest.fixture
def place(
    install: Installer, service: QuotaService, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> Installation:
    """Redis and one worker by the virtual clock."""
    with monkeypatch.context() as patched:
        for name, value in clock.environment().items():
            patched.setenv(name, value)
        place = install(agents={"lead": LEAD}, **service.environment())
    place.start_worker(4, forked=False, **clock.environment())
    return place


async def test_two_hours_without_the_service_fail_no_job_and_use_no_attempt_and_no_time(
    place: Installation, service: QuotaService, clock: VirtualClock
) -> None:
    task = call("task", description="look", subagent_type="general-purpose")
    service.ends_with["lead the others"] = Answer([task])
    async with place.client() as client, Redis.from_url(place.redis.url) as redis:
        await place.ready(client)
        lead = make_spec("lead the others", agent="lead", limits=Limits(timeout_seconds=600))
        await client.submit(lead)
        await eventually(lambda: service.down, seconds=60)
        others = [make_spec("alone", limits=Limits(timeout_seconds=600)) for _ in range(3)]
        await client.submit_many([(one, None) for one in others])

        async def jobs() -> dict[str, JobState]:
            ids = await client.ids()
            return {record.id: record.state for record in await client.records(ids)}

        async def rests() -> bool:
            records = [await client.get(job_id) for job_id in await client.ids()]
            live = [record for record in records if not record.state.is_terminal]
            return all(one.waits_until or one.state is JobState.WAITING for one in live)

        async def moves_on(seconds: int) -> None:
            """Advance all clocks, while nothing runs, until the worker has noticed."""
            await eventually(rests, seconds=60)
            clock.advance(seconds)
            now = int((await redis.time())[0]) * 1000

            async def is_registered() -> bool:
                found = await redis.zrange(Keys().workers, 0, -1, withscores=True)
                return any(end > now + 1000 for _, end in found)

            await eventually(is_registered, seconds=60)

        for _ in range(HOURS_2 // STEP):
            await moves_on(STEP)
            assert set((await jobs()).values()) <= LIVE_STATES
        records = await client.records(await client.ids())
        assert len(records) == 5
        assert {record.attempt for record in records} <= {0, 1}
        assert any("does not answer (503)" in str(one.waiting_for) for one in records)
        tried = sum(service.refused.values())

        service.down = False
        service.ends_with.clear()
        for _ in range(40):
            await moves_on(STEP)
            if set((await jobs()).values()) == {JobState.SUCCEEDED}:
                break
        assert set((await jobs()).values()) == {JobState.SUCCEEDED}
        for job_id in await client.ids():
            result = await client.result(job_id)
            assert result is not None
            assert result.attempts == 1
            assert result.execution_seconds < 600
        assert tried < 600, "it is tried once a minute"
