"""`gpucast tune-plan`: the configurations of an auto-tuned kernel to run first on another GPU."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from app.cli.options import AsJson, put_fields, with_options
from app.cli.show import figure
from app.cli.workload_options import SetFields, snapshot_of
from app.config import Settings
from app.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """Options of a tuning cache and of the GPU to tune for."""

    cache: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="Kernel Tuner's cache of another GPU, or T4 results of it."),
    ]
    gpu: Annotated[str, typer.Option(metavar="NAME", help="GPU to tune for (id, alias or name).")]
    source: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="GPU of the cache (default: the file's device_name).")
    ] = None
    known: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Cache of what ran on the new GPU already."),
    ] = None
    problem: Annotated[
        str | None, typer.Option(metavar="X[,Y[,Z]]", help="Sizes of the problem (default: the cache's problem_size).")
    ] = None
    top: Annotated[int, typer.Option(min=1, max=1000, metavar="COUNT", help="How many configurations to list.")] = 10
    fields: SetFields = None
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the configurations, for Kernel Tuner to go on with.")
    ] = None
    as_json: AsJson = False


@with_options
def tune_plan(options: TuningOptions) -> None:
    """List the configurations to run first on a GPU, by a tuning cache of another."""
    from app.formats.tuning_caches import read_cache
    from app.services.kernels.tune_plan import tune_plan as planned

    measured, given = read_cache(options.cache), dict[str, Any]()
    put_fields(given, options.fields or [])
    if options.problem is not None:
        given["problem"] = _sizes(options.problem)
    source, output = options.source or measured.device, options.output
    known = None if options.known is None else read_cache(options.known)
    if source is None:
        raise BadInput(f"{options.cache.name} does not say which GPU it is of: add --from NAME.")
    with snapshot_of(Settings.from_env(), "auto", stored_graphs=False) as (snapshot, _):
        plan = planned(snapshot, measured, (source, options.gpu), given, options.top, known)
    chosen = [row.configuration for row in plan.configurations]
    if output is not None:
        try:
            output.write_bytes(msgspec.json.format(msgspec.json.encode(chosen), indent=1))
        except OSError as error:
            raise BadInput(f"Cannot write {output}: {error.strerror}.") from error
    if options.as_json:
        print(msgspec.json.encode(plan).decode())
        return
    print(f"{'':>4}{'ms':>11}  {'interval':<24}{'on ' + plan.source_gpu:>20}  configuration")
    for row in plan.configurations:
        interval = f"{figure(row.interval_ms.low)} to {figure(row.interval_ms.high)}"
        values = " ".join(f"{name}={value}" for name, value in row.configuration.items())
        print(f"{row.rank:>3} {figure(row.latency_ms):>11}  {interval:<24}{figure(row.source_ms):>20}  {values}")
    for note in plan.notes:
        print(f"gpucast: {note}", file=sys.stderr)
    if output is not None:
        print("For Kernel Tuner:")
        print(f'  chosen = json.load(open("{output}"))')
        print("  tune_kernel(..., restrictions=lambda p: dict(p) in chosen)")


def _sizes(text: str) -> list[float]:
    try:
        sizes = [float(size) for size in text.split(",")]
    except ValueError:
        sizes = []
    if not 1 <= len(sizes) <= 3 or not all(1 <= size < 10**15 for size in sizes):
        raise BadInput(f"--problem {text}: send one to three sizes of at least 1, like 4096,4096.")
    return sizes
