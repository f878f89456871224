"""`gpucast predict`: how long a workload takes, without a running service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from app.config import Settings
from app.errors import BadInput, FieldError
from app.services.assemble import assemble_for
from app.services.decoding import plain
from app.services.gpu_rows import Snapshot
from app.services.operator_requests import TableResponse
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
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the kernel: flops=2147483648, size.rows=1024."),
    ] = None,
    measured: Annotated[
        list[str] | None, typer.Option(metavar="GPU=MS", help="A measured time of this launch on another GPU.")
    ] = None,
    predictor: Annotated[str | None, typer.Option(help="auto, or a predictor's name.")] = None,
    coverage: Annotated[float | None, typer.Option(help="Share of true times the interval should hold.")] = None,
    detail: Annotated[bool, typer.Option("--detail", help="Add one row per operator (with --json).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer of POST /predict.")] = False,
) -> None:
    """Predict how long a kernel or a list of operators takes on one GPU, on several or on all."""
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
        response = reply(Snapshot.of(engine), asked, max_rows=settings.max_batch_rows)
    if as_json or isinstance(response, TableResponse):
        print(write_response(response).decode())
    else:
        _show(response)


def _request(file: Path | None, fields: list[str], measured: list[str]) -> dict[str, Any]:
    """The request as the file and the options describe it; the file may hold the workload alone."""
    given = _read(file) if file else {"kind": "kernel"}
    if not isinstance(given, dict):
        raise BadInput("The JSON must be an object: a workload, or a request with one.")
    request = given if "workload" in given else {"workload": given}
    workload = request["workload"]
    if isinstance(workload, dict):
        for item in fields:
            name, value = _pair(item, "--set")
            _put(workload, name.split("."), _value(value))
        rows = [{"gpu": name, "latency_ms": _value(time)} for name, time in (_pair(m, "--measured") for m in measured)]
        if rows:
            workload["measured"] = [*workload.get("measured", []), *rows]
    return request


def _read(file: Path) -> Any:
    try:
        return plain(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes())
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.rpartition("=") if option == "--measured" else text.partition("=")
    if not separator or not name:
        raise BadInput(f"{option} {text}: send NAME=VALUE.", errors=[FieldError((option,), f"{text!r} has no =")])
    return name, value


def _value(text: str) -> Any:
    """A number where the text is one, otherwise the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _put(holder: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = holder.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"--set {'.'.join(path)}: {name} is no object.")
        holder = inner
    holder[path[-1]] = value


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
