"""Groups of options that commands about a workload share: the workload, its GPUs, a job's goals, the answer's form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from urllib.parse import urlencode

import msgspec
import typer

from app.cli.options import (
    OPTIONS_OF_FIELDS,
    AsJson,
    Csv,
    Plot,
    RequestOptions,
    pair,
    put_fields,
    read_file,
    read_json,
    value_of,
)
from app.config import Settings
from app.errors import BadInput, Malformed
from app.wire.network_form import ModelWorkload
from app.wire.prediction_form import BaseRequest

if TYPE_CHECKING:
    from app.dashboard.charts.drawing import Drawing
    from app.engine.snapshot import Snapshot
    from app.services.graphs.graph_store import Graphs

Fields: TypeAlias = Mapping[str, Any]
File: TypeAlias = Annotated[
    Path | None,
    typer.Argument(
        help="A workload or a whole request in JSON, a config.json of Hugging Face, a graph of `gpucast trace`, a "
        "network in ONNX, or one kernel: .ptx, .cubin, .cu, CSV of ncu or rocprof-compute, Triton's .json; - reads "
        "standard input."
    ),
]
Gpus: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="GPU (id, alias or name); repeat for several; all: every GPU.")
]
EachGpu: TypeAlias = Annotated[
    list[str], typer.Option(metavar="NAME", help="GPU (id, alias or name); repeat for several.")
]
MODEL_HELP = "Built-in network, or Hugging Face config.json."
SetFields: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of the workload: flops=2147483648, size.rows=1024."),
]
Answer: TypeAlias = Annotated[Fields, RequestOptions(BaseRequest, "predictor", "coverage")]
_EXAMPLES = """Nothing says what to predict. For example:
  gpucast predict --gpu nvidia-l4 --model llama-3-8b --mode decode --batch 8 --sequence 2048
  gpucast predict --gpu h100-sxm5-80gb config.json --mode prefill --batch 1 --sequence 1024
  gpucast compare --gpu a100-sxm4-80gb --gpu nvidia-l4 network.onnx --batch 16
  gpucast predict request.json
`gpucast predict --help` lists the options."""
OPTIONS_OF_FIELDS |= {"gpu": "--gpu NAME", "gpus": "--gpu NAME", "workload.name": "--model NAME"}


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of a network and how it runs."""

    model: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=MODEL_HELP)] = None
    run: Annotated[
        Fields,
        RequestOptions(ModelWorkload, "mode", "batch", "sequence", "image_size", "dtype", within="workload."),
    ]
    fields: SetFields = None

    def request(self, file: Path | None, measured: list[str] | None = None, **own: Any) -> dict[str, Any]:
        """Return the request of file and options, and of fields `own` that are not None.

        The file may hold only the workload. `measured` are GPU=MS.
        """
        if self.model is None:
            request = _of_file(file, self.run, self.fields or [], measured or [])
        elif file is not None:
            raise BadInput(f"{file} and --model {self.model} are two workloads: send one.")
        else:
            request = {"workload": model_workload(self.model, self.run, self.fields or [])}
        if request.get("save"):
            raise BadInput("save: a running service keeps answers; send the request to it.")
        return request | {name: value for name, value in own.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class StepOptions(NetworkOptions):
    """Options of one step of a job, which may come from a file."""

    workload: Annotated[
        Path | None, typer.Option(help="JSON file with the workload of one step, instead of --model.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Options of commands that answer about one workload on GPUs."""

    file: File = None
    gpu: Gpus = None
    network: NetworkOptions
    measured: Annotated[
        list[str] | None,
        typer.Option(metavar="GPU=MS", help="Measured time of this launch on another GPU, milliseconds."),
    ] = None
    answer: Annotated[Fields, RequestOptions(BaseRequest, "predictor", "coverage", "power_cap_w")]
    as_json: AsJson = False
    csv: Csv = False
    plot: Plot = None

    @property
    def gpus(self) -> list[str] | Literal["all"] | None:
        """Return the request's `gpus` field; None if `--gpu` is not given."""
        return "all" if self.gpu == ["all"] else self.gpu or None

    def request(self, **own: Any) -> dict[str, Any]:
        """Return the request of the file and all options, and of fields `own` that are not None."""
        return self.network.request(self.file, self.measured, **own, **self.answer)

    def show(self, answer: Any, rows: list[Any], table: Callable[[], None], drawing: Callable[[], Drawing]) -> None:
        """Print an answer as JSON, its `rows` as CSV, or by `table`; with --plot also draw it."""
        if self.plot is not None:
            drawing().write(self.plot)
        if self.as_json:
            print(msgspec.json.encode(answer).decode())
        elif self.csv:
            from app.cli.show import as_csv

            print(as_csv(rows), end="")
        else:
            table()


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
        from app.engine.snapshot import Snapshot
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


def _of_file(file: Path | None, run: Fields, fields: list[str], measured: list[str]) -> dict[str, Any]:
    if file is None and not fields:
        raise BadInput(_EXAMPLES)
    given: dict[str, Any] = {}
    put_fields(given, fields)
    launch = given.pop("launch", {})  # which kernel of a file, and iterations of its loops: no fields of a workload
    fields = [item for item in fields if not item.startswith("launch.")]
    request: dict[str, Any] = request_of_file(file, given, launch) if file else {"workload": {"kind": "kernel"}}
    workload = request["workload"]
    if isinstance(workload, dict):
        workload |= run
        put_fields(workload, fields)
        rows = [{"gpu": name, "latency_ms": value_of(ms)} for name, ms in (pair(m, "--measured") for m in measured)]
        if rows:
            workload["measured"] = [*workload.get("measured", []), *rows]
    return request


# Fields of a Hugging Face config.json, one of which every such file has.
_OF_CONFIG = ("model_type", "architectures", "hidden_size", "num_hidden_layers", "text_config")
_MEDIA = "application/octet-stream"
_MOST_TRIPS = 1_000_000_000


def model_workload(model: str, options: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the workload of kind `model` without options that are None; `fields` are FIELD=VALUE."""
    is_file = model.endswith(".json") or Path(model).is_file()
    network = {"config": read_json(Path(model))} if is_file else {"name": model}
    given = {name: value for name, value in options.items() if value is not None}
    workload: dict[str, Any] = {"kind": "model", **network, **given}
    put_fields(workload, fields)
    return workload


def request_of_file(file: Path, fields: Fields, launch: Fields) -> dict[str, Any]:
    """Return the request that a file is, or is about. Raises BadInput or Malformed.

    A file that is no JSON is one kernel (app.formats.kernel_files), or a network in ONNX or an archive of torch.export,
    which is stored, as by POST /graphs; `dims` of the fields are the sizes of its dimensions. `launch`: the `kernel` of
    several in a file, and `trips`, iterations of its loops.
    """
    from app.formats.kernel_files import READERS
    from app.wire.decoding import decode_plain

    if file.suffix.lower() in READERS:
        return _kernel(file, fields, launch)
    body = read_file(file)
    if body[:64].lstrip()[:1] not in {b"{", b"["} and file.suffix != ".json":
        return {"workload": {"kind": "graph", "graph_id": _stored(file, body, fields.get("dims", {}))}}
    try:
        given = decode_plain(body)
    except BadInput as error:
        raise type(error)(f"{file}: {error.detail}", errors=error.errors) from None
    if not isinstance(given, dict):
        raise BadInput("The JSON must be an object: a workload, a request with one, a config.json or a graph.")
    return given if "workload" in given else _of_object(file, given, fields, launch)


def _of_object(file: Path, given: dict[str, Any], fields: Fields, launch: Fields) -> dict[str, Any]:
    """Return the request about an object that is no request."""
    from app.formats.kernel_files import is_triton
    from app.formats.tuning_caches import is_cache

    if is_triton(given):
        return _kernel(file, fields, launch, given)
    if is_cache(given):
        raise BadInput(f"{file} has many configurations: gpucast tune-plan {file} --gpu NAME chooses of them.")
    if "kind" not in given and "nodes" in given:
        return {"workload": {"kind": "graph", "graph": given}}
    if "kind" not in given and any(name in given for name in _OF_CONFIG):
        return {"workload": {"kind": "model", "config": given}}
    return {"workload": given}


def _kernel(file: Path, fields: Fields, launch: Fields, metadata: Fields | None = None) -> dict[str, Any]:
    """Return the request about the kernel of a file; what was assumed goes to standard error."""
    from app.formats.kernel_files import Chosen, describe, describe_triton

    trips, kernel = launch.get("trips"), launch.get("kernel")
    if trips is not None and not (isinstance(trips, int) and 1 <= trips <= _MOST_TRIPS):
        raise BadInput(f"--set launch.trips={trips}: send a whole number from 1 to {_MOST_TRIPS:,}.")
    read_file(file)  # reports what cannot be read
    chosen = Chosen(None if kernel is None else str(kernel), trips, fields)
    described = describe(file, chosen) if metadata is None else describe_triton(file, metadata, chosen)
    for note in described.notes:
        print(f"gpucast: {file.name}: {note}", file=sys.stderr)
    return {"workload": described.workload}


def _stored(file: Path, body: bytes, dims: Mapping[str, Any]) -> str:
    """Store a network in this installation, by its service where that runs, and return its id."""
    import json

    from app.runtime.service_file import answer_of_service
    from app.services.graphs.graph_store import Graphs, missing_dims, new_row, read_dims, read_graph

    texts = [f"{name}={size}" for name, size in dims.items()]
    sizes = read_dims(texts)
    try:
        source = read_graph(body, _MEDIA)
    except Malformed as error:
        known = "JSON (a request, a config.json, a graph), ONNX and .pt2"
        raise Malformed(f"{file}: {error.detail} Files are read that are {known}.", errors=error.errors) from None
    if missing := missing_dims(source, sizes):
        options = " ".join(f"--set dims.{name}=SIZE" for name in missing)
        raise BadInput(f"{file}: no size of the dimensions {', '.join(missing)}: add {options}")
    settings = Settings.from_env()
    query = urlencode([("dims", text) for text in texts])
    # A file over the service's limit on bodies is read here.
    answer = answer_of_service(settings, f"/graphs?{query}", body, media=_MEDIA)
    if answer is not None:
        return str(json.loads(answer)["graph_id"])
    from app.bootstrap.runtime import open_runtime

    with open_runtime(settings) as runtime:
        return Graphs(runtime.database).add(new_row(source, sizes)).id
