"""What commands about clusters share: a job's time on each of several GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.config import Settings
    from app.engine.gpu_rows import Snapshot
    from app.services.graphs.graph_store import Graphs
    from app.services.scheduling.comparison import Job, JobTime


def job_of(steps: float | None, deadline_s: float | None, probability: float | None) -> Job:
    """Return the job of a command's options. Raises BadInput for numbers out of range."""
    from app.errors import BadInput
    from app.services.scheduling.comparison import Job

    for name, value, most in (
        ("--steps", steps, inf),
        ("--deadline", deadline_s, inf),
        ("--probability", probability, 1),
    ):
        if value is not None and not 0 < value < most:
            raise BadInput(f"{name} must be more than 0{'' if most == inf else ' and less than 1'}, got {value:g}")
    return Job(steps or 1.0, deadline_s or inf, probability or 0.9)


def times_on(
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
    from app.services.scheduling.comparison import JobTime, compare_each

    run = partial(compare, max_rows=settings.max_batch_rows, graphs=graphs)
    rows, reasons = compare_each(snapshot, run, request, gpus)
    return {gpu: JobTime.of(row, job) for gpu, row in rows.items()}, reasons
