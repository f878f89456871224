"""`gpucast sbatch`: proposes partition, GPUs and time limit of a Slurm job from its workload."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import ModelOptions, Prices, by_gpu, snapshot_of, with_options
from app.cli.plan import Budget, Deadline, MaxDevices, Probability, Steps
from app.cli.request_fields import pair
from app.config import Settings
from app.errors import BadInput

SINFO = ("sinfo", "--noheader", "--format", "%R %a %l %D %G")
# Deadline of a job without one, seconds: only the partition's time limit applies.
_ANY_S = 1e9


@with_options(ModelOptions)
def command(  # noqa: PLR0913 - one parameter per option
    network: ModelOptions,
    script: Annotated[list[str], typer.Argument(help="Script for sbatch, and its arguments.")],
    *,
    workload: Annotated[
        Path | None, typer.Option(help="JSON file with the workload of one step, instead of --model.")
    ] = None,
    steps: Steps = None,
    deadline: Deadline = None,
    budget: Budget = None,
    probability: Probability = None,
    price: Prices = None,
    max_devices: MaxDevices = None,
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
    import msgspec

    from app.services.compare.job_plan import choose_gpus
    from app.services.scheduling.slurm import parse_partitions, passed_over, propose
    from app.wire.job_plan_form import read_plan

    settings, names = Settings.from_env(), dict(pair(text, "--name") for text in name or [])
    lines = _sinfo() if partitions is None else partitions.read_text("utf-8").splitlines()
    with snapshot_of(settings) as (snapshot, graphs):
        partitions_found = parse_partitions(lines, names, snapshot.engine.catalog)
        for warning in (*partitions_found.notes, *partitions_found.without):
            print(f"gpucast: {warning}", file=sys.stderr)
        places = partitions_found.known
        request = network.request(
            workload,
            gpus=sorted({place.gpu for place in places}),
            steps=steps,
            deadline_s=deadline or _ANY_S,
            budget_usd=budget,
            probability=probability,
            prices=by_gpu(price, "--price"),
            max_devices=max_devices,
        )
        parsed = read_plan(msgspec.json.encode(request))
        answer = choose_gpus(snapshot, parsed, max_rows=settings.max_batch_rows, graphs=graphs)
    found = propose(answer.choices, places)
    reasons = passed_over(answer.choices, places, found)
    if found is None:
        raise BadInput(" ".join(["No partition has the GPUs and the time for this job.", *reasons]))
    for reason in reasons:
        print(f"gpucast: {reason}", file=sys.stderr)
    command_line = ["sbatch", *found.options, *script]
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
