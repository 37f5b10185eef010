"""The outbox of notifications: filled with the change of state, handed out for a lease."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.approvals import fingerprint
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.notification_store import (
    AT_ONCE,
    MAX_SUBSCRIPTIONS,
    NotificationStore,
)
from fanout.orchestrator.jobs.store.subscription import Notification, Subscription
from fanout.workers.upkeep.retention import Retention
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand

pytestmark = pytest.mark.redis


@pytest.fixture
def notifications(hand: Hand) -> NotificationStore:
    return NotificationStore(hand.redis, Keys())


def subscription(name: str = "s", host: str = "a.example", **fields: object) -> Subscription:
    values = {"id": name, "url": f"https://{host}/in", "secret": "kept", **fields}
    return Subscription.model_validate(values)


def approval(job_id: str) -> Approval:
    return Approval(
        id=f"{job_id}-a",
        job_id=job_id,
        agent="writer",
        call_id="c1",
        tool="execute",
        arguments={"command": "ls"},
        decisions=("approve", "reject"),
        sha256=fingerprint("execute", {"command": "ls"}),
    )


async def lapse(redis: Redis, receiver: str) -> None:
    """Let the leases and pauses of a receiver end."""
    for name in (f"outbox:{receiver}", f"sending:{receiver}", "receivers"):
        key = f"fanout:notify:{name}"
        for member in await redis.zrange(key, 0, -1):
            await redis.zadd(key, {member: 1})


def told(taken: object) -> list[tuple[str, str]]:
    assert isinstance(taken, list)
    return sorted((each.subscription.id, each.what) for each in taken if each.subscription)


async def test_what_was_asked_for_is_notified_and_nothing_else(
    hand: Hand, notifications: NotificationStore
) -> None:
    spec = make_spec()
    await notifications.register(spec.id, subscription("all", events=["state"]))
    await notifications.register(spec.id, subscription("end"))
    await hand.ledger.submit([spec, make_spec()])
    await hand.finish(await hand.claim(spec.id))

    taken = await notifications.take(20)

    assert told(taken) == [
        ("all", "queued"), ("all", "running"), ("all", "succeeded"), ("end", "succeeded")
    ]  # fmt: skip
    assert len({each.id for each in taken}) == 4
    assert [
        each.without_secret() for each in await notifications.list(spec.id)
    ] == await notifications.list(spec.id)
    listed = await notifications.get(spec.id, "end")
    assert listed
    assert listed.secret is None
    secret = taken[0].subscription and taken[0].subscription.secret
    assert secret
    assert secret.get_secret_value() == "kept"
    assert await notifications.take(20) == []  # leased
    for each in taken:
        assert await notifications.settle(each, "done")
    assert await notifications.is_idle()


async def test_a_job_that_ended_or_waits_before_it_is_subscribed_to_is_not_missed(
    hand: Hand, notifications: NotificationStore
) -> None:
    ended, waiting, queued = await hand.ledger.submit([make_spec(), make_spec(), make_spec()])
    await hand.finish(await hand.claim(ended))
    below = make_spec(root_id=queued, parent_id=queued, depth=1)
    await hand.ledger.submit([below])
    for job_id in (waiting, below.id):
        claim = await hand.claim(job_id)
        await hand.ledger.park(job_id, claim.token, [approval(job_id)])
    for job_id in (ended, waiting, queued):
        await notifications.register(job_id, subscription())
        await notifications.register(job_id, subscription())  # again: the same

    taken = await notifications.take(20)

    assert {(each.job_id, each.what, each.source_id) for each in taken} == {
        (ended, "succeeded", ended),
        (waiting, "approval", waiting),
        (queued, "approval", below.id),
    }
    assert len(taken) == 3


async def test_an_approval_below_a_job_is_notified_to_those_who_watch_the_job_and_to_the_hook(
    hand: Hand, notifications: NotificationStore
) -> None:
    assert await notifications.take(1, runs_hook=True) == []
    root = make_spec()
    child = make_spec(root_id=root.id, parent_id=root.id, depth=1)
    await hand.ledger.submit([root])
    await hand.ledger.submit([child])
    await notifications.register(root.id, subscription())
    claim = await hand.claim(child.id)
    await hand.ledger.park(child.id, claim.token, [approval(child.id)])
    await hand.ledger.cancel(root.id)

    taken = await notifications.take(20, runs_hook=True)

    assert {(each.receiver, each.job_id, each.what, each.source_id) for each in taken} == {
        ("a.example", root.id, "approval", child.id),
        ("a.example", root.id, "cancelled", root.id),
        ("!hook", child.id, "approval", child.id),
        ("!hook", root.id, "cancelled", root.id),
    }


async def test_a_lease_that_lapses_gives_the_same_notification_to_another_process(
    hand: Hand, notifications: NotificationStore
) -> None:
    spec = make_spec()
    await notifications.register(spec.id, subscription())
    await hand.ledger.submit([spec])
    await hand.ledger.cancel(spec.id)
    (first,) = await notifications.take(5)
    await lapse(hand.redis, "a.example")
    (second,) = await notifications.take(5)

    assert (second.id, second.tries) == (first.id, 2)
    assert not await notifications.settle(first, "retry", again_in=9999)
    assert await notifications.settle(second, "dead", reason="it did not answer")
    (dead,) = await notifications.dead()
    assert (dead["id"], dead["job"], dead["reason"]) == (first.id, spec.id, "it did not answer")
    assert await notifications.is_idle()


async def test_a_receiver_is_sent_a_few_at_once_and_holds_up_no_other(
    hand: Hand, notifications: NotificationStore
) -> None:
    specs = [make_spec() for _ in range(3 * AT_ONCE)]
    for spec in specs:
        await notifications.register(spec.id, subscription("slow", "slow.example"))
    await notifications.register(specs[0].id, subscription("quick", "quick.example"))
    await hand.ledger.submit(specs)
    for spec in specs:
        await hand.ledger.cancel(spec.id)

    first = await notifications.take(50)
    assert [each.receiver for each in first].count("slow.example") == AT_ONCE
    assert [each.receiver for each in first].count("quick.example") == 1
    slow = [each for each in first if each.receiver == "slow.example"]
    await notifications.settle(slow[0], "retry", again_in=60)
    await notifications.settle(slow[1], "done")
    assert len(await notifications.take(50)) == 2


async def test_a_subscription_goes_with_its_job_by_hand_and_when_the_receiver_wants_no_more(
    hand: Hand, notifications: NotificationStore, client: JobClient
) -> None:
    spec = make_spec()
    for name in ("deleted", "gone", "left"):
        await client.notifications.register(spec.id, subscription(name))
    await hand.ledger.submit([spec])
    await hand.ledger.cancel(spec.id)
    assert await notifications.delete(spec.id, "deleted")
    assert not await notifications.delete(spec.id, "deleted")
    taken = {of(each): each for each in await notifications.take(5)}
    assert set(taken) == {"gone", "left"}
    await notifications.settle(taken["gone"], "gone")
    assert [each.id for each in await notifications.list(spec.id)] == ["left"]
    await notifications.settle(taken["left"], "retry")

    await Retention(hand.ledger, client._blobs, 0.0).forget_expired()
    await lapse(hand.redis, "a.example")

    assert await notifications.take(5) == []
    assert [key async for key in hand.redis.scan_iter("*:notify:*")] == []


def of(each: Notification) -> str:
    assert each.subscription
    return each.subscription.id


async def test_a_job_has_no_more_subscriptions_than_the_limit_and_an_awaited_one_expires(
    hand: Hand, notifications: NotificationStore
) -> None:
    spec = make_spec()
    for number in range(MAX_SUBSCRIPTIONS):
        await notifications.register(spec.id, subscription(f"s{number}"))
    with pytest.raises(InvalidJob, match="delete one of them first"):
        await notifications.register(spec.id, subscription("one-more"))
    await notifications.register(spec.id, subscription("s0"))
    key = Keys().subscriptions(spec.id)
    assert await hand.redis.ttl(key) > 0
    await hand.ledger.submit([spec])
    assert await hand.redis.ttl(key) == -1


async def test_an_unreadable_subscription_holds_up_nobody(
    hand: Hand, notifications: NotificationStore
) -> None:
    spec = make_spec()
    await notifications.register(spec.id, subscription("good"))
    odd = '{"id": "odd", "events": ["end"], "receiver": "a.example", "new": true}'
    await hand.redis.hset(Keys().subscriptions(spec.id), "odd", odd)
    await hand.ledger.submit([spec])
    await hand.ledger.cancel(spec.id)

    assert told(await notifications.take(5)) == [("good", "cancelled")]
    assert [dead["subscription"] for dead in await notifications.dead()] == ["odd"]
