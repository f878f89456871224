"""Sweep a table of operators or models over several GPUs, in chunks, into a folder of Parquet files.

Latency tables for architecture search (PM2Lat, section IV-D 2) have hundreds of millions of rows. A chunk is one call
and one file, written atomically, so a sweep can be resumed, and any process that sees the folder can answer chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from app.config import Settings
from app.engine.gpu_rows import GpuRows
from app.engine.snapshot import Snapshot
from app.errors import BadInput, GpucastError
from app.services.operators.batches import BatchOptions, predict_batch
from app.services.operators.common import require_predictor
from app.services.sweep.chunk_rows import CHUNK_ROWS
from app.services.sweep.model_columns import is_model_table
from app.services.sweep.models import SweepTarget, predict_models
from app.services.sweep.sweep_rows import SweepRows, open_rows
from app.store.files import write_whole

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
    """Return the rows with their predictions on one GPU."""
    try:
        times = (_of_models if is_model_table(table.column_names) else _of_operators)(snapshot, table, plan, gpu)
    except GpucastError as error:
        error.detail = f"Rows from {first:,}: {error.detail}"
        raise
    named = pa.array([gpu] * len(table)).dictionary_encode()
    return pa.table(
        [*table.columns, named, *times.columns],
        names=[*table.column_names, "gpu", *times.column_names],
    )


def _of_models(snapshot: Snapshot, table: pa.Table, plan: SweepPlan, gpu: str) -> pa.Table:
    return predict_models(table, SweepTarget(snapshot, gpu, plan.predictor, plan.coverage))


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
