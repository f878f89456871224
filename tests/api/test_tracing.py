"""Traces reach a collector over OTLP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.config import Settings
from app.main import create_app
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.busy_machine import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector(ThreadingHTTPServer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    about = {item.key: item.value.string_value for item in span.attributes}
                    self.spans.append((span.name, span.trace_id.hex(), about))


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_a_request_is_a_span_of_its_callers_trace(
    settings: Settings, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    traces = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "mine"}
    with TestClient(create_app(replace(settings, traces=traces))) as client:
        assert client.get("/readyz").status_code == 200
        client.post("/predict", json=PREDICT_EXAMPLE, headers=headers).raise_for_status()
        until(lambda: collector.spans)
    ((name, trace, about),) = collector.spans
    assert (name, trace, about["gpucast.request_id"]) == ("POST /predict", TRACE, "mine")


def test_no_span_has_the_query_with_its_token(
    settings: Settings, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a shared answer was sent to the collector with the token that opens it."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    traces = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    with TestClient(create_app(replace(settings, traces=traces))) as client:
        assert client.get("/measurements?limit=1&gpu=nvidia-l4").json()["items"] == []
        assert client.get("/predictions/999999?share=SECRET").status_code == 404
        until(lambda: len(collector.spans) == 2)
    assert not any("SECRET" in value for _, _, about in collector.spans for value in about.values())
