"""Options that commands about one workload share: what is asked, on which GPUs, in which form the answer comes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import fields as fields_of
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
import typer

from app.cli.fields import pair, put_fields, read_json, value_of
from app.cli.models import model_workload
from app.config import Settings
from app.errors import BadInput

if TYPE_CHECKING:
    from app.cli.drawing import Drawing
    from app.engine.gpu_rows import Snapshot
    from app.services.graphs.graph_store import Graphs

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


@dataclass(frozen=True)
class ModelOptions:
    """Options that say which network is meant, and how it runs."""

    model: Model = None
    mode: Mode = None
    batch: Batch = None
    sequence: Sequence = None
    image_size: ImageSize = None
    dtype: Dtype = None
    fields: Fields = None

    def request(self, file: Path | None, **own: Any) -> dict[str, Any]:
        """The request as file and options describe it; `own` are fields of its own, None: not given.

        The file may hold the workload alone.
        """
        if self.model is None:
            request = _of_file(file, self.fields or [], self._measured)
        else:
            how = {name: getattr(self, name) for name in ("mode", "batch", "sequence", "image_size", "dtype")}
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
        """What a request says for `--gpu`; None where it was not given."""
        return "all" if self.gpu == ["all"] else self.gpu or None

    def asked(self, **own: Any) -> dict[str, Any]:
        """The request as `request` has it, of the file, predictor and coverage given."""
        return self.request(self.file, **own, predictor=self.predictor, coverage=self.coverage)

    def show(self, answer: Any, rows: list[Any], table: Callable[[], None], drawing: Callable[[], Drawing]) -> None:
        """Print an answer: as JSON, its `rows` as CSV, or by `table`; and draw it where that was asked."""
        if self.plot is not None:
            drawing().write(self.plot)
        if self.as_json:
            print(msgspec.json.encode(answer).decode())
        elif self.csv:
            from app.cli.tables import as_csv

            print(as_csv(rows), end="")
        else:
            table()

    @property
    def _measured(self) -> list[str]:
        return self.measured or []


# Options that come before a command's own.
_FIRST = ("file", "gpu")


def with_options(shared: type[ModelOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of `command(shared options, own ones)`: Typer sees an option for every field of `shared`."""
    hints = get_type_hints(shared, include_extras=True)
    options = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields_of(shared)
    ]
    first, last = ([one for one in options if (one.name in _FIRST) == early] for early in (True, False))

    def taken(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            command(shared(**{one.name: given.pop(one.name) for one in options}), **given)

        _, *own = signature(command, eval_str=True).parameters.values()
        every = [*first, *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own), *last]
        run.__doc__ = command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in every}
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]  # a function may have one
        return run

    return taken


def by_gpu(options: list[str] | None, name: str) -> dict[str, object] | None:
    """GPU=FIGURE options; None where there are none."""
    return {gpu: value_of(figure) for gpu, figure in (pair(text, name) for text in options or [])} or None


@contextmanager
def snapshot_of(settings: Settings, predictor: str | None = None) -> Iterator[tuple[Snapshot, Graphs]]:
    """What this installation answers from; says on standard error which versions it had to refuse.

    Only the artefacts of `predictor` are read, and auto's, which also tells what the others cannot; None: all.
    """
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
