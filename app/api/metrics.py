"""Metrics and traces of requests."""

from __future__ import annotations

import os
import shutil
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from app import __version__
from app.config import Settings
from app.errors import BadInput
from app.runtime.logs import REQUEST_ID

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


EVERY_S = 1.0
_DECODER = msgspec.msgpack.Decoder(Counts)


class SharedCounts:
    """A folder with one file per process, named after their parent; a single process shares nothing."""

    def __init__(self, settings: Settings, mine: Counts) -> None:
        self._mine = mine
        self._root = settings.data_dir / "metrics" if settings.workers > 1 else None
        self._file = Path(str(os.getpid()))
        if self._root is not None:
            parent = psutil.Process(os.getppid())
            self._file = self._root / f"{parent.pid}-{parent.create_time():.2f}" / str(os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_for_ever, name="counts", daemon=True)

    def start(self) -> None:
        """Start writing; remove the folders of services that have ended."""
        if self._root is None:
            return
        for folder in self._root.glob("*-*"):
            if not _lives(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def all(self) -> Iterator[Counts]:
        """Yield this process's counts, and those of the others as last written, including processes that died."""
        yield self._mine
        if self._root is None:
            return
        for path in self._file.parent.glob("[0-9]*"):
            if path != self._file and path.suffix == "":
                with suppress(OSError, msgspec.MsgspecError):
                    yield _DECODER.decode(path.read_bytes())

    def _write_for_ever(self) -> None:
        while not self._stop.wait(EVERY_S):
            with suppress(OSError, RuntimeError):  # disk full, or a count that grew meanwhile: retried in a second
                self._file.parent.mkdir(parents=True, exist_ok=True)
                fresh = self._file.with_suffix(".new")
                fresh.write_bytes(msgspec.msgpack.encode(self._mine))
                fresh.replace(self._file)


def _lives(name: str) -> bool:
    """Return whether the parent that a folder is named after still runs."""
    pid, _, started = name.partition("-")
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" == started
    except (ValueError, psutil.Error):
        return False


# Asked every few seconds by probes, and of no interest in a trace.
_UNTRACED = "livez,healthz,readyz,metrics,static"
# Of the scope: the query while a span is made, which would show the token of a saved answer.
_QUERY = "gpucast_query"


def traced(app: ASGIApp, collector: str) -> ASGIApp:
    """Return the application with a span per request, which continues the caller's trace and has the request's id.

    `collector`: URL that takes OTLP over HTTP. Raises BadInput without the extra `tracing`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise BadInput("GPUCAST_TRACES needs OpenTelemetry: install gpucast with its extra `tracing`.") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "gpucast", "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=collector)))

    async def with_query(scope: Scope, receive: Receive, send: Send) -> None:
        scope["query_string"] = scope.pop(_QUERY)
        await app(scope, receive, send)

    spans = OpenTelemetryMiddleware(
        with_query,
        tracer_provider=provider,
        excluded_urls=_UNTRACED,
        exclude_spans=["receive", "send"],
        default_span_details=lambda scope: (f"{scope['method']} {scope['path']}", {}),
        server_request_hook=_with_id,
    )

    async def without_query(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_QUERY], scope["query_string"] = scope["query_string"], b""
        await spans(scope, receive, send)

    return without_query


def _with_id(span: Any, scope: Scope) -> None:
    span.set_attribute("gpucast.request_id", REQUEST_ID.get().decode())
