"""`gpucast retrain`: retrains one predictor from the stored measurements."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.config import Settings
from app.errors import GpucastError

if TYPE_CHECKING:
    from app.bootstrap.runtime import Runtime
    from app.store import jobs

POLL_S = 0.2


def command(
    predictor: Annotated[str, typer.Argument(help="The predictor's name, or serving-hosts.")],
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Train a version for this GPU only (default: for all GPUs).")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the job ends.")] = True,
) -> None:
    """Retrain a predictor through the job queue; starts a temporary worker if none is running."""
    from app.bootstrap.runtime import open_runtime
    from app.engine.catalogue import load_catalog
    from app.services.learning.manage_versions import request_retraining

    with open_runtime(Settings.from_env()) as runtime:
        with runtime.database.begin() as connection:
            catalog = load_catalog(connection)
        job_id = request_retraining(runtime.database, catalog, predictor, gpu)
        print(f"job {job_id}: {predictor} for {gpu or 'all GPUs together'}", flush=True)
        if not wait:
            return
        with _worker(runtime):
            job = _follow(runtime, job_id)
    _report(job)


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


def _report(job: jobs.Job) -> None:
    if job.state == "failed":
        raise GpucastError(f"Job {job.id} failed: {job.reason}")
    kept_back = f", kept back: {job.reason}" if job.reason else ", served from now on"
    print(f"version {job.version}{kept_back}")
    result: dict[str, Any] = job.result or {}
    for cell in result.get("validation", ()):
        coverage = cell.get("coverage_80")
        covered = "" if coverage is None else f", 80 % intervals cover {coverage:.0f} %"
        note = f" ({cell['note']})" if "note" in cell else ""
        print(
            f"  {cell['split']:<22} {cell.get('family', ''):<28} {cell['gpu']:<28} MAPE {cell['mape']:.1f} %,"
            f" median {cell['median_ape']:.1f} % over {cell['n']} rows{covered}{note}"
        )
