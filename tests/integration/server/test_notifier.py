"""The notifier: what happens to jobs reaches receivers and the hook, also when processes die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.result import JobError
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.notification_store import NotificationStore
from fanout.orchestrator.jobs.store.subscription import Notification, Subscription
from fanout.orchestrator.server.notifications import notifier
from fanout.orchestrator.server.notifications.hook import Hook
from fanout.orchestrator.server.notifications.messages import (
    MessageBuilder,
    OutgoingMessage,
    WebhookMessages,
    new_secret,
)
from fanout.orchestrator.server.notifications.notifier import Notifier
from fanout.orchestrator.server.notifications.receivers import PinnedHttp, Receivers
from fanout.orchestrator.server.notifications.subscriptions import Subscriptions
from tests.builders import make_spec
from tests.integration.jobs.conftest import Hand, client, definitions, hand, settings
from tests.receiver import Receiver, answer, receiver
from tests.waits import eventually

__all__ = ["client", "definitions", "hand", "settings"]

pytestmark = pytest.mark.redis

RECEIVERS = Receivers(["127.0.0.1"])
SECRET = new_secret()


def webhook(host: Receiver, name: str = "hook", **fields: Any) -> Subscription:
    values = {"id": name, "url": host.url(), "secret": SECRET, **fields}
    return Subscription.model_validate(values)


@asynccontextmanager
async def notifying(
    client: JobClient, hook: Hook | None = None, *, pushes: bool = True
) -> AsyncIterator[None]:
    async def push(sent: Notification) -> OutgoingMessage:
        assert sent.subscription is not None
        secret = sent.subscription.secret
        assert secret is not None
        return OutgoingMessage(b"{}", {"X-Token": secret.get_secret_value(), "X-What": sent.what})

    http = PinnedHttp(RECEIVERS)
    builders: dict[str, MessageBuilder] = {
        "webhook": WebhookMessages(client, "https://fanout.example")
    }
    if pushes:
        builders["a2a_push"] = push
    notifier = Notifier(client.notifications, http, builders, jobs=client, hook=hook)
    task = asyncio.create_task(notifier.run())
    yield
    await cancel_and_wait(task)
    await http.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(notifier, "GROWTH", 1.0)
    monkeypatch.setattr("fanout.orchestrator.server.notifications.notifier.POLL_SECONDS", 0.01)


async def cancelled_job(hand: Hand, spec: JobSpec) -> str:
    await hand.ledger.submit([spec])
    await hand.ledger.cancel(spec.id)
    return spec.id


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def until_idle(client: JobClient) -> None:
    await eventually(client.notifications.is_idle)


async def test_a_webhook_is_signed_says_what_happened_and_quotes_nothing(
    hand: Hand, client: JobClient
) -> None:
    spec = make_spec("a secret plan", labels={"team": "a"})
    async with receiver() as host, notifying(client):
        await Subscriptions(client.notifications, RECEIVERS).register(spec.id, webhook(host))
        await hand.ledger.submit([spec])
        error = JobError(type="VerificationFailed", message="it says a secret plan")
        fields = {"state": JobState.FAILED, "summary": "of a secret plan", "error": error}
        await hand.finish(await hand.claim(spec.id), **fields)
        (request,) = await host.wait_for(1)
        await until_idle(client)

    content = Webhook(SECRET).verify(request.body, request.headers)
    assert content == {
        "type": "job.finished",
        "id": request.headers["webhook-id"],
        "at": content["at"],
        "job": {
            "id": spec.id,
            "root_id": spec.id,
            "parent_id": None,
            "agent": "general-purpose",
            "state": "failed",
            "labels": {"team": "a"},
            "reason": "VerificationFailed",
            "usage": content["job"]["usage"],
            "links": {
                "self": f"https://fanout.example/v1/jobs/{spec.id}",
                "events": f"https://fanout.example/v1/jobs/{spec.id}/events",
                "patch": f"https://fanout.example/v1/jobs/{spec.id}/patch",
                "tree": f"https://fanout.example/v1/jobs/{spec.id}/tree",
            },
        },
    }
    assert b"secret plan" not in request.body
    assert request.headers["content-type"] == "application/json"


async def test_a_failed_delivery_is_repeated_with_its_id_and_another_kind_has_its_own_form(
    hand: Hand, client: JobClient
) -> None:
    spec = make_spec()
    refusals = (answer(500), answer(302, "Location: http://127.0.0.1:1/"), answer(429))
    async with receiver(*refusals) as host, receiver() as other, notifying(client):
        await client.notifications.register(spec.id, webhook(host))
        push = webhook(other, "push", kind="a2a_push", secret="t", events=["state"])
        await client.notifications.register(spec.id, push)
        await cancelled_job(hand, spec)
        await host.wait_for(4)
        await other.wait_for(2)
        await until_idle(client)
    assert len({request.headers["webhook-id"] for request in host.requests}) == 1
    assert {(one.headers["x-token"], one.headers["x-what"]) for one in other.requests} == {
        ("t", "queued"), ("t", "cancelled")
    }  # fmt: skip


async def test_what_a_process_cannot_send_is_left_to_one_that_can(
    hand: Hand, client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.server.notifications.notifier.PASS_SECONDS", 0.01)
    spec = make_spec()
    passed = 0
    settle = NotificationStore.settle

    async def counted(*given: Any, **named: Any) -> bool:
        nonlocal passed
        passed += given[2] == "pass"
        return await settle(*given, **named)

    monkeypatch.setattr(NotificationStore, "settle", counted)
    async with receiver() as host, asyncio.timeout(60):
        push = webhook(host, "push", kind="a2a_push", secret="t")
        await client.notifications.register(spec.id, push)
        await cancelled_job(hand, spec)
        async with notifying(client, pushes=False):
            await eventually(lambda: passed > notifier.MAX_TRIES)
            assert host.requests == []
        async with notifying(client):
            assert len(await host.wait_for(1)) == 1


async def test_a_receiver_that_is_gone_is_asked_once_and_one_that_always_fails_is_given_up(
    hand: Hand, client: JobClient
) -> None:
    spec = make_spec()
    always = [answer(503, body=b"hidden text")] * notifier.MAX_TRIES
    async with receiver(answer(410)) as gone, receiver(*always) as broken, notifying(client):
        await client.notifications.register(spec.id, webhook(gone, "gone", events=["state"]))
        await client.notifications.register(spec.id, webhook(broken, "broken"))
        await cancelled_job(hand, spec)
        await broken.wait_for(notifier.MAX_TRIES)
        await until_idle(client)
    assert [one.id for one in await client.notifications.list(spec.id)] == ["broken"]
    (dead,) = await client.notifications.dead()
    assert (dead["subscription"], dead["reason"]) == ("broken", "status 503")


async def test_a_receiver_that_never_answers_delays_no_other(hand: Hand, client: JobClient) -> None:
    specs = [make_spec() for _ in range(8)]
    async with receiver(*[b""] * 99) as dead, receiver() as host, notifying(client):
        for spec in specs:
            slow = webhook(dead).model_copy(update={"url": dead.url("localhost")})
            await client.notifications.register(spec.id, slow)
        await client.notifications.register(specs[-1].id, webhook(host, "quick"))
        for spec in specs:
            await cancelled_job(hand, spec)
        await host.wait_for(1)
        assert len(dead.requests) <= 4


async def test_the_hook_runs_once_although_several_processes_have_it(
    hand: Hand, client: JobClient, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    variables = '"$FANOUT_JOB_EVENT $FANOUT_JOB_ID $FANOUT_JOB_STATE $FANOUT_JOB_AGENT"'
    hook = Hook(f"echo {variables} >> {told}; exit 3")
    root = make_spec("$(touch /tmp/owned) `id`")
    child = make_spec(root_id=root.id, parent_id=root.id, depth=1)
    async with notifying(client, hook), notifying(client, hook), notifying(client, hook):
        async with asyncio.timeout(60):
            await eventually(lambda: hand.redis.exists("fanout:notify:hook"))
            await hand.ledger.submit([root])
            await hand.ledger.submit([child])
            await hand.ledger.cancel(root.id)
            await until_idle(client)
            text = await eventually(
                lambda: asyncio.to_thread(read, told), lambda text: text.endswith("\n")
            )
    assert text == f"finished {root.id} cancelled general-purpose\n"


async def test_a_webhook_needs_a_secret_and_a_receiver_that_is_allowed(client: JobClient) -> None:
    subscriptions = Subscriptions(client.notifications, RECEIVERS)
    async with receiver() as host:
        for secret in (None, "short", "whsec_c2hvcnQ=", "c2hvcnQ=" * 5, "whsec_%%%"):
            with pytest.raises(InvalidJob, match="whsec_"):
                await subscriptions.register("j", webhook(host, secret=secret))
    with pytest.raises(InvalidJob, match="begins with https"):
        await subscriptions.register("j", Subscription(url="http://10.0.0.1/"))
    assert await subscriptions.list("j") == []
