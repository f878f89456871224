"""Options that commands about one workload share: what is asked, on which GPUs, in which form the answer comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from app.cli.fields import pair, put_fields, read_json, value_of
from app.cli.models import model_workload
from app.config import Settings
from app.errors import BadInput

if TYPE_CHECKING:
    from app.engine.gpu_rows import Snapshot
    from app.services.graphs.stored import Graphs

File: TypeAlias = Annotated[
    Path | None, typer.Argument(help="JSON of a workload, or of a whole request; - reads standard input.")
]
Gpus: TypeAlias = Annotated[list[str] | None, typer.Option(help="A GPU by any of its names; again for more; or all.")]
Model: TypeAlias = Annotated[str | None, typer.Option(help="A built-in network, or a Hugging Face config.json.")]
Mode: TypeAlias = Annotated[str | None, typer.Option(help="inference, training, prefill or decode (of a model).")]
Batch: TypeAlias = Annotated[int | None, typer.Option(help="Sequences or images of a step (of a model).")]
Sequence: TypeAlias = Annotated[int | None, typer.Option(help="Tokens per sequence (of a model).")]
ImageSize: TypeAlias = Annotated[int | None, typer.Option(help="Pixels of one side (of a model).")]
Dtype: TypeAlias = Annotated[str | None, typer.Option(help="fp32, bf16, ... (of a model).")]
Fields: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="A field of the workload: flops=2147483648, size.rows=1024."),
]
Measured: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="GPU=MS", help="A measured time of this launch on another GPU.")
]
Predictor: TypeAlias = Annotated[str | None, typer.Option(help="auto, or a predictor's name.")]
Coverage: TypeAlias = Annotated[float | None, typer.Option(help="Share of true times the interval should hold.")]
Prices: TypeAlias = Annotated[
    list[str] | None, typer.Option("--price", metavar="GPU=USD", help="Of an hour of one device.")
]
Powers: TypeAlias = Annotated[list[str] | None, typer.Option("--power", metavar="GPU=W", help="Of one device at work.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the answer of the service.")]
Csv: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print a line per GPU, commas between the figures.")]
DATA_VARIABLE = "GPUCAST_SHARED_DATA"
_DATA = typer.Option(
    envvar=DATA_VARIABLE,
    file_okay=False,
    metavar="DIR",
    help="Folder of the data sets: neusight, modern_operators, vision_models, cuda_kernels.",
)
Data: TypeAlias = Annotated[Path, _DATA]
DataIfAny: TypeAlias = Annotated[Path | None, _DATA]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE.svg|.png", help="Also draw the figures with their intervals.")
]


def request_of(
    file: Path | None,
    model: str | None,
    how: Mapping[str, Any],
    fields: list[str],
    measured: list[str],
    said: Mapping[str, Any],
) -> dict[str, Any]:
    """The request as the file and the options describe it; the file may hold the workload alone.

    `how` is of a model, `said` of the request; what is None was not said.
    """
    request = _of_file(file, fields, measured) if model is None else {"workload": model_workload(model, how, fields)}
    if request.get("save"):
        raise BadInput("save: a running service keeps answers; send the request to it.")
    return request | {name: value for name, value in said.items() if value is not None}


def gpus_of(names: list[str]) -> list[str] | Literal["all"]:
    """What a request says for these options."""
    return "all" if names == ["all"] else names


def by_gpu(options: list[str] | None, name: str) -> dict[str, object] | None:
    """GPU=FIGURE options; None where there are none."""
    return {gpu: value_of(figure) for gpu, figure in (pair(text, name) for text in options or [])} or None


@contextmanager
def snapshot_of(settings: Settings) -> Iterator[tuple[Snapshot, Graphs]]:
    """What this installation answers from; says on standard error which versions it had to refuse."""
    from app.bootstrap.assemble import assemble_for
    from app.bootstrap.runtime import open_runtime
    from app.engine.gpu_rows import Snapshot
    from app.services.graphs.stored import Graphs

    with open_runtime(settings) as runtime:
        engine, refused = assemble_for(runtime)
        for problem in refused:
            print(f"gpucast: {problem}", file=sys.stderr)
        yield Snapshot.of(engine), Graphs(runtime.database)


def _of_file(file: Path | None, fields: list[str], measured: list[str]) -> dict[str, Any]:
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
