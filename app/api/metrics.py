"""Metrics of /metrics. Requests are counted in plain numbers, because the hot route updates them every time."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_EDGES = (*map(str, _SECONDS), "+Inf")


class Gauge(msgspec.Struct):
    """A gauge: its help, and its values by label tuples, in the order of `labels`."""

    name: str
    text: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class Drifted(msgspec.Struct, order=True):
    """Drift of the last upload with new rows; `at` is seconds since the epoch."""

    at: float
    median_percent: float
    inside_percent: float


class Counts(msgspec.Struct):
    """Counts of one process. Only its event loop thread writes.

    requests     by method, route and status
    buckets      by route: number of requests per duration bucket (_EDGES)
    seconds      by route, total
    predictions  entries of answers of POST /predict, by predictor and support
    """

    requests: dict[tuple[str, str, int], int] = msgspec.field(default_factory=Counter)
    buckets: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    predictions: dict[tuple[str, str], int] = msgspec.field(default_factory=Counter)
    drift: Drifted | None = None

    def add(self, other: Counts) -> None:
        """Add the counts of another process."""
        for mine, theirs in ((self.requests, other.requests), (self.predictions, other.predictions)):
            for key, count in list(theirs.items()):  # its thread may add a key meanwhile
                mine[key] += count  # type: ignore[index]
        for route, seconds in list(other.seconds.items()):
            self.seconds[route] = self.seconds.get(route, 0.0) + seconds
            before = self.buckets.get(route, [0] * len(_EDGES))
            self.buckets[route] = [a + b for a, b in zip(before, other.buckets[route], strict=True)]
        self.drift = max(filter(None, (self.drift, other.drift)), default=None)


class Metrics:
    """The counts of this process."""

    def __init__(self) -> None:
        self.counts = Counts()

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a template, so that ids do not become labels."""
        counts = self.counts
        counts.requests[method, route, status] += 1
        buckets = counts.buckets.get(route)
        if buckets is None:
            buckets = counts.buckets[route] = [0] * len(_EDGES)
            counts.seconds[route] = 0.0
        buckets[bisect_left(_SECONDS, seconds)] += 1
        counts.seconds[route] += seconds

    def predicted(self, predictor: str, support: str) -> None:
        """Count one entry of an answer."""
        self.counts.predictions[predictor, support] += 1

    def drifted(self, median_percent: float, inside_percent: float) -> None:
        """Record the drift of an upload."""
        self.counts.drift = Drifted(time.time(), median_percent, inside_percent)


def text(counts: Iterable[Counts], gauges: Iterable[Gauge]) -> bytes:
    """Return the counts of all processes, and the gauges, in Prometheus text format."""
    together = Counts()
    for part in counts:
        together.add(part)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([*_counted(together), *map(_family, gauges)]))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Return the families, as prometheus-client requires."""
        return iter(self._families)


def _counted(counts: Counts) -> Iterator[Metric]:
    requests = CounterMetricFamily("gpucast_requests", "Requests answered", labels=("method", "route", "status"))
    for (method, route, status), count in counts.requests.items():
        requests.add_metric((method, route, str(status)), count)
    yield requests
    seconds = HistogramMetricFamily("gpucast_request_seconds", "Seconds to answer", labels=("route",))
    for route, buckets in counts.buckets.items():
        total = list(zip(_EDGES, accumulate(buckets), strict=True))
        seconds.add_metric((route,), buckets=total, sum_value=counts.seconds[route])
    yield seconds
    predictions = CounterMetricFamily(
        "gpucast_predictions", "Entries of answers of POST /predict", labels=("predictor", "support")
    )
    for labels, count in counts.predictions.items():
        predictions.add_metric(labels, count)
    yield predictions
    drift = counts.drift
    median, inside = (None, None) if drift is None else (drift.median_percent, drift.inside_percent)
    of = "percent, of the last upload with new rows"
    yield GaugeMetricFamily("gpucast_drift_median_percent", f"Median error of the predictions, {of}", value=median)
    yield GaugeMetricFamily("gpucast_drift_inside_percent", f"Rows inside the intervals, {of}", value=inside)


def _family(gauge: Gauge) -> Metric:
    family = GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)
    for labels, value in gauge.values.items():
        family.add_metric(labels, value)
    return family
