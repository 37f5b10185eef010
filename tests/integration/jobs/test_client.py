"""`JobClient` on a real Redis; the worker's part is done by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as some

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.jobs.failures import InvalidJob, UnknownAgent, UnknownJob
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import BEGINNING
from fanout.orchestrator.jobs.store.keys import Keys
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand, until_awaited
from tests.waits import eventually

pytestmark = pytest.mark.redis


# list, tree


async def test_jobs_are_listed_by_state_and_labels_oldest_first(
    client: JobClient, hand: Hand
) -> None:
    labels = [{"team": "a"}, {"team": "a", "kind": "x"}, {"team": "b"}]
    specs = [make_spec(labels=each) for each in labels]
    first, second, third = await client.submit_many([(spec, None) for spec in specs])
    await hand.finish(await hand.claim(second))

    async def listed(**how: object) -> list[str]:
        return [record.id for record in await client.list(**how)]

    assert await listed() == [first, second, third]
    assert await listed(labels={"team": "a"}) == [first, second]
    assert await listed(labels={"team": "a", "kind": "x"}) == [second]
    assert await listed(states={JobState.QUEUED}) == [first, third]
    assert await listed(states={JobState.SUCCEEDED}) == [second]
    assert await listed(states={JobState.SUCCEEDED, JobState.QUEUED}, labels={"team": "b"}) == [
        third
    ]
    assert await listed(states=set()) == []
    assert await listed(limit=2) == [second, third]
    assert await listed(limit=0) == []


async def test_of_more_jobs_than_the_limit_the_newest_are_listed(client: JobClient) -> None:
    ids = await client.submit_many(
        [(make_spec(root_id="t", labels={"n": str(n % 2)}), None) for n in range(1200)]
    )

    assert [record.id for record in await client.list(limit=700)] == ids[-700:]
    assert [record.id for record in await client.list(labels={"n": "1"}, limit=3)] == ids[1::2][-3:]


async def test_a_tree_is_the_same_from_each_of_its_jobs(client: JobClient) -> None:
    root = make_spec(id="root")
    child = make_spec(id="child", root_id="root", parent_id="root", depth=1)
    grandchild = make_spec(id="grandchild", root_id="root", parent_id="child", depth=2)
    other = make_spec(id="other")
    for spec in (root, child, grandchild, other):
        await client.submit(spec)

    for job_id in ("root", "child", "grandchild"):
        assert [record.id for record in await client.tree(job_id)] == [
            "root",
            "child",
            "grandchild",
        ]
    with pytest.raises(UnknownJob):
        await client.tree("nobody")


async def test_a_tree_that_is_read_again_has_its_new_jobs_and_its_changes(
    client: JobClient, hand: Hand
) -> None:
    ids = await client.submit_many([(make_spec(root_id="t"), None) for _ in range(3)])
    tree = client.growing_tree(ids[1])
    assert [record.id for record in await tree.read(limit=2)] == ids[:2]
    assert [record.state for record in await tree.read()] == ["queued"] * 3

    await hand.finish(await hand.claim(ids[0]))
    [later] = await client.submit_many([(make_spec(root_id="t"), None)])

    assert {record.id: record.state for record in await tree.read()} == {
        ids[0]: "succeeded",
        ids[1]: "queued",
        ids[2]: "queued",
        later: "queued",
    }
    assert [record.id for record in await client.tree("t", limit=3)] == ids
    assert await client.tree_sizes(["t"]) == [4]


async def test_live_jobs_are_listed_however_many_there_are(
    client: JobClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await client.submit_many([(make_spec(), None) for _ in range(7)])
    for ended in (ids[2], ids[6]):
        await hand.finish(await hand.claim(ended))
    live = [one for one in ids if one not in (ids[2], ids[6])]
    for few_live in (1000, 1):
        monkeypatch.setattr("fanout.orchestrator.jobs.store.records.FEW_LIVE", few_live)
        monkeypatch.setattr("fanout.orchestrator.jobs.store.records.IDS_AT_ONCE", 2)
        for limit in (2, 4, 100):
            listed = await client.list(states={JobState.QUEUED}, limit=limit)
            assert [record.id for record in listed] == live[-limit:], (few_live, limit)


# submit, retry, cancel


async def test_one_bad_specification_and_nothing_is_stored(
    client: JobClient, tmp_path: Path
) -> None:
    good = [make_spec() for _ in range(150)]
    for bad in (make_spec(agent="no-such-agent"), make_spec(labels={"a": "x" * 200_000})):
        with pytest.raises((UnknownAgent, InvalidJob)):
            await client.submit_many([*((spec, tmp_path) for spec in good), (bad, None)])

    assert await client.list() == []


async def test_an_idempotency_key_is_one_job_for_its_tenant(client: JobClient) -> None:
    first = await client.submit(make_spec(idempotency_key="k", tenant="a"))

    assert await client.submit(make_spec("other words", idempotency_key="k", tenant="a")) == first
    assert await client.submit(make_spec(idempotency_key="k", tenant="b")) != first
    assert await client.submit(make_spec(idempotency_key="b:c", tenant="a")) != await client.submit(
        make_spec(idempotency_key="c", tenant="a:b")
    )


async def test_a_key_submitted_by_many_at_once_is_one_job(client: JobClient) -> None:
    specs = [make_spec(idempotency_key="k") for _ in range(30)]

    ids = await asyncio.gather(*(client.submit(spec) for spec in specs))

    assert len(set(ids)) == 1
    assert [record.id for record in await client.list()] == [ids[0]]


async def test_a_retry_is_the_same_work_as_a_tree_of_its_own(client: JobClient, hand: Hand) -> None:
    await client.submit(make_spec(id="root"))
    spec = make_spec(
        "again", id="child", root_id="root", parent_id="root", depth=1, idempotency_key="k"
    )
    job_id = await client.submit(spec.model_copy(update={"labels": {"team": "a"}}))
    await hand.ledger.cancel(job_id)

    again = await client.get(await client.retry(job_id))

    assert again.id not in {"root", "child"}
    assert (again.root_id, again.parent_id, again.depth) == (again.id, None, 0)
    assert (again.description, again.labels, again.state) == (
        "again",
        {"team": "a"},
        JobState.QUEUED,
    )
    with pytest.raises(UnknownJob):
        await client.retry("nobody")


async def test_cancelling_a_job_that_has_ended_leaves_it_as_it_is(
    client: JobClient, hand: Hand
) -> None:
    job_id = await client.submit(make_spec())
    await hand.finish(await hand.claim(job_id), summary="done")
    events = [event async for event in client.events(job_id)]

    before = await client.cancel(job_id)

    assert before.state is JobState.SUCCEEDED
    result = await client.result(job_id)
    assert result is not None
    assert (result.state, result.summary) == (JobState.SUCCEEDED, "done")
    assert [event async for event in client.events(job_id)] == events


# wait


async def test_a_wait_that_takes_too_long_leaves_the_job_alone(
    client: JobClient, hand: Hand
) -> None:
    job_id = await client.submit(make_spec())
    with pytest.raises(TimeoutError):
        await client.wait(job_id, 0.2)
    with pytest.raises(TimeoutError):
        await client.wait(job_id, 0)
    assert (await client.get(job_id)).state is JobState.QUEUED

    await hand.finish(await hand.claim(job_id))

    assert (await client.wait(job_id, 0)).success, (
        "what has ended is told however little time there is"
    )


async def test_waiting_for_nobody_says_so(client: JobClient) -> None:
    with pytest.raises(UnknownJob):
        await client.wait("nobody", 5)


async def test_many_waits_for_many_jobs_end_with_theirs(client: JobClient, hand: Hand) -> None:
    ids = await client.submit_many([(make_spec(root_id="t"), None) for _ in range(8)])
    waits = [asyncio.create_task(client.wait(job_id)) for job_id in ids for _ in range(10)]
    for job_id in ids:
        await until_awaited(hand, job_id)

    for job_id in ids:
        await hand.finish(await hand.claim(job_id))
    async with asyncio.timeout(60):
        results = await asyncio.gather(*waits)

    assert [result.job_id for result in results] == [job_id for job_id in ids for _ in range(10)]


async def test_a_wait_is_woken_and_does_not_sit_out_its_poll(
    client: JobClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.journal.POLL_SECONDS", 600.0)
    job_id = await client.submit(make_spec())
    claim = await hand.claim(job_id)
    for _ in range(3):  # later listeners of a channel are woken as well
        with pytest.raises(TimeoutError):
            await client.wait(job_id, 0.1)
    waiting = asyncio.create_task(client.wait(job_id))
    await until_awaited(hand, job_id)

    await hand.finish(claim)

    async with asyncio.timeout(60):
        await waiting


# events


async def test_two_clients_follow_one_job_and_see_the_same(
    client: JobClient, hand: Hand, redis_url: str, settings: Settings
) -> None:
    job_id = await client.submit(make_spec())
    async with JobClient(redis_url, settings, client.definitions) as other:

        async def follow(follower: JobClient) -> list[str]:
            return [event.id async for event in follower.events(job_id)]

        following = [asyncio.create_task(follow(one)) for one in (client, other, client)]
        claim = await hand.claim(job_id)
        for number in range(50):
            await hand.say(job_id, str(number))
        await hand.finish(claim)
        async with asyncio.timeout(60):
            seen = await asyncio.gather(*following)

    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 53


@trying(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=some.lists(some.integers(1, 40), max_size=6), burst=some.integers(1, 12))
async def test_a_reader_that_comes_and_goes_misses_nothing_and_sees_nothing_twice(
    client: JobClient, hand: Hand, cuts: list[int], burst: int
) -> None:
    job_id = await client.submit(make_spec())
    claim = await hand.claim(job_id)

    async def tell() -> None:
        for number in range(40):
            await hand.say(job_id, str(number))
            if number % burst == 0:
                await asyncio.sleep(0)
        await hand.finish(claim)

    async def read(after: str, most: int) -> tuple[list[str], str]:
        texts = []
        async for event in client.events(job_id, after):
            after = event.id
            texts.append(str(event.data.get("text", event.data.get("state"))))
            if len(texts) == most:
                break
        return texts, after

    telling = asyncio.create_task(tell())
    seen: list[str] = []
    after = BEGINNING
    async with asyncio.timeout(60):
        for cut in [*cuts, 1000]:
            texts, after = await read(after, cut)
            seen += texts
        await telling

    assert seen == ["queued", "running", *(str(number) for number in range(40)), "succeeded"]


async def test_a_long_journal_is_read_in_pages_without_a_gap(client: JobClient, hand: Hand) -> None:
    job_id = await client.submit(make_spec())
    claim = await hand.claim(job_id)
    for first in range(0, 1100, 50):
        await asyncio.gather(
            *(hand.say(job_id, str(number)) for number in range(first, first + 50))
        )
    following = asyncio.create_task(_texts(client, job_id))
    await eventually(lambda: hand.redis.pubsub_channels(Keys().journal_changed(job_id)))
    await hand.finish(claim)

    async with asyncio.timeout(60):
        texts = await following

    assert sorted(map(int, texts)) == list(range(1100))


async def _texts(client: JobClient, job_id: str) -> list[str]:
    return [
        str(event.data["text"]) async for event in client.events(job_id) if "text" in event.data
    ]


async def test_the_events_of_nobody_are_not_awaited(client: JobClient) -> None:
    with pytest.raises(UnknownJob):
        _ = [event async for event in client.events("nobody")]


# changes


async def test_changes_that_are_not_there_are_told_in_words(
    client: JobClient, hand: Hand, tmp_path: Path
) -> None:
    job_id = await client.submit(make_spec())
    with pytest.raises(InvalidJob, match="has not ended"):
        await client.apply(job_id, tmp_path)
    await hand.finish(await hand.claim(job_id))
    with pytest.raises(InvalidJob, match="changed nothing"):
        await client.apply(job_id, tmp_path)
    with pytest.raises(UnknownJob):
        await client.apply("nobody", tmp_path)
