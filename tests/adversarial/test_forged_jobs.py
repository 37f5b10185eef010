"""What somebody wrote into the ledger past the client is refused by the worker, for good."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fanout.orchestrator.jobs.state import JobState
from tests.builders import make_spec
from tests.integration.scripts import DONE, conversation
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300), pytest.mark.slow]


async def test_a_forged_job_ends_in_one_attempt_and_nothing_connects(install: Installer) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    forged: dict[str, dict[str, Any]] = {
        "limits.memory_bytes": {"limits": {"memory_bytes": 1024**5}},
        "limits.timeout_seconds": {"limits": {"timeout_seconds": 1e12}},
        "limits.network": {"limits": {"network": ["169.254.169.254"]}},
        "output_schema refers to": {"output_schema": {"$ref": url}},
    }
    place = await asyncio.to_thread(install, conversation("", DONE))
    await asyncio.to_thread(place.start_worker)
    async with place.client() as client:
        await place.ready(client)
        for told, fields in forged.items():
            [job_id] = await client._ledger.submit([make_spec("forged", **fields)])
            await client._admission.pump()
            result = await client.wait(job_id, 60)

            assert result.state is JobState.FAILED
            assert result.attempts == 1
            assert result.error is not None
            expected = "InvalidJob" if "schema" in told else "LimitExceeded"
            assert (result.error.type, result.error.retryable) == (expected, False)
            assert told in result.error.message
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()
