"""A collector on the loopback that decodes what exporters send, over HTTP or gRPC."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.loopback import LoopbackHandler, loopback_server

SECONDS = 90.0
"""How long a test waits for spans at most: on a busy machine a worker needs its time."""


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as a collector sees it; ids are hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: it has none."""
    links: tuple[str, ...]
    """The ids of the spans that it is linked to."""
    service: str
    attributes: dict[str, Any]
    status: int
    message: str
    events: int
    begin: int
    end: int


@dataclass
class OtlpReceiver:
    """What has come, and the variables that have it sent here."""

    environment: dict[str, str] = field(default_factory=dict)
    spans: list[ReceivedSpan] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)

    def receive(self, body: bytes) -> None:
        self.raw += body
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            resource = _values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.spans.append(
                        ReceivedSpan(
                            name=span.name,
                            trace_id=span.trace_id.hex(),
                            span_id=span.span_id.hex(),
                            parent_id=span.parent_span_id.hex(),
                            links=tuple(link.span_id.hex() for link in span.links),
                            service=str(resource.get("service.name")),
                            attributes=_values(span.attributes),
                            status=span.status.code,
                            message=span.status.message,
                            events=len(span.events),
                            begin=span.start_time_unix_nano,
                            end=span.end_time_unix_nano,
                        )
                    )

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of a trace."""
        return [span for span in self.spans if span.trace_id == trace_id]

    async def connected(
        self, trace_id: str, caller: str = "", attempts: int = 1
    ) -> list[ReceivedSpan]:
        """The spans of a trace whose jobs have ended, each below another one or the caller's."""
        return await self.until(
            trace_id, lambda spans: ends(spans, attempts) and not orphans(spans, caller), caller
        )

    async def until(
        self, trace_id: str, is_there: Callable[[list[ReceivedSpan]], bool], caller: str = ""
    ) -> list[ReceivedSpan]:
        """The spans of a trace, once these have come: processes send them in their own time."""
        deadline = time.monotonic() + SECONDS
        while not is_there(spans := self.of(trace_id)):
            without_parent = [span.name for span in orphans(spans, caller)]
            assert time.monotonic() < deadline, f"{without_parent=}\n{tree(spans)}"
            await asyncio.sleep(0.05)
        return spans


def ends(spans: list[ReceivedSpan], count: int = 1) -> bool:
    """Whether so many attempts have committed their job, and reported themselves."""
    commits = [span.parent_id for span in spans if span.name == "commit"]
    return len(commits) >= count and set(commits) <= {span.span_id for span in spans}


def orphans(spans: list[ReceivedSpan], caller: str) -> list[ReceivedSpan]:
    """The spans whose parent is neither among them nor the caller's."""
    known = {span.span_id for span in spans} | {caller}
    return [span for span in spans if span.parent_id not in known]


def tree(spans: list[ReceivedSpan], below: str | None = None, depth: int = 0) -> str:
    """The spans as an indented text, for a person."""
    ids = {span.span_id for span in spans}
    lines = []
    for span in sorted(spans, key=lambda one: one.begin):
        is_here = span.parent_id not in ids if below is None else span.parent_id == below
        if is_here:
            milliseconds = (span.end - span.begin) / 1e6
            lines.append(f"{'  ' * depth}{span.name}  {span.service}  {milliseconds:.0f} ms")
            if more := tree(spans, span.span_id, depth + 1):
                lines.append(more)
    return "\n".join(lines)


def _values(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind) if kind else None
    return found


@contextmanager
def otlp_receiver(protocol: str = "http/protobuf") -> Iterator[OtlpReceiver]:
    """A collector that speaks this protocol."""
    receiver = OtlpReceiver()
    opened = _over_grpc if protocol == "grpc" else _over_http
    with opened(receiver) as port:
        receiver.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_METRICS_EXPORTER": "none",
        }
        yield receiver


@contextmanager
def _over_http(receiver: OtlpReceiver) -> Iterator[int]:
    class Handler(LoopbackHandler):
        def post(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            receiver.receive(gzip.decompress(body) if is_packed else body)
            self.send(
                200, ExportTraceServiceResponse().SerializeToString(), "application/x-protobuf"
            )

    with loopback_server(Handler, str) as url:
        yield int(url.rpartition(":")[2])


@contextmanager
def _over_grpc(receiver: OtlpReceiver) -> Iterator[int]:
    class Traces(TraceServiceServicer):
        def Export(self, request: Any, _context: Any) -> ExportTraceServiceResponse:  # noqa: N802
            receiver.receive(request.SerializeToString())
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(Traces(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()
