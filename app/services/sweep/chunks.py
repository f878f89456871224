"""Sweep a table of operators or models over several GPUs, in chunks, into a folder of Parquet files.

Latency tables for architecture search (PM2Lat, section IV-D 2) have hundreds of millions of rows. A chunk is one call
and one file, written atomically, so a sweep can be resumed, and any process that sees the folder can answer chunks.

Transformers that differ only by sizes, batch and sequence, and a ConvNet with images of any size and batch, are
lowered, predicted and scheduled together, with shared operators predicted once. Networks that were measured as a whole,
and invalid ones, are predicted individually. Both ways give the answers of POST /predict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from app.config import Settings
from app.engine.snapshot import GpuRows, Snapshot
from app.errors import BadInput, GpucastError
from app.networks.run import Run
from app.predictors.roofline import peaks
from app.services.models.predict_networks import predict_network
from app.services.models.whole_networks import NETWORKS_ONLY
from app.services.operators.batches import BatchOptions, predict_batch
from app.services.operators.predict_operators import require_predictor, unsupported_mask
from app.services.sweep import CHUNK_ROWS
from app.services.sweep.model_groups import Group, Table
from app.services.sweep.sweep_rows import SweepRows, is_model_table, open_rows
from app.steps.networks import StepRows, all_rows, step_rows
from app.steps.run_formats import as_run
from app.steps.schedule import STEP_PHASES
from app.steps.stages import memory
from app.steps.timing import StepQuery, time_step
from app.store.files import write_whole
from app.tables.arrays import Floats, Ints
from app.tables.workload import Workload
from app.wire.network_form import ModelRequest, ModelWorkload
from app.wire.prediction_form import MemoryParts, Phases

PLAN = "_sweep.json"  # readers of Parquet folders skip names that begin with _
_ARROW = "application/vnd.apache.arrow.stream"
Open = Callable[[Settings], tuple[Snapshot, tuple[str, ...]]]


class SweepPlan(Struct, frozen=True):
    """What a folder of answers holds; a folder never mixes plans.

    versions  version that answers, by GPU
    """

    digest: str
    rows: int
    gpus: list[str]
    predictor: str
    coverage: float
    chunk_rows: int
    versions: dict[str, str]

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.rows // self.chunk_rows)


def plan_sweep(
    snapshot: Snapshot,
    rows: SweepRows,
    gpus: list[str],
    predictor: str,
    coverage: float,
    *,
    chunk_rows: int = CHUNK_ROWS,
) -> SweepPlan:
    """Return the plan of a sweep. Raises NotFound, BadInput or NotTrained with what to send instead."""
    if not gpus:
        raise BadInput("Name at least one GPU.")
    if not rows.count:
        raise BadInput("The table has no rows.")
    known = GpuRows(snapshot)
    targets = [known.row(gpu, ("gpu",)) for gpu in gpus]
    require_predictor(snapshot.engine, known, predictor, targets)
    ids = list(dict.fromkeys(known.id(target) for target in targets))
    versions = {gpu: snapshot.engine.version_of(predictor, gpu) for gpu in ids}
    return SweepPlan(rows.digest, rows.count, ids, predictor, coverage, chunk_rows, versions)


def missing_chunks(plan: SweepPlan, folder: Path, *, restart: bool) -> list[int]:
    """Return the chunks that the folder lacks. Raises BadInput if it holds another sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / PLAN
    if note.exists() and not restart:
        differing = _differences(plan, note.read_bytes())
        if differing:
            message = f"{folder} has another sweep ({', '.join(differing)} differ)"
            raise BadInput(f"{message}: choose another folder, or --restart to replace it.")
    elif note.exists():
        for path in folder.glob("part-*.parquet"):
            path.unlink()
    write_whole(note, msgspec.json.encode(plan))
    return [k for k in range(plan.chunks) if not chunk_path(folder, k).exists()]


def _differences(plan: SweepPlan, before: bytes) -> list[str]:
    try:
        other = msgspec.json.decode(before, type=SweepPlan)
    except msgspec.DecodeError:
        return [PLAN]
    return [name for name in structs.asdict(plan) if getattr(plan, name) != getattr(other, name)]


def chunk_path(folder: Path, k: int) -> Path:
    """Return the file of a chunk."""
    return folder / f"part-{k:08d}.parquet"


def answer_chunk(snapshot: Snapshot, rows: SweepRows, plan: SweepPlan, folder: Path, k: int) -> int:
    """Answer a chunk into its file; return its number of rows. Raises BadInput that names a wrong row."""
    first, stop = k * plan.chunk_rows, min((k + 1) * plan.chunk_rows, plan.rows)
    table = rows.table(first, stop)
    answers = [_predict(snapshot, table, plan, gpu, first) for gpu in plan.gpus]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(answers), sink)
    write_whole(chunk_path(folder, k), sink.getvalue().to_pybytes())
    return stop - first


def _predict(snapshot: Snapshot, table: pa.Table, plan: SweepPlan, gpu: str, first: int) -> pa.Table:
    try:
        if is_model_table(table.column_names):
            times = predict_models(table, SweepTarget(snapshot, gpu, plan.predictor, plan.coverage))
        else:
            times = _of_operators(snapshot, table, plan, gpu)
    except GpucastError as error:
        error.detail = f"Rows from {first:,}: {error.detail}"
        raise
    named = pa.array([gpu] * len(table)).dictionary_encode()
    return pa.table(
        [*table.columns, named, *times.columns],
        names=[*table.column_names, "gpu", *times.column_names],
    )


def _of_operators(snapshot: Snapshot, table: pa.Table, plan: SweepPlan, gpu: str) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    options = BatchOptions(gpu=gpu, predictor=plan.predictor, coverage=plan.coverage, max_rows=len(table))
    body = predict_batch(snapshot, sink.getvalue().to_pybytes(), _ARROW, options)
    return pa.ipc.open_stream(body).read_all().replace_schema_metadata(None)


def run_locally(snapshot: Snapshot, rows: SweepRows, plan: SweepPlan, folder: Path, chunks: list[int]) -> Iterator[int]:
    """Answer chunks in this process; yield the rows done by each."""
    for k in chunks:
        yield answer_chunk(snapshot, rows, plan, folder, k)


def run_on_dask(
    scheduler: str, source: Path, plan: SweepPlan, folder: Path, chunks: list[int], *, open_snapshot: Open
) -> Iterator[int]:
    """Answer chunks on the workers of a Dask cluster, in completion order; yield the rows done by each.

    `open_snapshot` opens the installation of a worker. Workers need the same version of gpucast, the same DATABASE_URL,
    and source and folder at the same paths.
    """
    try:
        from distributed import Client, as_completed  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise BadInput("Dask is not installed: install gpucast with its extra `dask`.") from error
    with Client(scheduler, timeout="30s") as client:  # type: ignore[no-untyped-call]
        futures = client.map(
            _on_worker,
            chunks,
            source=source,
            plan=plan,
            folder=folder,
            open_snapshot=open_snapshot,
            retries=2,
            pure=False,
        )
        for future in as_completed(futures):  # type: ignore[no-untyped-call]
            yield future.result()


@lru_cache(maxsize=1)
def _on_this_worker(source: Path, digest: str, open_snapshot: Open) -> tuple[Snapshot, SweepRows]:
    """Return the snapshot and rows that a worker's process caches between chunks of one sweep."""
    rows = open_rows(source)
    if rows.digest != digest:
        raise BadInput(f"{source} on this worker differs from the file that the sweep was planned with.")
    return open_snapshot(Settings.from_env())[0], rows


def _on_worker(k: int, *, source: Path, plan: SweepPlan, folder: Path, open_snapshot: Open) -> int:
    """Answer one chunk in a worker's process. Raises BadInput if it serves other versions than planned."""
    snapshot, rows = _on_this_worker(source, plan.digest, open_snapshot)
    for gpu, version in plan.versions.items():
        if snapshot.engine.version_of(plan.predictor, gpu) != version:
            raise BadInput(
                f"A worker does not serve {plan.predictor} {version} for {gpu}: is its DATABASE_URL the same?"
            )
    return answer_chunk(snapshot, rows, plan, folder, k)


# Rows lowered at once over all configurations (about ten megabytes of figures), and the first number of configurations,
# before their number of rows is known.
_ROWS_AT_ONCE, _FIRST = 200_000, 256
TIMES = ("latency_ms", "low_ms", "high_ms", *(f"{phase}_ms" for phase in STEP_PHASES))
FIGURES = (*TIMES, *MemoryParts.__struct_fields__, "required_bytes")


class SweepTarget(NamedTuple):
    """GPU id and predictor of a sweep's rows."""

    snapshot: Snapshot
    gpu: str
    predictor: str
    coverage: float


def predict_models(table: pa.Table, target: SweepTarget) -> pa.Table:
    """Return a step of each configuration: columns of FIGURES, and `fits`. Raises BadInput that names a wrong row."""
    engine = target.snapshot.engine
    rows = Table(table, engine.models.on(target.gpu))
    figures = np.empty((len(FIGURES), len(table)))
    together = rows.together & (target.predictor not in NETWORKS_ONLY)

    def one_by_one(some: Iterable[int]) -> None:
        for row in some:
            try:
                figures[:, row] = _predict_single(rows.workload(row), target)
            except GpucastError as error:
                error.detail = f"row {row}: {error.detail}"
                raise

    one_by_one(np.flatnonzero(~together).tolist())
    for group in rows.groups() if together.any() else ():
        first, at_once = 0, _FIRST
        while first < len(group.rows):
            part = group.part(first, first + at_once)
            first += at_once
            for of, workload in part.lower_groups():
                answers = None if workload is None else _predict_group(workload, part, of, target)
                if workload is None or answers is None:
                    one_by_one(np.sort(part.rows[of]).tolist())  # raises the error of the wrong row
                    continue
                figures[:, part.rows[of]] = answers
                at_once = max(_ROWS_AT_ONCE // len(workload), 1)
    fits = figures[-1] <= engine.gpus.column("memory_bytes")[target.snapshot.row_of[target.gpu]]
    return pa.table([*figures, fits], names=[*FIGURES, "fits"])


def _predict_single(workload: ModelWorkload, target: SweepTarget) -> list[float]:
    """Return the figures of one configuration, from POST /predict's service."""
    request = ModelRequest(gpu=target.gpu, workload=workload, predictor=target.predictor, coverage=target.coverage)
    (answer,) = predict_network(target.snapshot, request, max_rows=2**63, advise=False).predictions
    assert isinstance(answer.phases_ms, Phases)
    assert isinstance(answer.memory.breakdown, MemoryParts)
    return [
        *(answer.latency_ms, answer.interval_ms.low, answer.interval_ms.high, *structs.astuple(answer.phases_ms)),
        *(*structs.astuple(answer.memory.breakdown), answer.memory.required_bytes),
    ]


def _predict_group(w: Workload, group: Group, of: Ints, target: SweepTarget) -> Floats | None:
    """Return FIGURES of the group's configurations `of` with common rows, [figures, c]; None if they cannot run."""
    run, rows = group.run_of(of), step_rows(w, len(of))
    if _has_unsupported_dtype(rows, run, target):
        return None
    figures = _figures(rows, run, target)
    gpu = GpuRows(target.snapshot).spec(target.snapshot.row_of[target.gpu])
    for more in run.recomputing(near_host=gpu.near_host):  # the least that fits, as `runs_that_fit`
        short = np.flatnonzero(figures[-1] > gpu.memory_bytes)
        if not len(short):
            break
        again = replace(group.run_of(of[short]), recompute=more.recompute, recompute_layers=more.recompute_layers)
        w = all_rows(group.like.network(group.sizes[of[short]]), again)
        recomputed = _figures(step_rows(w, len(short)), again, target)
        fits = recomputed[-1] <= gpu.memory_bytes
        figures[:, short[fits]] = recomputed[:, fits]
    return figures


def _figures(rows: StepRows, run: Run, target: SweepTarget) -> Floats:
    engine, gpu = target.snapshot.engine, target.snapshot.row_of[target.gpu]
    query = StepQuery(engine, engine.gpus, [gpu], target.predictor)
    step = time_step(query, rows, run, launched=run.release.eager)
    used, done = memory(rows.workload, run), step.done
    kept = np.array(np.broadcast_arrays(*used.breakdown, used.required_bytes, done.step_s)[:-1])
    return np.vstack([np.vstack([done.step_s, *step.ends(target.coverage), done.phases_s]) * 1e3, kept])


def _has_unsupported_dtype(rows: StepRows, run: Run, target: SweepTarget) -> bool:
    table, gpus, gpu = rows.distinct.table, target.snapshot.engine.gpus, target.snapshot.row_of[target.gpu]
    table = as_run(target.snapshot.engine, table, gpus, gpu) if run.assumed else table
    if not np.isnan(peaks(gpus)[:, gpu])[table.dtype].any():
        return False
    return bool(unsupported_mask(target.snapshot.engine, table, rows.work, gpus, gpu).any())
