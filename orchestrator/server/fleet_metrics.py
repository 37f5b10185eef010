"""The metrics of an installation's workers and queues, for Prometheus.

Every label has a bounded number of values; further ones are shown as `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ..client.fleet_counts import FleetCounts
from ..jobs.store.fleet import QueueHead
from ..jobs.totals import INFINITY, OTHER, SERIES, SUM, Label, Series
from ..jobs.worker_info import Fitness

MAX_QUEUES_SHOWN = 50
"""The most queues with their own series, those with the longest wait: a further tenant or class
must not make a database of metrics grow."""
MAX_HOSTS_SHOWN = 20
"""The most hosts whose disks are shown, those with the least free space."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class FleetMetrics(Collector):
    """The metrics of the last reading."""

    def __init__(self) -> None:
        self.counts = FleetCounts()

    def collect(self) -> Iterator[Family]:
        """Yield the metrics."""
        yield from self._workers()
        yield from self._disks()
        yield from self._queues()
        for series in SERIES.values():
            values = {
                label[1:]: value
                for label, value in self.counts.totals.items()
                if label[0] == series.name
            }
            yield _histogram(series, values) if series.bounds else _counter(series, values)

    def _workers(self) -> Iterator[Family]:
        workers = self.counts.workers
        states = Counter(worker.fitness for worker in workers)
        by_state = GaugeMetricFamily(
            "fanout_workers_by_state",
            "Living workers: fit, draining (stopping or paused), unfit (cannot run jobs).",
            labels=["state"],
        )
        for fitness in Fitness:
            by_state.add_metric([fitness], states[fitness])
        yield by_state
        hosts = {worker.host for worker in workers}
        in_use = {worker.host for worker in workers if worker.fitness is not Fitness.UNFIT}
        for name, text, value in (
            ("fanout_workers", "Living workers.", len(workers)),
            (
                "fanout_worker_slots",
                "Jobs that the workers can run at once.",
                sum(worker.concurrency for worker in workers),
            ),
            (
                "fanout_worker_slots_busy",
                "Jobs that the workers run.",
                sum(worker.running for worker in workers),
            ),
            (
                "fanout_worker_slots_free",
                "Jobs that the fit workers could run in addition.",
                sum(worker.free for worker in workers),
            ),
            (
                "fanout_worker_hanging_threads",
                "Threads of workers that hang in a call of the system.",
                sum(worker.hanging_threads for worker in workers),
            ),
            ("fanout_hosts", "Hosts with a living worker.", len(hosts)),
            (
                "fanout_hosts_unfit",
                "Hosts with living workers of which none is fit or draining.",
                len(hosts - in_use),
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)

    def _disks(self) -> Iterator[Family]:
        free = {
            worker.host: worker.disk_free_bytes
            for worker in self.counts.workers
            if worker.disk_free_bytes
        }
        family = GaugeMetricFamily(
            "fanout_host_disk_free_bytes",
            f"Free space of the disk with the workers' state, of the {MAX_HOSTS_SHOWN} fullest hosts.",
            labels=["host"],
        )
        for host in sorted(free, key=lambda one: (free[one], one))[:MAX_HOSTS_SHOWN]:
            family.add_metric([host], free[host])
        yield family

    def _queues(self) -> Iterator[Family]:
        labels = ["tenant", "class"]
        ages = GaugeMetricFamily(
            "fanout_queue_oldest_seconds",
            "How long the oldest of the jobs that are next in turn has waited since it was submitted.",
            labels=labels,
        )
        sizes = GaugeMetricFamily(
            "fanout_queue_jobs",
            "Jobs that wait for a worker, at least: of a tenant's later trees one job each.",
            labels=labels,
        )
        for queue in _shown(self.counts.queues):
            ages.add_metric([queue.tenant, queue.job_class], queue.oldest_seconds)
            sizes.add_metric([queue.tenant, queue.job_class], queue.jobs)
        yield ages
        yield sizes


def _shown(queues: Sequence[QueueHead]) -> list[QueueHead]:
    """Return the queues that are shown, and the rest as one."""
    shown, rest = list(queues[:MAX_QUEUES_SHOWN]), queues[MAX_QUEUES_SHOWN:]
    if rest:
        jobs, oldest = sum(one.jobs for one in rest), max(one.oldest_seconds for one in rest)
        shown.append(QueueHead(OTHER, OTHER, jobs, oldest))
    return shown


def _counter(series: Series, values: Mapping[Label, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(series.name, series.text, labels=series.labels)
    for labels in dict.fromkeys([*series.known, *values]):
        if len(labels) == len(series.labels):
            family.add_metric(labels, values.get(labels, 0.0))
    return family


def _histogram(series: Series, values: Mapping[Label, float]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(series.name, series.text, labels=series.labels)
    bounds = [*map(str, series.bounds), INFINITY]
    for labels in dict.fromkeys([*series.known, *(label[:-1] for label in values)]):
        if len(labels) == len(series.labels):
            counts = accumulate(values.get((*labels, bound), 0.0) for bound in bounds)
            family.add_metric(
                labels, list(zip(bounds, counts, strict=True)), values.get((*labels, SUM), 0.0)
            )
    return family
