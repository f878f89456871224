"""`gpucast partition`: splits a network into stages over unequal GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.config import Settings
from app.errors import BadInput

if TYPE_CHECKING:
    from app.wire.partition_form import PartitionResponse


def command(  # noqa: PLR0913 - one parameter per option
    model: Annotated[str, typer.Argument(help="Built-in network, or Hugging Face config.json.")],
    *,
    gpu: Annotated[
        list[str], typer.Option(metavar="NAME", help="GPU of the next stage (id, alias or name); repeat per stage.")
    ],
    batch: Annotated[int, typer.Option(min=1, help="Sequences or images per request.")] = 1,
    sequence: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", help="Tokens per sequence.")] = None,
    mode: Annotated[str, typer.Option(help="Mode: inference, prefill or decode.")] = "inference",
    dtype: Annotated[str, typer.Option(help="Number format.")] = "bf16",
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(metavar="GB/S", help="Bandwidth between neighbouring GPUs (default: of their links)."),
    ] = None,
    link_latency_ms: Annotated[float, typer.Option(metavar="MS", help="Latency of one transfer, milliseconds.")] = 0.02,
    predictor: Annotated[str, typer.Option(metavar="NAME", help="Predictor to answer with.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON answer of POST /partition.")] = False,
) -> None:
    """Find the partition of a network over two or more GPUs that minimises the time of the slowest stage."""
    import msgspec

    from app.bootstrap.assemble import installed_snapshot
    from app.services.models.partition import partition_network, read_partition

    workload: dict[str, Any] = {"kind": "model", "batch": batch, "mode": mode, "dtype": dtype}
    workload |= _network(model) | ({} if sequence is None else {"sequence": sequence})
    request = {"gpus": gpu, "workload": workload, "predictor": predictor, "link_latency_ms": link_latency_ms}
    if link_gb_per_s is not None:
        request["link_bandwidth_bytes_per_s"] = link_gb_per_s * 1e9
    parsed = read_partition(msgspec.json.encode(request))
    snapshot, refused = installed_snapshot(Settings.from_env())
    for problem in refused:
        print(f"gpucast: {problem}", file=sys.stderr)
    answer = partition_network(snapshot, *parsed)
    print(msgspec.json.encode(answer).decode() if as_json else _shown(answer))


def _network(model: str) -> dict[str, Any]:
    from app.wire.decoding import decode_plain

    path = Path(model)
    if path.suffix != ".json":
        return {"name": model}
    try:
        return {"config": decode_plain(path.read_bytes())}
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error


def _shown(answer: PartitionResponse) -> str:
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
