"""`gpucast predict`: how long a workload takes, without a running service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from app.cli.fields import pair, put_fields, read_json, value_of
from app.cli.models import model_workload
from app.config import Settings
from app.errors import BadInput
from app.services.assemble import assemble_for
from app.services.gpu_rows import Snapshot
from app.services.graphs.stored import Graphs
from app.services.operators.requests import TableResponse
from app.services.prediction_form import Prediction, PredictResponse
from app.services.reply import reply
from app.services.requests import read_request, write_response
from app.services.runtime import open_runtime

_COLUMNS = f"{'GPU':<26}{'ms':>12}  {'interval':<27}{'bound':<9}{'support':<14}predictor"


def command(  # noqa: PLR0913 - one parameter per option
    file: Annotated[
        Path | None,
        typer.Argument(help="JSON of a workload, or of a whole POST /predict request; - reads standard input."),
    ] = None,
    *,
    gpu: Annotated[list[str] | None, typer.Option(help="A GPU by any of its names; again for more; or all.")] = None,
    model: Annotated[str | None, typer.Option(help="A built-in network, or a Hugging Face config.json.")] = None,
    mode: Annotated[str | None, typer.Option(help="inference, training, prefill or decode (of a model).")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences or images of a step (of a model).")] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens per sequence (of a model).")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels of one side (of a model).")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, bf16, ... (of a model).")] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the workload: flops=2147483648, size.rows=1024."),
    ] = None,
    measured: Annotated[
        list[str] | None, typer.Option(metavar="GPU=MS", help="A measured time of this launch on another GPU.")
    ] = None,
    predictor: Annotated[str | None, typer.Option(help="auto, or a predictor's name.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Share of true times the interval should hold.")] = None,
    detail: Annotated[bool, typer.Option("--detail", help="Add one row per operator (with --json).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of POST /predict.")] = False,
) -> None:
    """Predict how long a kernel, a list of operators or a whole network takes on one GPU, on several or on all."""
    if model is not None:
        how = {"mode": mode, "batch": batch, "sequence": sequence, "image_size": image_size, "dtype": dtype}
        request: dict[str, Any] = {"workload": model_workload(model, how, fields or [])}
    else:
        request = _request(file, fields or [], measured or [])
    options = {"predictor": predictor, "coverage": coverage, "detail": detail or None}
    request |= {name: value for name, value in options.items() if value is not None}
    if gpu:
        request.pop("gpu", None)
        request["gpus"] = "all" if gpu == ["all"] else gpu
    asked = read_request(msgspec.json.encode(request))
    settings = Settings.from_env()
    with open_runtime(settings) as runtime:
        engine, refused = assemble_for(runtime)
        for problem in refused:
            print(f"gpucast: {problem}", file=sys.stderr)
        response = reply(Snapshot.of(engine), asked, max_rows=settings.max_batch_rows, graphs=Graphs(runtime.database))
    if as_json or isinstance(response, TableResponse):
        print(write_response(response).decode())
    else:
        _show(response)


def _request(file: Path | None, fields: list[str], measured: list[str]) -> dict[str, Any]:
    """The request as the file and the options describe it; the file may hold the workload alone."""
    given = read_json(file) if file else {"kind": "kernel"}
    if not isinstance(given, dict):
        raise BadInput("The JSON must be an object: a workload, or a request with one.")
    request = given if "workload" in given else {"workload": given}
    workload = request["workload"]
    if isinstance(workload, dict):
        put_fields(workload, fields)
        rows = [{"gpu": name, "latency_ms": value_of(ms)} for name, ms in (pair(m, "--measured") for m in measured)]
        if rows:
            workload["measured"] = [*workload.get("measured", []), *rows]
    return request


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
