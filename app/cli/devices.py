"""`gpucast scale` and `gpucast partition`: a network on several devices, equal or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from app.cli.options import Plot, RequestOptions, with_options
from app.cli.show import figure
from app.cli.workload_options import MODEL_HELP, EachGpu, Fields, SetFields, model_workload, snapshot_of
from app.config import Settings
from app.dashboard.charts.drawing import refuse_other
from app.errors import BadInput
from app.wire.network_form import ModelWorkload, PartitionRequest
from app.wire.prediction_form import BaseRequest

if TYPE_CHECKING:
    from app.services.models.scaling import Point
    from app.wire.network_form import PartitionResponse

Scaled: TypeAlias = Annotated[
    Fields,
    RequestOptions(
        ModelWorkload, "mode", "sequence", "image_size", "dtype", within="workload.", defaults={"mode": "training"}
    ),
]
Split: TypeAlias = Annotated[
    Fields,
    RequestOptions(ModelWorkload, "batch", "sequence", "mode", "dtype", within="workload."),
]
Predictor: TypeAlias = Annotated[Fields, RequestOptions(BaseRequest, "predictor")]
Links: TypeAlias = Annotated[Fields, RequestOptions(PartitionRequest, "link_latency_ms", "predictor")]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Options of the curves to predict."""

    model: Annotated[str, typer.Option(metavar="NAME|FILE", help=MODEL_HELP)]
    gpu: EachGpu
    devices: Annotated[
        str, typer.Option(metavar="N,...", help="Numbers of data-parallel devices, for example 1,2,4,8.")
    ] = "1"
    batches: Annotated[
        str,
        typer.Option(
            "--batch", "--batches", metavar="N,...", help="Batch sizes per device; with --strong, of the whole step."
        ),
    ] = "1"
    strong: Annotated[bool, typer.Option("--strong", help="Strong scaling: split each batch over the devices.")] = False


@with_options
def scale(
    curves: Curves,
    run: Scaled,
    answer: Predictor,
    *,
    fields: SetFields = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
    plot: Plot = None,
) -> None:
    """Predict throughput over numbers of devices and batch sizes."""
    from app.services.models.scaling import scaling_curves
    from app.wire.network_form import ModelRequest
    from app.wire.predict_body import read_request

    refuse_other(plot)
    counts, sizes = _numbers(curves.devices, "--devices"), _numbers(curves.batches, "--batch")
    workload = model_workload(curves.model, run, fields or [])
    parsed = read_request(msgspec.json.encode({"workload": workload, "gpus": curves.gpu, **answer}))
    assert isinstance(parsed, ModelRequest)
    settings, strong = Settings.from_env(), curves.strong
    with snapshot_of(settings, parsed.predictor) as (snapshot, _):
        most = settings.max_batch_rows
        points = scaling_curves(snapshot, parsed, devices=counts, batches=sizes, strong=strong, max_rows=most)
    if plot is not None:
        from app.dashboard.charts.answers import scaling_chart, workload_title

        title = workload_title({**workload, "batch": None})  # the axes have the batch
        scaling_chart(points, title, over_devices=len(counts) > 1, strong=strong).write(plot)
    if as_json:
        print(msgspec.json.encode(points).decode())
    else:
        _show_points(points)


def _numbers(text: str, option: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise BadInput.at((option,), f"send whole numbers with commas between them, not {text!r}")
    return sorted({int(word) for word in words})


def _show_points(points: list[Point]) -> None:
    print(f"{'GPU':<26}{'devices':>8}{'batch':>8}{'ms':>12}  {'interval':<22}{'per s':>10}{'efficiency':>12}  fits")
    for point in points:
        interval = f"{figure(point.low_ms)} to {figure(point.high_ms)}"
        times = f"{figure(point.latency_ms):>12}  {interval:<22}{figure(point.throughput_per_s):>10}"
        figures = f"{times}{point.efficiency:>12.0%}"
        print(f"{point.gpu:<26}{point.devices:>8}{point.batch:>8}{figures}  {'yes' if point.fits else 'no'}")


@with_options
def partition(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    *,
    gpu: Annotated[
        list[str], typer.Option(metavar="NAME", help="GPU of the next stage (id, alias or name); repeat per stage.")
    ],
    run: Split,
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(metavar="GB/S", help="Bandwidth between neighbouring GPUs (default: of their links)."),
    ] = None,
    links: Links,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON answer of POST /partition.")] = False,
) -> None:
    """Find the partition of a network over two or more GPUs that minimises the time of the slowest stage."""
    from app.services.models.partition import partition_network, read_partition

    request: dict[str, Any] = {"gpus": gpu, "workload": model_workload(model, run, []), **links}
    if link_gb_per_s is not None:
        request["link_bandwidth_bytes_per_s"] = link_gb_per_s * 1e9
    parsed = read_partition(msgspec.json.encode(request))
    with snapshot_of(Settings.from_env(), links.get("predictor", "auto")) as (snapshot, graphs):
        answer = partition_network(snapshot, *parsed, graphs)
    print(msgspec.json.encode(answer).decode() if as_json else _stages(answer))


def _stages(answer: PartitionResponse) -> str:
    cut = answer.partition
    lines = [f"{'GPU':<26}{'from':<22}{'to':<22}{'ms':>10}  {'interval':<22}{'GB':>7}  fits"]
    for stage in cut.stages:
        interval = f"{stage.interval_ms.low:.4g} to {stage.interval_ms.high:.4g}"
        memory = f"{stage.memory.required_bytes / 1e9:>7.1f}  {'yes' if stage.memory.fits else 'no'}"
        lines.append(
            f"{stage.gpu:<26}{stage.first:<22}{stage.last:<22}{stage.latency_ms:>10.4g}  {interval:<22}{memory}"
        )
    lines.append(
        f"a request every {cut.bottleneck_ms:.4g} ms, {cut.throughput_per_s:.4g} sequences or images a second;"
        f" one alone takes {cut.latency_ms:.4g} ms"
    )
    return "\n".join([*lines, *cut.warnings])
