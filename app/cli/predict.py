"""`gpucast predict`: how long a workload takes, without a running service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.charts import Bar, interval_chart
from app.cli.drawing import Drawing, refuse_other
from app.cli.options import (
    AsJson,
    Batch,
    Coverage,
    Csv,
    Dtype,
    Fields,
    File,
    Gpus,
    ImageSize,
    Measured,
    Mode,
    Model,
    Plot,
    Predictor,
    Sequence,
    gpus_of,
    request_of,
    snapshot_of,
)
from app.config import Settings

if TYPE_CHECKING:
    from app.wire.prediction_form import Prediction, PredictResponse

_COLUMNS = f"{'GPU':<26}{'ms':>12}  {'interval':<27}{'bound':<9}{'support':<14}predictor"


def command(  # noqa: PLR0913 - one parameter per option
    file: File = None,
    *,
    gpu: Gpus = None,
    model: Model = None,
    mode: Mode = None,
    batch: Batch = None,
    sequence: Sequence = None,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    fields: Fields = None,
    measured: Measured = None,
    predictor: Predictor = None,
    coverage: Coverage = None,
    detail: Annotated[bool, typer.Option("--detail", help="Add one row per operator (with --json).")] = False,
    as_json: AsJson = False,
    csv: Csv = False,
    plot: Plot = None,
) -> None:
    """Predict how long a kernel, a list of operators or a whole network takes on one GPU, on several or on all."""
    import msgspec

    from app.cli.tables import as_csv
    from app.services.dispatch import reply
    from app.wire.operators.requests import TableResponse
    from app.wire.requests import read_request, write_response

    refuse_other(plot)
    how = {"mode": mode, "batch": batch, "sequence": sequence, "image_size": image_size, "dtype": dtype}
    said = {"predictor": predictor, "coverage": coverage, "detail": detail or None}
    request = request_of(file, model, how, fields or [], measured or [], said)
    if gpu:
        request.pop("gpu", None)
        request["gpus"] = gpus_of(gpu)
    asked = read_request(msgspec.json.encode(request))
    settings = Settings.from_env()
    with snapshot_of(settings) as (snapshot, graphs):
        response = reply(snapshot, asked, max_rows=settings.max_batch_rows, graphs=graphs)
    if isinstance(response, TableResponse):
        print(write_response(response).decode())
        return
    if plot is not None:
        _drawn(response).write(plot)
    if as_json:
        print(write_response(response).decode())
    elif csv:
        print(as_csv(response.predictions), end="")
    else:
        _show(response)


def _show(response: PredictResponse) -> None:
    print(_COLUMNS)
    for item in response.predictions:
        print(_line(item))
    for item in response.predictions:
        for words in item.warnings:
            print(f"{item.gpu}: {words}")
    for left_out in response.skipped:
        print(f"{left_out.gpu} skipped: {left_out.reason}")


def _line(item: Prediction) -> str:
    interval = f"{item.interval_ms.low:.4g} to {item.interval_ms.high:.4g} ({item.interval_ms.coverage:.0%})"
    answered = f"{item.predictor.name} {item.predictor.version}"
    return f"{item.gpu:<26}{item.latency_ms:>12.4g}  {interval:<27}{item.bound:<9}{item.support:<14}{answered}"


def _drawn(response: PredictResponse) -> Drawing:
    bars = [
        Bar(item.gpu, item.latency_ms, item.interval_ms.low, item.interval_ms.high)
        for item in response.predictions
        if item.latency_ms
    ]
    return interval_chart(bars, title="Latency", x_label="milliseconds")
