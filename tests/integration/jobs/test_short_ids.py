"""Short forms of ids: the beginning or the end of one, as people type them."""

from __future__ import annotations

import pytest

from fanout.orchestrator.cli.terminal.session import MAX_COUNTED, resolve_job
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import InvalidJob, UnknownJob
from fanout.orchestrator.jobs.store.keys import Keys
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand
from tests.waits import eventually

pytestmark = pytest.mark.redis

IDS = (
    "abc1",
    "abc2",
    "ab",
    "xyz",
    "x-y_Z",
    "Zebra",
    "bra",
    "a-long-report",
    "the-long-report",
    "b0",
    "p",
)


async def test_an_id_may_be_shortened_while_it_is_unique(client: JobClient) -> None:
    for job_id in ("abc1", "abc2", "ab", "xyz"):
        await client.submit(make_spec(id=job_id))

    assert await resolve_job(client, "x") == "xyz"
    assert await resolve_job(client, "abc1") == "abc1"
    assert await resolve_job(client, "ab") == "ab", "a whole id is never ambiguous"
    with pytest.raises(InvalidJob, match=r"abc may mean 2 jobs, so name one: abc1, abc2"):
        await resolve_job(client, "abc")
    for unknown in ("nobody", "", "*", "abc?"):
        with pytest.raises(UnknownJob):
            await resolve_job(client, unknown)


@pytest.mark.parametrize("are_indexed", [True, False], ids=["indexed", "of an earlier release"])
async def test_the_ids_found_are_those_that_begin_or_end_so(
    client: JobClient, hand: Hand, *, are_indexed: bool
) -> None:
    await hand.ledger.submit([make_spec(id=job_id) for job_id in IDS])
    if not are_indexed:
        await hand.redis.delete(Keys().ids, Keys().ids_by_end)
        await hand.ledger.submit([make_spec(id="abcd")])
    ids = IDS if are_indexed else (*IDS, "abcd")

    parts = {job_id[:n] for job_id in ids for n in range(1, len(job_id) + 1)}
    ends = {job_id[n:] for job_id in ids for n in range(len(job_id))}
    for part in parts | ends:
        beginning = [part] if part in ids else sorted(i for i in ids if i.startswith(part))
        ending = sorted(i for i in ids if i.endswith(part))
        assert await client.find_ids_by_beginning(part, MAX_COUNTED) == beginning, part
        assert await client.find_ids_by_ending(part, MAX_COUNTED) == ending, part


async def test_a_short_id_is_found_without_reading_the_others(
    client: JobClient, hand: Hand
) -> None:
    ids = await hand.ledger.submit([make_spec() for _ in range(300)])

    await hand.redis.config_resetstat()
    assert await resolve_job(client, ids[7][4:]) == ids[7]
    with pytest.raises(InvalidJob, match=f"may mean more than {MAX_COUNTED} jobs"):
        await resolve_job(client, ids[0][:3])

    used = await hand.redis.info("commandstats")
    assert "cmdstat_zscan" not in used
    found = await client.find_ids_by_beginning(ids[0][:3], MAX_COUNTED)
    assert len(found) == MAX_COUNTED + 1


async def test_a_forgotten_job_is_not_found_by_a_short_id(client: JobClient, hand: Hand) -> None:
    gone, kept = await hand.ledger.submit([make_spec(id="one-gone"), make_spec(id="one-kept")])
    await hand.ledger.cancel(gone)
    assert await eventually(lambda: hand.ledger.forget(0.01)) == 1

    assert await resolve_job(client, "one") == kept
    with pytest.raises(UnknownJob):
        await resolve_job(client, "gone")
    assert await hand.redis.zcard(Keys().ids) == await hand.redis.zcard(Keys().ids_by_end) == 1


async def test_ids_with_the_same_long_end_are_told_apart(
    client: JobClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.client.id_search.SAME_END", 4)
    await hand.ledger.submit([make_spec(id=f"job-{n}-analysis") for n in range(12)])

    assert await resolve_job(client, "7-analysis") == "job-7-analysis"
    with pytest.raises(InvalidJob, match="1-analysis may mean 2 jobs"):
        await resolve_job(client, "1-analysis")
    with pytest.raises(InvalidJob, match="lysis may mean 12 jobs"):
        await resolve_job(client, "lysis")
