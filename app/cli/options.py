"""Options shared by commands about one workload: the request, the GPUs, the form of the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from dataclasses import fields as fields_of
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
import typer

from app.cli.model_workload import model_workload
from app.cli.request_fields import pair, put_fields, value_of
from app.cli.request_file import request_of_file
from app.config import Settings
from app.errors import BadInput

if TYPE_CHECKING:
    from app.dashboard.charts.drawing import Drawing
    from app.engine.gpu_rows import Snapshot
    from app.services.graphs.graph_store import Graphs

File: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        help="A workload or a whole request in JSON, a config.json of Hugging Face, a graph of `gpucast trace`, or a "
        "network in ONNX; - reads standard input."
    ),
]
Gpus: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="GPU (id, alias or name); repeat for several; all: every GPU.")
]
Model: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME|FILE", help="Built-in network, or Hugging Face config.json.")
]
Mode: TypeAlias = Annotated[str | None, typer.Option(help="Mode of a model: inference, training, prefill or decode.")]
Batch: TypeAlias = Annotated[int | None, typer.Option(help="Sequences or images per step of a model.")]
Sequence: TypeAlias = Annotated[int | None, typer.Option(metavar="TOKENS", help="Tokens per sequence of a model.")]
ImageSize: TypeAlias = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Pixels per side of a model's images.")
]
Dtype: TypeAlias = Annotated[str | None, typer.Option(metavar="NAME", help="Number format of a model: fp32, bf16, ...")]
Fields: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the workload: flops=2147483648, size.rows=1024."),
]
Measured: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="GPU=MS", help="Measured time of this launch on another GPU, milliseconds.")
]
Predictor: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Predictor to answer with (default: auto).")
]
Coverage: TypeAlias = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of true times inside the interval, 0 to 1 (default: 0.8).")
]
Prices: TypeAlias = Annotated[
    list[str] | None, typer.Option("--price", metavar="GPU=USD", help="Price of one device per hour, US dollars.")
]
Powers: TypeAlias = Annotated[
    list[str] | None, typer.Option("--power", metavar="GPU=W", help="Power of one busy device, watts.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the service's JSON answer.")]
Csv: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print CSV, a line per GPU.")]
_EXAMPLES = """Nothing says what to predict. For example:
  gpucast predict --gpu nvidia-l4 --model llama-3-8b --mode decode --batch 8 --sequence 2048
  gpucast predict --gpu h100-sxm5-80gb config.json --mode prefill --batch 1 --sequence 1024
  gpucast compare --gpu a100-sxm4-80gb --gpu nvidia-l4 network.onnx --batch 16
  gpucast predict request.json
`gpucast predict --help` lists the options."""
DATA_VARIABLE = "GPUCAST_SHARED_DATA"
_DATA = typer.Option(
    envvar=DATA_VARIABLE,
    file_okay=False,
    metavar="DIR",
    help="Folder with the data sets neusight, modern_operators, serving_operators, serving_points, whole_models, "
    "vision_models and cuda_kernels.",
)
Data: TypeAlias = Annotated[Path, _DATA]
DataIfAny: TypeAlias = Annotated[Path | None, _DATA]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE.svg|.png", help="Also draw a chart of the figures with their intervals.")
]


@dataclass(frozen=True)
class ModelOptions:
    """Options of a network and how it runs."""

    model: Model = None
    mode: Mode = None
    batch: Batch = None
    sequence: Sequence = None
    image_size: ImageSize = None
    dtype: Dtype = None
    fields: Fields = None

    def request(self, file: Path | None, **own: Any) -> dict[str, Any]:
        """Return the request of file and options, and of fields `own` that are not None.

        The file may hold only the workload.
        """
        how = {name: getattr(self, name) for name in ("mode", "batch", "sequence", "image_size", "dtype")}
        if self.model is None:
            request = _of_file(file, how, self.fields or [], self._measured)
        elif file is not None:
            raise BadInput(f"{file} and --model {self.model} are two workloads: send one.")
        else:
            request = {"workload": model_workload(self.model, how, self.fields or [])}
        if request.get("save"):
            raise BadInput("save: a running service keeps answers; send the request to it.")
        return request | {name: value for name, value in own.items() if value is not None}

    @property
    def _measured(self) -> list[str]:
        return []


@dataclass(frozen=True)
class WorkloadOptions(ModelOptions):
    """Options of commands that answer about one workload on GPUs."""

    file: File = None
    gpu: Gpus = None
    measured: Measured = None
    predictor: Predictor = None
    coverage: Coverage = None
    as_json: AsJson = False
    csv: Csv = False
    plot: Plot = None

    @property
    def gpus(self) -> list[str] | Literal["all"] | None:
        """Return the request's `gpu` field; None if `--gpu` is not given."""
        return "all" if self.gpu == ["all"] else self.gpu or None

    def full_request(self, **own: Any) -> dict[str, Any]:
        """Return `request` with the given file, predictor and coverage."""
        return self.request(self.file, **own, predictor=self.predictor, coverage=self.coverage)

    def show(self, answer: Any, rows: list[Any], table: Callable[[], None], drawing: Callable[[], Drawing]) -> None:
        """Print an answer as JSON, its `rows` as CSV, or by `table`; with --plot also draw it."""
        if self.plot is not None:
            drawing().write(self.plot)
        if self.as_json:
            print(msgspec.json.encode(answer).decode())
        elif self.csv:
            from app.cli.csv_output import as_csv

            print(as_csv(rows), end="")
        else:
            table()

    @property
    def _measured(self) -> list[str]:
        return self.measured or []


# Shared options that come before a command's own.
_FIRST = ("file", "gpu")


def with_options(shared: type[ModelOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of `command(shared, own options ...)` that gives Typer an option per field of `shared`."""
    hints = get_type_hints(shared, include_extras=True)
    options = [
        Parameter(item.name, Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name])
        for item in fields_of(shared)
    ]
    first, last = ([item for item in options if (item.name in _FIRST) == early] for early in (True, False))

    def taken(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            command(shared(**{item.name: given.pop(item.name) for item in options}), **given)

        _, *own = signature(command, eval_str=True).parameters.values()
        every = [*first, *(item.replace(kind=Parameter.KEYWORD_ONLY) for item in own), *last]
        run.__doc__ = command.__doc__
        run.__annotations__ = {item.name: item.annotation for item in every}
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]  # a function may have one
        return run

    return taken


def by_gpu(options: list[str] | None, name: str) -> dict[str, object] | None:
    """Return GPU=FIGURE options by GPU; None if there are none."""
    return {gpu: value_of(figure) for gpu, figure in (pair(text, name) for text in options or [])} or None


@contextmanager
def snapshot_of(
    settings: Settings, predictor: str | None = None, *, stored_graphs: bool = True
) -> Iterator[tuple[Snapshot, Graphs | None]]:
    """Yield this installation's snapshot and graphs; warns on standard error about refused versions.

    Loads only the artefacts of `predictor`, and auto's, which the warnings need; None loads all. Without
    `stored_graphs` there are no graphs, and an embedded database stops meanwhile.
    """
    from app.store.postgres import EmbeddedPostgres, started_beside

    embedded = settings.database_url is None
    server = started_beside(EmbeddedPostgres(settings.data_dir / "postgres")) if embedded else nullcontext(lambda: None)
    with server as leave:
        # These take longer than the server's start.
        from app.bootstrap.assemble import assemble_for
        from app.bootstrap.runtime import open_runtime
        from app.engine.gpu_rows import Snapshot
        from app.engine.versions import ALL
        from app.predictors.auto.predictor import Auto
        from app.services.graphs.graph_store import Graphs

        with open_runtime(settings) as runtime:
            engine, refused = assemble_for(runtime, only=ALL if predictor is None else {predictor, Auto.name})
            for problem in refused:
                print(f"gpucast: {problem}", file=sys.stderr)
            if stored_graphs:
                yield Snapshot.of(engine), Graphs(runtime.database)
                return
        leave()
        yield Snapshot.of(engine), None


def _of_file(file: Path | None, how: Mapping[str, Any], fields: list[str], measured: list[str]) -> dict[str, Any]:
    if file is None and not fields:
        raise BadInput(_EXAMPLES)
    given: dict[str, Any] = {}
    put_fields(given, fields)
    request: dict[str, Any] = request_of_file(file, given.get("dims", {})) if file else {"workload": {"kind": "kernel"}}
    workload = request["workload"]
    if isinstance(workload, dict):
        workload |= {name: value for name, value in how.items() if value is not None}
        put_fields(workload, fields)
        rows = [{"gpu": name, "latency_ms": value_of(ms)} for name, ms in (pair(m, "--measured") for m in measured)]
        if rows:
            workload["measured"] = [*workload.get("measured", []), *rows]
    return request
