"""The trace that a command continues, and the export of its spans."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fanout.orchestrator.jobs.trace_context import read_traceparent
from fanout.orchestrator.tracing.collectors import PARENT, exporter_of, has_exporter
from fanout.orchestrator.tracing.spans import below

SERVICE = "fanout"
SERVER = "serve"
"""The command that serves others, whose traces it continues."""
WORKER = "worker"
"""The command that becomes a worker, which exports its own spans."""


@contextmanager
def traced() -> Iterator[None]:
    """Continue the trace of the program that runs this command; export spans where that is asked.

    Without a collector OpenTelemetry is not imported.
    """
    command = next((one for one in sys.argv[1:] if not one.startswith("-")), "")
    parent = None if command == SERVER else read_traceparent(os.environ.get(PARENT))
    if command == WORKER or exporter_of(os.environ) is None or not has_exporter():
        with below(parent):
            yield
        return
    from fanout.orchestrator.tracing import export  # noqa: PLC0415 - takes tenths of a second

    export.start(f"{SERVICE}-server" if command == SERVER else SERVICE)
    try:
        with below(parent):
            yield
    finally:
        export.stop()
