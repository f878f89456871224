"""`gpucast sbatch`, `kueue` and `dra`: place a job on a cluster by its predicted time."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeAlias

import msgspec
import typer

from app.cli.options import RequestOptions, pair, read_file, with_options
from app.cli.workload_options import Fields, File, Gpus, NetworkOptions, StepOptions, snapshot_of
from app.config import Settings
from app.errors import BadInput
from app.wire.job_plan_form import PlanRequest

if TYPE_CHECKING:
    from app.engine.snapshot import Snapshot
    from app.services.graphs.graph_store import Graphs
    from app.services.scheduling.extender import Job, JobTime
    from app.services.scheduling.kueue import Manifest, Ranked

_JOB = {"deadline_s": "deadline"}
TimedJob: TypeAlias = Annotated[Fields, RequestOptions(PlanRequest, "steps", "probability", **_JOB)]
PricedJob: TypeAlias = Annotated[
    Fields, RequestOptions(PlanRequest, "steps", "probability", "price_term", prices="price", **_JOB)
]
BudgetedJob: TypeAlias = Annotated[
    Fields,
    RequestOptions(
        PlanRequest, "steps", "probability", "max_devices", "price_term", budget_usd="budget", prices="price", **_JOB
    ),
]

SINFO = ("sinfo", "--noheader", "--format", "%R %a %l %D %G")
# Deadline of a job without one, seconds: only the partition's time limit applies.
_ANY_S = 1e9
# Goals of a job, their options, and what they must be less than.
_LIMITS = (("steps", "--steps", inf), ("deadline_s", "--deadline", inf), ("probability", "--probability", 1.0))


@with_options
def sbatch(
    script: Annotated[list[str], typer.Argument(help="Script for sbatch, and its arguments.")],
    goals: BudgetedJob,
    step: StepOptions,
    *,
    partitions: Annotated[
        Path | None, typer.Option(help=f"File with the output of {shlex.join(SINFO)} (default: run it).")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=GPU", help="GPU of a Slurm type (gpu:TYPE:COUNT); gpu=GPU: of GPUs without a type."),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Submit the job instead of only printing the command.")
    ] = False,
) -> None:
    """Propose partition, GPUs and time limit of a job, and submit it with --submit."""
    from app.services.compare.job_plan import choose_gpus
    from app.services.compare.request import read_plan
    from app.services.scheduling.slurm import parse_partitions, passed_over, propose

    settings, names = Settings.from_env(), dict(pair(text, "--name") for text in name or [])
    lines = _sinfo() if partitions is None else partitions.read_text("utf-8").splitlines()
    with snapshot_of(settings) as (snapshot, graphs):
        listed = parse_partitions(lines, names, snapshot.engine.catalog)
        for warning in (*listed.notes, *listed.without):
            print(f"gpucast: {warning}", file=sys.stderr)
        gpus = sorted({place.gpu for place in listed.known})
        request = step.request(step.workload, gpus=gpus, **{"deadline_s": _ANY_S, **goals})
        parsed = read_plan(msgspec.json.encode(request))
        answer = choose_gpus(snapshot, parsed, max_rows=settings.max_batch_rows, graphs=graphs)
    proposal = propose(answer.choices, listed.known)
    reasons = passed_over(answer.choices, listed.known, proposal)
    if "max_devices" not in goals and not all(choice.meets for choice in answer.choices):
        reasons.append(f"At most {parsed.max_devices:g} GPUs were tried: --max-devices allows more.")
    if proposal is None:
        raise BadInput(" ".join(["No partition has the GPUs and the time for this job.", *reasons]))
    for reason in reasons:
        print(f"gpucast: {reason}", file=sys.stderr)
    command_line = ["sbatch", *proposal.options, *script]
    if submit:
        os.execvp(command_line[0], command_line)
    print(shlex.join(command_line))


def _sinfo() -> list[str]:
    try:
        return subprocess.run(SINFO, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput(
            f"sinfo does not answer ({error}): give --partitions FILE with what it prints elsewhere."
        ) from None


@with_options
def kueue(
    job: Annotated[
        Path | None,
        typer.Argument(help="Manifest of the job, JSON or YAML; it is printed with its labels."),
    ] = None,
    *,
    flavors: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Resource flavours: `kubectl get resourceflavors -o json`; - reads stdin."),
    ],
    goals: PricedJob,
    step: StepOptions,
    best: Annotated[bool, typer.Option("--best", help="Let the job run on the first flavour only.")] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE=GPU", help="GPU of a label's value, for example a100=a100-sxm4-80gb."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ranking as JSON.")] = False,
) -> None:
    """Rank Kueue's flavours by the cost (with prices) or time of a job, and label the job with its longest time."""
    from app.services.scheduling.kueue import label_job, rank_flavors, read_flavors, read_manifests

    timed_job = _job(goals)
    names = dict(pair(text, "--name") for text in name or [])
    manifests = [] if job is None else read_manifests(read_file(job).decode("utf-8", "replace"))
    listed = read_manifests(read_file(flavors).decode("utf-8", "replace"))
    request, settings = step.request(step.workload, prices=goals.get("prices")), Settings.from_env()
    with snapshot_of(settings) as (snapshot, graphs):
        known = read_flavors(listed, names, snapshot.engine.catalog)
        # What clouds ask for says nothing of a cluster's own GPUs.
        own = replace(snapshot, engine=replace(snapshot.engine, prices=snapshot.engine.prices.own), capped={})
        gpus = sorted({flavor.gpu for flavor in known if flavor.gpu})
        by_gpu, reasons = _times_on(gpus, request, timed_job, settings, own, graphs) if gpus else ({}, {})
    ranked = rank_flavors(known, by_gpu, reasons, by_cost=any(time.cost_usd is not None for time in by_gpu.values()))
    if as_json:
        print(msgspec.json.encode(ranked).decode())
    elif job is None:
        _show(ranked, sys.stdout)
    else:
        _show(ranked, sys.stderr)
        _print([label_job(part, ranked[:1] if best else ranked) for part in manifests])


def _print(manifests: list[Manifest]) -> None:
    whole = manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
    print(json.dumps(whole, indent=2))


def _show(ranked: list[Ranked], file: TextIO) -> None:
    from app.services.compare.units import duration

    print(f"{'':>4}{'flavour':<20}{'GPU':<24}{'job':>10}{'interval':>24}{'limit':>10}{'USD':>10}", file=file)
    for k, one in enumerate(ranked):
        line = f"{k + 1:>3} {one.flavor.name:<20}{one.flavor.gpu or '-':<24}"
        if (time := one.time) is not None:
            job, low, high, limit = (duration(1e3 * s) for s in (time.job_s, time.low_s, time.high_s, time.limit_s))
            cost = "-" if time.cost_usd is None else f"{time.cost_usd:.4g}"
            line += f"{job:>10}{f'{low} to {high}':>24}{limit:>10}{cost:>10}"
        print(line, file=file)
    for one in ranked:
        if note := one.missing or one.flavor.note:
            print(f"{one.flavor.name}: {note}", file=file)


@with_options
def dra(
    file: File = None,
    *,
    gpu: Gpus = None,
    goals: TimedJob,
    network: NetworkOptions,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the object.")] = "gpucast",
    kind: Annotated[
        Literal["ResourceClaimTemplate", "ResourceClaim", "DeviceClass"], typer.Option(help="Kind of the object.")
    ] = "ResourceClaimTemplate",
) -> None:
    """Print a ResourceClaimTemplate for NVIDIA's DRA driver that selects the GPUs on which a job meets its deadline."""
    from app.services.scheduling.kueue import manifest, product_names, selector

    job, request, settings = _job(goals), network.request(file), Settings.from_env()
    with snapshot_of(settings) as (snapshot, graphs):
        catalog = snapshot.engine.catalog
        specs = {spec.id: spec for spec in (map(catalog.resolve, gpu) if gpu and gpu != ["all"] else catalog.specs)}
        known = {spec_id: spec for spec_id, spec in specs.items() if product_names(spec)}
        if not known:
            raise BadInput(f"{', '.join(specs)}: NVIDIA's driver knows none of these.")
        by_gpu, reasons = _times_on(sorted(known), request, job, settings, snapshot, graphs)
    meeting = sorted((time for time in by_gpu.values() if not time.missing), key=lambda time: time.job_s)
    left_out = {time.gpu: time.missing for time in by_gpu.values() if time.missing} | reasons
    for left, reason in left_out.items():
        print(f"gpucast: {left} is left out: {reason}", file=sys.stderr)
    if not meeting:
        raise BadInput("No GPU meets the goal.")
    print(
        f"gpucast: {len(meeting)} selected, fastest first: {', '.join(time.gpu for time in meeting)}", file=sys.stderr
    )
    expression = selector([known[time.gpu] for time in meeting])
    print(json.dumps(manifest(kind, name, expression, max(time.devices for time in meeting)), indent=2))


def _job(goals: Fields) -> Job:
    """Return the job of a command's options. Raises BadInput for numbers out of range."""
    from app.services.scheduling.extender import Job

    for field, option, most in _LIMITS:
        value = goals.get(field)
        if value is not None and not 0 < value < most:
            raise BadInput(f"{option} must be more than 0{'' if most == inf else ' and less than 1'}, got {value:g}")
    return Job(goals.get("steps", 1.0), goals.get("deadline_s", inf), goals.get("probability", 0.9))


def _times_on(
    gpus: Sequence[str],
    request: dict[str, Any],
    job: Job,
    settings: Settings,
    snapshot: Snapshot,
    graphs: Graphs | None,
) -> tuple[dict[str, JobTime], dict[str, str]]:
    """Return the job's time by GPU, and why the other GPUs cannot run the workload; `request` as in POST /compare."""
    from functools import partial

    from app.services.compare.compare import compare
    from app.services.scheduling.extender import JobTime, compare_each

    run = partial(compare, max_rows=settings.max_batch_rows, graphs=graphs)
    rows, reasons = compare_each(snapshot, run, request, gpus)
    return {gpu: JobTime.of(row, job) for gpu, row in rows.items()}, reasons
