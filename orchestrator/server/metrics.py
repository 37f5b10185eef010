"""The metrics for Prometheus: jobs and workers of the installation, requests of this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..client.fleet_counts import FleetCounter
from ..client.job_counts import Counts, JobCounts
from ..jobs.state import JobState
from ..jobs.store.memory import RedisMemory
from .access.limits import EVENT_STREAM
from .connections import REASONS, Connections
from .fleet_metrics import FleetMetrics

BUCKETS = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
"""The bounds of the time until a response begins, in seconds: most take milliseconds, `?wait=` up
to a minute."""
OTHER = "other"
"""The route of a request that matches none: invented paths must not become labels."""


class Metrics:
    """The metrics of one server process.

    Args:
        counts: Counts jobs.
        fleet: Reads workers, queues and totals.
        connections: The connections of the server.
    """

    def __init__(self, counts: JobCounts, fleet: FleetCounter, connections: Connections) -> None:
        self._counts = counts
        self._fleet = fleet
        self._fleet_metrics = FleetMetrics()
        self._registry = CollectorRegistry()
        self._registry.register(self._fleet_metrics)
        self._registry.register(_OfConnections(connections))
        self._installation = _Installation()
        self._registry.register(self._installation)
        labels = ("method", "route", "status")
        self._requests = Counter(
            "fanout_http_requests", "Requests answered.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "fanout_http_response_seconds",
            "From a request to the beginning of its response.",
            labels[:2],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._streams = Gauge(
            "fanout_http_streams", "Open streams of events.", registry=self._registry
        )

    async def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        self._installation.counts = await self._counts.now()
        self._fleet_metrics.counts = await self._fleet.now()
        return generate_latest(self._registry)

    def measured(self, app: ASGIApp) -> ASGIApp:
        """Return an application whose requests are measured."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await self._serve(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return serve

    async def _serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        begun, is_stream = time.monotonic(), False

        async def noted(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", OTHER)
                method = scope["method"] if route != OTHER else OTHER
                self._requests.labels(method, route, str(message["status"])).inc()
                self._seconds.labels(method, route).observe(time.monotonic() - begun)
                kind = Headers(raw=list(message["headers"])).get("content-type", "")
                if kind.startswith(EVENT_STREAM) and not is_stream:
                    is_stream = True
                    self._streams.inc()
            await send(message)

        try:
            await app(scope, receive, noted)
        finally:
            if is_stream:
                self._streams.dec()


class _OfConnections(Collector):
    """The connections of this process."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the metrics."""
        yield GaugeMetricFamily(
            "fanout_http_connections", "Open connections.", value=len(self._connections)
        )
        ended = CounterMetricFamily(
            "fanout_http_connections_ended",
            "Connections that the server has refused or closed, by reason.",
            labels=["reason"],
        )
        for reason in REASONS:
            ended.add_metric([reason], self._connections.ended[reason])
        yield ended


class _Installation(Collector):
    """The counts of the ledger at the last reading."""

    def __init__(self) -> None:
        self.counts = Counts()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics."""
        counts = self.counts
        jobs = GaugeMetricFamily("fanout_jobs", "Jobs that are kept, by state.", labels=["state"])
        for state in JobState:
            jobs.add_metric([state], counts.states.get(state, 0))
        yield jobs
        queued = GaugeMetricFamily(
            "fanout_jobs_queued", "Why queued jobs wait: of the newest 500.", labels=["reason"]
        )
        for reason, number in counts.queued.items():
            queued.add_metric([reason], number)
        yield queued
        yield GaugeMetricFamily(
            "fanout_approvals_waiting", "Calls that wait for a person.", value=counts.approvals
        )
        if counts.memory is not None:
            yield from _of_redis(counts.memory)


def _of_redis(memory: RedisMemory) -> Iterator[GaugeMetricFamily]:
    """Yield Redis's use of its memory; without a limit there is no sample of a limit."""
    yield GaugeMetricFamily(
        "fanout_redis_memory_bytes",
        "Bytes of Redis that count for its maxmemory.",
        value=memory.used_bytes,
    )
    limit = GaugeMetricFamily("fanout_redis_memory_limit_bytes", "The maxmemory of Redis.")
    if memory.limit_bytes:
        limit.add_metric([], memory.limit_bytes)
    yield limit
