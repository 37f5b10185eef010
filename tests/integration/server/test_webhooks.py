"""Webhooks over HTTP: with a submission or later, sent by the server, never shown with secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from standardwebhooks import Webhook

from fanout.orchestrator.server.notifications.messages import new_secret
from tests.fixtures import place_fixture
from tests.integration.scripts import conversation, says
from tests.receiver import receiver
from tests.served import ServerProcess, make_key
from tests.services import Installation

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.blocks_loop("the test starts and stops servers"),
]

SECRET = new_secret()


place = place_fixture(conversation("", says("done")), workers=1)


async def test_webhooks_of_submissions_and_of_old_jobs_are_sent_by_the_server(
    place: Installation,
) -> None:
    settings = {
        "FANOUT_NOTIFICATIONS__ALLOWED_HOSTS": json.dumps(["127.0.0.1"]),
        "FANOUT_NOTIFICATIONS__BASE_URL": "https://fanout.example",
    }
    server = ServerProcess(place, settings=settings)
    server.start()
    try:
        async with (
            receiver() as host,
            server.client(await make_key(place, "ann")) as ann,
            server.client(await make_key(place, "reader", "read", owner="ann")) as reader,
        ):
            webhook: dict[str, Any] = {"url": host.url(), "secret": SECRET}
            headers = {"Idempotency-Key": "k"}
            for _ in range(2):  # the second one is the same
                body = [{"description": "one", "webhook": webhook}, {"description": "two"}]
                made = await ann.post("/v1/jobs", json=body, headers=headers)
                assert made.status_code == 201, made.text
            one, two = made.json()["job_ids"]
            await host.wait_for(1)
            await ann.get(f"/v1/jobs/{two}?wait=30")
            added = await ann.post(f"/v1/jobs/{two}/webhooks", json=webhook)
            await host.wait_for(2)
            listed = (await ann.get(f"/v1/jobs/{two}/webhooks")).json()
            path = f"/v1/jobs/{two}/webhooks/{added.json()['id']}"
            removed = [(await ann.delete(path)).status_code for _ in range(2)]
            refused = [
                await reader.post(f"/v1/jobs/{two}/webhooks", json=webhook),
                await ann.post("/v1/jobs", json={"description": "x", "webhook": {"url": "x"}}),
                *[
                    await ann.post("/v1/jobs", json={"description": "x", "webhook": bad})
                    for bad in (webhook | {"url": "https://10.0.0.1/"}, webhook | {"secret": "x"})
                ],
            ]
            jobs = (await ann.get("/v1/jobs")).json()["items"]
    finally:
        server.stop()

    contents = [Webhook(SECRET).verify(each.body, each.headers) for each in host.requests]
    assert [each["job"]["id"] for each in contents] == [one, two]
    assert contents[0]["job"]["links"]["self"] == f"https://fanout.example/v1/jobs/{one}"
    assert listed == {"items": [added.json()]}
    assert added.json().keys() == {"id", "url", "events"}
    assert removed == [204, 404]
    assert [each.status_code for each in refused] == [403, 422, 422, 422]
    assert "whsec_" in refused[-1].json()["detail"]
    assert len(jobs) == 2  # nothing was submitted with a webhook that is refused
