"""OpenTelemetry: a span per request, sent to a collector beside the requests."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Scope

from app import __version__
from app.errors import BadInput
from app.runtime.logs import REQUEST_ID

# Asked every few seconds by probes, and of no interest in a trace.
_UNTRACED = "livez,healthz,readyz,metrics,static"


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
    return OpenTelemetryMiddleware(
        app,
        tracer_provider=provider,
        excluded_urls=_UNTRACED,
        exclude_spans=["receive", "send"],
        default_span_details=lambda scope: (f"{scope['method']} {scope['path']}", {}),
        server_request_hook=_with_id,
    )


def _with_id(span: Any, scope: Scope) -> None:
    span.set_attribute("gpucast.request_id", REQUEST_ID.get().decode())
