"""`gpucast predictors`, `retrain` and `train`: what can answer, retrained here, or trained to ship with the code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.database import open_catalog
from app.cli.options import AsJson, Data
from app.cli.shell import stopped_by_terminate
from app.cli.workload_options import snapshot_of
from app.config import SHIPPED_MODELS, Settings
from app.dashboard.charts.drawing import refuse_other
from app.errors import BadInput, GpucastError

if TYPE_CHECKING:
    from app.bootstrap.runtime import Runtime
    from app.dashboard.charts.drawing import Drawing
    from app.engine.shipped import Shipped
    from app.store import jobs

# Seconds between looks at a job.
POLL_S = 0.2
_HEAD = f"{'predictor':<16}{'predicts':<32}{'answered by':<32}shipped version learned"


class Row(NamedTuple):
    """A predictor: what it predicts, the version that answers by GPU id or "*", and rows behind the shipped version."""

    name: str
    predicts: Sequence[str]
    answering: Mapping[str, str]
    shipped_rows: int | None


def predictors(
    *,
    predictor: Annotated[str, typer.Option(metavar="NAME", help="Predictor of --accuracy and --plot.")] = "auto",
    accuracy: Annotated[
        bool, typer.Option(help="Print the shipped version's errors on held-out rows by family instead.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg|.png", help="Also draw the shipped version's mean errors on unseen GPUs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the predictors, what they predict, and the version of each that answers."""
    import json

    from app.engine.shipped import shipped_versions
    from app.predictors import BY_NAME

    refuse_other(plot)
    settings = Settings.from_env()
    shipped = shipped_versions(settings.shipped_dir)
    if plot is not None:
        _chart(_card(shipped, predictor), predictor).write(plot)
    if accuracy:
        _print_accuracy(_card(shipped, predictor), as_json=as_json)
        return
    with snapshot_of(settings) as (snapshot, _):
        served = {key: ready.version for key, ready in snapshot.engine.served.items()}
        hosts = snapshot.engine.hosts
    rows = [
        Row(
            name,
            each.can.predicts,
            {gpu: version for (predictor, gpu), version in sorted(served.items()) if predictor == name},
            int(shipped[name].card["trained_on"]["rows"]) if name in shipped else None,
        )
        for name, each in BY_NAME.items()
    ]
    if as_json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    print(_HEAD)
    for row in rows:
        print(_line(row))
    versions = ", ".join(f"{stack} {hosts.version_of(stack)}" for stack in hosts.times())
    print(f"hosts of serving stacks: {versions}")


def _card(shipped: Mapping[str, Shipped], predictor: str) -> Sequence[Mapping[str, Any]]:
    """Return a shipped predictor's errors on held-out rows. Raises BadInput for one that has none."""
    if predictor not in shipped:
        raise BadInput.at(("--predictor",), f"{predictor} ships no trained version; {', '.join(shipped)} do", end=".")
    rows: Sequence[Mapping[str, Any]] = shipped[predictor].card["validation"]
    return rows


def _chart(card: Sequence[Mapping[str, Any]], predictor: str) -> Drawing:
    from app.dashboard.charts.answers import accuracy_chart

    unseen = [row for row in card if row["split"] == "gpu_held_out" and row.get("gpu", "all") == "all"]
    return accuracy_chart(unseen, predictor, "on unseen GPUs")


def _print_accuracy(card: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    import json

    from app.services.learning.manage_versions import by_family

    families = by_family(card)
    if as_json:
        print(json.dumps([one._asdict() for one in families]))
        return
    print(f"{'held out':<24}{'family':<24}{'MAPE, %':>8}{'in the 80 % interval, %':>26}{'rows':>10}")
    for one in families:
        print(f"{one.split:<24}{one.family:<24}{one.mape:>8.1f}{one.coverage_80:>26.1f}{one.rows:>10,}")


def _line(row: Row) -> str:
    versions = [version if gpu == "*" else f"{version} on {gpu}" for gpu, version in row.answering.items()]
    answers = ", ".join(versions) or "nothing before it is trained"
    learned = "" if row.shipped_rows is None else f"{row.shipped_rows:,} rows"
    return f"{row.name:<16}{', '.join(row.predicts):<32}{answers:<32}{learned}"


def retrain(
    predictor: Annotated[str, typer.Argument(help="The predictor's name, or serving-hosts.")],
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Train a version for this GPU only (default: for all GPUs).")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the job ends.")] = True,
) -> None:
    """Retrain a predictor through the job queue; starts a temporary worker if none is running."""
    from app.services.learning.manage_versions import request_retraining

    with open_catalog() as (runtime, catalog):
        job_id = request_retraining(runtime.database, catalog, predictor, gpu)
        print(f"job {job_id}: {predictor} for {gpu or 'all GPUs together'}", flush=True)
        if not wait:
            return
        with _worker(runtime):
            job = _follow(runtime, job_id)
    _report_job(job)


@contextmanager
def _worker(runtime: Runtime) -> Iterator[None]:
    """Run a temporary worker, unless one is running already."""
    from app.store import queue

    with runtime.database.begin() as connection:
        alive = queue.workers_alive(connection, stalled_after_s=runtime.settings.stalled_after_s)
    if alive:
        yield
        return
    print("no worker is running: starting one for this job", flush=True)
    environment = {**os.environ, **runtime.settings.environment()}
    command = (sys.executable, "-m", "app.cli", "worker", "--with-parent")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _follow(runtime: Runtime, job_id: int) -> jobs.Job:
    """Print the job's changes of state, and return the finished job."""
    from app.store import jobs

    seen, began = "", time.monotonic()
    while True:
        with runtime.database.begin() as connection:
            job = jobs.get(connection, job_id)
        if job.state != seen:
            print(f"{time.monotonic() - began:6.1f} s  {job.state}", flush=True)
            seen = job.state
        if job.finished_at is not None:
            return job
        time.sleep(POLL_S)


def _report_job(job: jobs.Job) -> None:
    if job.state == "failed":
        raise GpucastError(f"Job {job.id} failed: {job.reason}")
    result: dict[str, Any] = job.result or {}
    for cell in result.get("validation", ()):
        coverage = cell.get("coverage_80")
        covered = "" if coverage is None else f", 80 % intervals cover {coverage:.0f} %"
        note = f" ({cell['note']})" if "note" in cell else ""
        print(
            f"  {cell['split']:<22} {cell.get('family', ''):<28} {cell['gpu']:<28} MAPE {cell['mape']:.1f} %,"
            f" median {cell['median_ape']:.1f} % over {cell['n']} rows{covered}{note}"
        )
    print(f"version {job.version}, " + (job.reason or "served from now on"))


def train(
    data: Data,
    out: Annotated[
        Path, typer.Option(help="Where artefacts go; replaces those of the same predictors.")
    ] = SHIPPED_MODELS,
    predictor: Annotated[list[str] | None, typer.Option(help="One of them; repeat for several. Default: all.")] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Train only this operator of `auto`, with those of its interval group; repeat for several. The others "
            "are kept from the artefact in OUT, if their rows are the same.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Add this GPU to the artefact of `auto` in OUT, which does not know it; repeat for several.",
        ),
    ] = None,
) -> None:
    """Train predictors of operators and networks in a throw-away database, and write what ships with the code."""
    from app.bootstrap.train_shipped import train_shipped, trainable

    began = time.monotonic()

    def report(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {what}", flush=True)

    with stopped_by_terminate():
        size = train_shipped(data, out, predictor or trainable(), report, operators=operator or (), gpus=gpu or ())
    report(f"{size / 1e6:.1f} MB in {out}")
