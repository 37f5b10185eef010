"""The interface does what its description says, whatever is sent: no fault of ours, ever."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.scripts import conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SECONDS = 20
ENDLESS = "/v1/changes"
CONFIGURATION = """
[parameters]
"query.wait" = 0

[checks]
# An invalid body that is too large is refused for its size.
negative_data_rejection.expected-statuses = ["4xx"]
# The state decides too: a job has not ended, a snapshot is none of the caller's.
positive_data_acceptance.enabled = false
"""


@pytest.fixture
def server(install: Installer) -> Iterator[ServerProcess]:
    process = ServerProcess(
        install(conversation("", says("done"))),
        settings={"FANOUT_API__FAILED_LOGINS_PER_MINUTE": "100000"},
    )
    process.start()
    yield process
    process.stop()


async def test_nothing_that_is_sent_is_a_fault_of_the_service(
    server: ServerProcess, tmp_path: Path
) -> None:
    key = await make_key(server.installation, "ann")
    configuration = tmp_path / "schemathesis.toml"
    await asyncio.to_thread(configuration.write_text, CONFIGURATION)
    fuzzing = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file"),
        *(str(configuration), "run", f"{server.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {key}", "--exclude-path", ENDLESS),
        *("--phases", "coverage,fuzzing", "--max-examples", "10", "--request-timeout", "30"),
        *("--max-time", str(SECONDS), "--suppress-health-check", "all", "--no-color"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
    )
    output, _ = await fuzzing.communicate()
    assert fuzzing.returncode == 0, output.decode()[-6000:]
    assert "generated" in output.decode()
