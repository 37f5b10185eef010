"""A worker's connection to the broker that breaks while a message is in its hands."""

from __future__ import annotations

from pathlib import Path

import pytest
from kombu import Connection, Queue

from fanout.orchestrator.jobs.store.queue import broker_options
from fanout.workers.celery_app import TolerantTransport
from tests.services import RedisProcess


@pytest.mark.redis
def test_a_message_that_cannot_be_put_back_does_not_end_the_worker(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path)
    redis.start()
    try:
        options = broker_options("fanout")
        connection = Connection(redis.url, transport=TolerantTransport, transport_options=options)
        channel = connection.channel()
        queue = Queue("fanout", channel=channel)
        queue.declare()
        connection.Producer(channel).publish({"id": "one"}, routing_key="fanout")
        assert queue.get() is not None  # and it is not acknowledged
    finally:
        redis.kill()
    connection.transport.client = None  # as kombu leaves a connection that broke

    channel.close()

    assert channel.closed
