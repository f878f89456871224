"""What /metrics shows of this process. Requests are counted in plain numbers: the hot route pays for each."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_EDGES = (*map(str, _SECONDS), "+Inf")


class Metrics(Collector):
    """Requests by method, route and status; seconds by route. Only the event loop's thread writes."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._gauges: dict[str, tuple[str, float]] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a template, so that ids do not become labels."""
        self._requests[method, route, status] += 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * len(_EDGES)
        buckets[bisect_left(_SECONDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]

    def gauge(self, name: str, text: str, value: float) -> None:
        """Set a figure to be shown from now on."""
        self._gauges[name] = (text, value)

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client wants it."""
        requests = CounterMetricFamily("gpucast_requests", "Requests answered", labels=("method", "route", "status"))
        for (method, route, status), count in list(self._requests.items()):
            requests.add_metric((method, route, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily("gpucast_request_seconds", "Seconds to answer", labels=("route",))
        for route, buckets in list(self._buckets.items()):
            total = list(zip(_EDGES, accumulate(buckets), strict=True))
            seconds.add_metric((route,), buckets=total, sum_value=self._seconds[route])
        yield seconds
        for name, (text, value) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=value)

    def text(self) -> bytes:
        """In the Prometheus text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
