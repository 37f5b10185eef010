"""What ended long ago goes: records, journals, blobs. What somebody still needs stays."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.failures import BlobMissing, UnknownJob
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.upkeep.retention import MARGIN_SECONDS, Retention
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand

pytestmark = pytest.mark.redis


@pytest.fixture
def ledger(hand: Hand) -> Ledger:
    return hand.ledger


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore((tmp_path / "blobs").as_uri())


async def test_an_ended_job_goes_with_its_journal_and_a_running_one_stays(
    hand: Hand, ledger: Ledger, blobs: BlobStore
) -> None:
    ended, queued = await ledger.submit(
        [make_spec(idempotency_key="k"), make_spec(root_id="other")]
    )
    await hand.finish(await hand.claim(ended))
    await asyncio.sleep(0.02)

    await Retention(ledger, blobs, 0.01).remove_in_turn()

    with pytest.raises(UnknownJob):
        await ledger.get(ended)
    assert await ledger.ids() == [queued]
    keys = [key async for key in hand.redis.scan_iter()]
    assert not [key for key in keys if ended in key]
    assert not [key for key in keys if ":idempotency:" in key]
    again = make_spec(idempotency_key="k")
    assert await ledger.submit([again]) == [again.id]  # the key is free for another job


async def test_a_child_is_kept_while_its_parent_lives(ledger: Ledger, blobs: BlobStore) -> None:
    (parent,) = await ledger.submit([make_spec()])
    child = make_spec(root_id=parent, parent_id=parent, depth=1)
    await ledger.submit([child])
    await ledger.cancel(child.id)
    await asyncio.sleep(0.02)

    await Retention(ledger, blobs, 0.01).remove_in_turn()

    assert (await ledger.get(child.id)).parent_id == parent


async def test_blobs_older_than_every_job_go_and_those_of_a_waiting_job_stay(
    ledger: Ledger, blobs: BlobStore, tmp_path: Path
) -> None:
    unused, used, kept = [await blobs.put(content) for content in (b"unused", b"used", b"kept")]
    _age(tmp_path, 3 * MARGIN_SECONDS)
    await blobs.keep(kept)
    await ledger.submit([make_spec(snapshot=used)])
    await blobs.keep(used)  # as the client does

    await Retention(ledger, blobs, 10).remove_in_turn()

    assert await blobs.get(used) == b"used"
    assert await blobs.get(kept) == b"kept"
    with pytest.raises(BlobMissing):
        await blobs.get(unused)


async def test_a_long_waiting_job_keeps_all_blobs_that_are_younger_than_itself(
    hand: Hand, ledger: Ledger, blobs: BlobStore, tmp_path: Path
) -> None:
    spec = make_spec()
    await ledger.submit([spec])
    long_ago = time.time() - 10 * MARGIN_SECONDS
    await hand.redis.hset(Keys().job(spec.id), "submitted_at", int(long_ago * 1000))
    blob = await blobs.put(b"of that job, in the middle of its run")
    _age(tmp_path, 5 * MARGIN_SECONDS)

    await Retention(ledger, blobs, 10).remove_in_turn()

    assert await blobs.exists(blob)


async def test_more_jobs_than_one_call_looks_at_all_go(hand: Hand) -> None:
    ids = await hand.ledger.submit([make_spec(root_id="tree") for _ in range(250)])
    for job_id in ids:
        await hand.ledger.cancel(job_id)
    await asyncio.sleep(0.02)

    assert await hand.ledger.forget(0.01) == 250

    assert await hand.journal.last(ids[0]) is None


def _age(folder: Path, seconds: float) -> None:
    """Make the blobs in a folder look that old."""
    then = time.time() - seconds
    for path in (folder / "blobs").glob("??/*"):
        os.utime(path, (then, then))


async def test_of_all_workers_one_in_turn_looks_for_jobs_to_remove(
    hand: Hand, ledger: Ledger, blobs: BlobStore
) -> None:
    (job_id,) = await ledger.submit([make_spec()])
    await ledger.cancel(job_id)
    await asyncio.sleep(0.02)
    first, second = Retention(ledger, blobs, 3600), Retention(ledger, blobs, 0.01)

    await first.remove_in_turn()
    await second.remove_in_turn()
    kept = await ledger.ids()
    await hand.redis.delete("fanout:turn:remove_jobs")  # its time is over
    await second.remove_in_turn()

    assert kept == [job_id]
    assert await ledger.ids() == []
