"""A worker's telemetry, sent to a collector; in a process of its own, because it is set once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.architecture.sources import REPOSITORY
from tests.integration.scripts import conversation, says, write_script

PROGRAM = """
import asyncio, sys
from fanout import create_deep_agent
from fanout.workers.telemetry import export_telemetry
from google.adk.runners import InMemoryRunner

async def main():
    export_telemetry()
    agent = create_deep_agent("scripted:" + sys.argv[1], name="clerk")
    await InMemoryRunner(agent=agent, app_name="office").run_debug("a secret goal", quiet=True)

asyncio.run(main())
"""


class Collector(ThreadingHTTPServer):
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.received: dict[str, bytes] = {}
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.received[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.slow
def test_traces_of_agents_reach_the_collector_without_what_was_said(
    collector: Collector, tmp_path: Path
) -> None:
    script = write_script(tmp_path, {"agent": "clerk", **conversation("", says("a secret answer"))})
    address = f"http://127.0.0.1:{collector.server_port}"

    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(script)],
        cwd=REPOSITORY,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": address},
        check=True,
        timeout=50,
    )

    traces = collector.received["/v1/traces"]
    assert b"invoke_agent clerk" in traces
    assert b"fanout-worker" in traces
    assert b"secret" not in b"".join(collector.received.values())
