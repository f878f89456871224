"""`gpucast dra`: a Kubernetes device selector of the GPUs that meet a deadline."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

import typer

from app.cli.cluster_jobs import job_of, times_on
from app.cli.options import File, Gpus, ModelOptions, snapshot_of, with_options
from app.cli.plan import Deadline, Probability, Steps
from app.config import Settings
from app.errors import BadInput


@with_options(ModelOptions)
def command(  # noqa: PLR0913 - one parameter per option
    network: ModelOptions,
    file: File = None,
    *,
    gpu: Gpus = None,
    steps: Steps = None,
    deadline: Deadline = None,
    probability: Probability = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the object.")] = "gpucast",
    kind: Annotated[
        Literal["ResourceClaimTemplate", "ResourceClaim", "DeviceClass"], typer.Option(help="Kind of the object.")
    ] = "ResourceClaimTemplate",
) -> None:
    """Print a ResourceClaimTemplate for NVIDIA's DRA driver that selects the GPUs on which a job meets its deadline."""
    from app.services.scheduling.dra import manifest, product_names, selector

    job, request, settings = job_of(steps, deadline, probability), network.request(file), Settings.from_env()
    with snapshot_of(settings) as (snapshot, graphs):
        catalog = snapshot.engine.catalog
        specs = {spec.id: spec for spec in (map(catalog.resolve, gpu) if gpu and gpu != ["all"] else catalog.specs)}
        known = {spec_id: spec for spec_id, spec in specs.items() if product_names(spec)}
        if not known:
            raise BadInput(f"{', '.join(specs)}: NVIDIA's driver knows none of these.")
        times, reasons = times_on(sorted(known), request, job, settings, snapshot, graphs)
    meeting = sorted((time for time in times.values() if not time.missing), key=lambda time: time.job_s)
    left_out = {time.gpu: time.missing for time in times.values() if time.missing} | reasons
    for left, reason in left_out.items():
        print(f"gpucast: {left} is left out: {reason}", file=sys.stderr)
    if not meeting:
        raise BadInput("No GPU meets the goal.")
    print(
        f"gpucast: {len(meeting)} selected, fastest first: {', '.join(time.gpu for time in meeting)}", file=sys.stderr
    )
    expression = selector([known[time.gpu] for time in meeting])
    print(json.dumps(manifest(kind, name, expression, max(time.devices for time in meeting)), indent=2))
