"""`gpucast kueue`: ranks resource flavours for a job, and labels the job with its longest time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from app.cli.cluster_jobs import job_of, times_on
from app.cli.options import ModelOptions, Prices, by_gpu, snapshot_of, with_options
from app.cli.plan import Deadline, Probability, Steps
from app.cli.request_fields import pair, read_file
from app.config import Settings

if TYPE_CHECKING:
    from app.services.scheduling.kueue import Manifest, Ranked


@with_options(ModelOptions)
def command(  # noqa: PLR0913 - one parameter per option
    network: ModelOptions,
    job: Annotated[
        Path | None,
        typer.Argument(help="Manifest of the job, JSON or YAML (with PyYAML); it is printed with its labels."),
    ] = None,
    *,
    flavors: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Resource flavours: `kubectl get resourceflavors -o json`; - reads stdin."),
    ],
    workload: Annotated[
        Path | None, typer.Option(help="JSON file with the workload of one step, instead of --model.")
    ] = None,
    steps: Steps = None,
    deadline: Deadline = None,
    probability: Probability = None,
    price: Prices = None,
    best: Annotated[bool, typer.Option("--best", help="Let the job run on the first flavour only.")] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE=GPU", help="GPU of a label's value, for example a100=a100-sxm4-80gb."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ranking as JSON.")] = False,
) -> None:
    """Rank Kueue's flavours by the cost (with prices) or time of a job, and label the job with its longest time."""
    import msgspec

    from app.services.scheduling.kueue import label_job, rank_flavors, read_flavors, read_manifests

    wanted = job_of(steps, deadline, probability)
    names = dict(pair(text, "--name") for text in name or [])
    manifests = [] if job is None else read_manifests(read_file(job).decode("utf-8", "replace"))
    listed = read_manifests(read_file(flavors).decode("utf-8", "replace"))
    request = network.request(workload, prices=by_gpu(price, "--price"))
    settings = Settings.from_env()
    with snapshot_of(settings) as (snapshot, graphs):
        known = read_flavors(listed, names, snapshot.engine.catalog)
        gpus = sorted({flavor.gpu for flavor in known if flavor.gpu})
        times, reasons = times_on(gpus, request, wanted, settings, snapshot, graphs) if gpus else ({}, {})
    ranked = rank_flavors(known, times, reasons, by_cost=any(time.cost_usd is not None for time in times.values()))
    if as_json:
        print(msgspec.json.encode(ranked).decode())
    elif job is None:
        _show(ranked, sys.stdout)
    else:
        _show(ranked, sys.stderr)
        _print([label_job(part, ranked[:1] if best else ranked) for part in manifests])


def _print(manifests: list[Manifest]) -> None:
    import json

    whole = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
    print(json.dumps(whole, indent=2))


def _show(ranked: list[Ranked], file: TextIO) -> None:
    print(f"{'':>4}{'flavour':<20}{'GPU':<24}{'job, s':>10}{'interval, s':>22}{'limit, s':>10}{'USD':>10}", file=file)
    for k, one in enumerate(ranked):
        time, line = one.time, f"{k + 1:>3} {one.flavor.name:<20}{one.flavor.gpu or '-':<24}"
        if time is not None:
            ends, cost = (
                f"{time.low_s:.4g} to {time.high_s:.4g}",
                "-" if time.cost_usd is None else f"{time.cost_usd:.4g}",
            )
            line += f"{time.job_s:>10.4g}{ends:>22}{time.limit_s:>10.4g}{cost:>10}"
        print(line, file=file)
    for one in ranked:
        if note := one.missing or one.flavor.note:
            print(f"{one.flavor.name}: {note}", file=file)
