"""The trace that a command continues, and the export of its spans."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fanout.orchestrator.tracing.collectors import PARENT, exporter_of, has_exporter

SERVICE = "fanout"
SERVER = "serve"
"""The command that serves others, whose traces it continues."""
WORKER = "worker"
"""The command that becomes a worker, which exports its own spans."""


@contextmanager
def traced() -> Iterator[None]:
    """Continue the trace of the program that runs this command; export spans where that is asked.

    Where neither is, nothing is imported for it.
    """
    command = next((one for one in sys.argv[1:] if not one.startswith("-")), "")
    parent = None if command == SERVER else os.environ.get(PARENT)
    is_exported = command != WORKER and exporter_of(os.environ) is not None and has_exporter()
    if not parent and not is_exported:
        yield
        return
    from fanout.orchestrator.jobs.trace_context import read_traceparent  # noqa: PLC0415 - as above
    from fanout.orchestrator.tracing.spans import below  # noqa: PLC0415 - as above

    if is_exported:
        from fanout.orchestrator.tracing import export  # noqa: PLC0415 - takes tenths of a second

        export.start(f"{SERVICE}-server" if command == SERVER else SERVICE)
    try:
        with below(read_traceparent(parent)):
            yield
    finally:
        if is_exported:
            export.stop()
