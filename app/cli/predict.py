"""`gpucast predict`: predicts the time of a workload, with or without a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import with_options
from app.cli.show import figure, print_notes, show_served
from app.cli.workload_options import WorkloadOptions, snapshot_of
from app.config import Settings
from app.dashboard.charts.drawing import Drawing, refuse_other
from app.runtime.service_file import answer_of_service

if TYPE_CHECKING:
    from app.wire.prediction_form import Prediction, PredictResponse
    from app.wire.serving_form import ServingResponse

_COLUMNS = f"{'GPU':<26}{'ms':>12}  {'interval':<27}{'bound':<9}{'support':<14}predictor"


@with_options
def command(
    workload: WorkloadOptions,
    *,
    detail: Annotated[bool, typer.Option("--detail", help="Include a row per operator (with --json).")] = False,
) -> None:
    """Predict the time of a kernel, a list of operators or a network on one GPU, several or all."""
    import msgspec

    from app.wire.prediction_form import PredictResponse

    refuse_other(workload.plot)
    request = workload.request(detail=detail or None)
    if workload.gpus is not None:
        request.pop("gpu", None)
        request["gpus"] = workload.gpus
    body, settings = msgspec.json.encode(request), Settings.from_env()
    answer = answer_of_service(settings, "/predict", body) or _computed(settings, body)
    kind = request["workload"].get("kind")
    if kind == "operator_table":
        print(answer.decode())
        return

    def drawn(response: PredictResponse | ServingResponse) -> Drawing:
        from app.dashboard.charts.answers import prediction_chart, workload_title

        return prediction_chart(response, workload_title(request["workload"]))

    if kind == "serving":
        from app.wire.serving_form import ServingResponse

        served = msgspec.json.decode(answer, type=ServingResponse)
        workload.show(served, served.predictions, lambda: show_served(served), lambda: drawn(served))
    else:
        predicted = msgspec.json.decode(answer, type=PredictResponse)
        workload.show(predicted, predicted.predictions, lambda: _show(predicted), lambda: drawn(predicted))


def _computed(settings: Settings, body: bytes) -> bytes:
    """Return the answer of POST /predict, without a running service."""
    from app.wire.graph_form import GraphRequest
    from app.wire.predict_body import read_request, write_response

    request = read_request(body)
    stored_graphs = isinstance(request, GraphRequest)
    with snapshot_of(settings, request.predictor, stored_graphs=stored_graphs) as (snapshot, graphs):
        from app.services.dispatch import predict_workload

        return write_response(predict_workload(snapshot, request, max_rows=settings.max_batch_rows, graphs=graphs))


def _show(response: PredictResponse) -> None:
    print(_COLUMNS)
    for item in response.predictions:
        print(_line(item))
    print_notes([(item.gpu, item.warnings) for item in response.predictions], response.skipped)


def _line(item: Prediction) -> str:
    interval = f"{figure(item.interval_ms.low)} to {figure(item.interval_ms.high)} ({item.interval_ms.coverage:.0%})"
    answered = f"{item.predictor.name} {item.predictor.version}"
    return f"{item.gpu:<26}{figure(item.latency_ms):>12}  {interval:<27}{item.bound:<9}{item.support:<14}{answered}"
