"""A sweep: a table of operators or of models on several GPUs, chunk by chunk into a folder of Parquet files.

Latency tables for architecture search (PM2Lat, section IV-D 2) have hundreds of millions of rows. A chunk is answered
by one call and becomes one file, written whole or not at all, so a sweep goes on where it stopped, and chunks can be
answered by any process that sees the folder.
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
from app.engine.gpu_rows import GpuRows, Snapshot
from app.errors import BadInput, GpucastError
from app.services.operators.batches import BatchOptions, predict_batch
from app.services.operators.common import require_predictor
from app.services.sweep.chunk_rows import CHUNK_ROWS
from app.services.sweep.model_columns import of_models
from app.services.sweep.models import Asked, predict_models
from app.services.sweep.rows import Rows, rows_of
from app.store.artifacts import write_whole

PLAN = "_sweep.json"  # readers of Parquet folders leave out names that begin with _
_ARROW = "application/vnd.apache.arrow.stream"
Open = Callable[[Settings], tuple[Snapshot, tuple[str, ...]]]


class Plan(Struct, frozen=True):
    """What a folder of answers holds: another plan never goes into the same folder.

    versions  what answers, by GPU
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
        """How many there are."""
        return -(-self.rows // self.chunk_rows)


def planned(
    snapshot: Snapshot, rows: Rows, gpus: list[str], predictor: str, coverage: float, *, chunk_rows: int = CHUNK_ROWS
) -> Plan:
    """The plan of a sweep; NotFound, BadInput or NotTrained say what to ask instead."""
    if not gpus:
        raise BadInput("Name at least one GPU.")
    if not rows.count:
        raise BadInput("The table has no rows.")
    known = GpuRows(snapshot)
    targets = [known.row(gpu, ("gpu",)) for gpu in gpus]
    require_predictor(snapshot.engine, known, predictor, targets)
    ids = list(dict.fromkeys(known.id(target) for target in targets))
    versions = {gpu: snapshot.engine.version_of(predictor, gpu) for gpu in ids}
    return Plan(rows.digest, rows.count, ids, predictor, coverage, chunk_rows, versions)


def opened(plan: Plan, folder: Path, *, restart: bool) -> list[int]:
    """Chunks that the folder still lacks; BadInput if it holds another sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / PLAN
    if note.exists() and not restart:
        differing = _differences(plan, note.read_bytes())
        if differing:
            words = f"{folder} holds another sweep ({', '.join(differing)} differ)"
            raise BadInput(f"{words}: name another folder, or --restart to replace it.")
    elif note.exists():
        for path in folder.glob("part-*.parquet"):
            path.unlink()
    write_whole(note, msgspec.json.encode(plan))
    return [k for k in range(plan.chunks) if not part(folder, k).exists()]


def _differences(plan: Plan, before: bytes) -> list[str]:
    try:
        other = msgspec.json.decode(before, type=Plan)
    except msgspec.DecodeError:
        return [PLAN]
    return [name for name in structs.asdict(plan) if getattr(plan, name) != getattr(other, name)]


def part(folder: Path, k: int) -> Path:
    """The file of a chunk."""
    return folder / f"part-{k:08d}.parquet"


def answer_chunk(snapshot: Snapshot, rows: Rows, plan: Plan, folder: Path, k: int) -> int:
    """Answer a chunk into its file; the number of rows of the table that it holds. BadInput names a wrong row."""
    first, stop = k * plan.chunk_rows, min((k + 1) * plan.chunk_rows, plan.rows)
    asked = rows.table(first, stop)
    answered = [_answered(snapshot, asked, plan, gpu, first) for gpu in plan.gpus]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(answered), sink)
    write_whole(part(folder, k), sink.getvalue().to_pybytes())
    return stop - first


def _answered(snapshot: Snapshot, asked: pa.Table, plan: Plan, gpu: str, first: int) -> pa.Table:
    """The rows beside their answers on one GPU."""
    try:
        times = (_of_models if of_models(asked.column_names) else _of_operators)(snapshot, asked, plan, gpu)
    except GpucastError as error:
        error.detail = f"Rows from {first:,}: {error.detail}"
        raise
    named = pa.array([gpu] * len(asked)).dictionary_encode()
    return pa.table(
        [*asked.columns, named, *times.columns],
        names=[*asked.column_names, "gpu", *times.column_names],
    )


def _of_models(snapshot: Snapshot, asked: pa.Table, plan: Plan, gpu: str) -> pa.Table:
    return predict_models(asked, Asked(snapshot, gpu, plan.predictor, plan.coverage))


def _of_operators(snapshot: Snapshot, asked: pa.Table, plan: Plan, gpu: str) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, asked.schema) as writer:
        writer.write_table(asked)
    options = BatchOptions(gpu=gpu, predictor=plan.predictor, coverage=plan.coverage, max_rows=len(asked))
    body = predict_batch(snapshot, sink.getvalue().to_pybytes(), _ARROW, options)
    return pa.ipc.open_stream(body).read_all().replace_schema_metadata(None)


def here(snapshot: Snapshot, rows: Rows, plan: Plan, folder: Path, chunks: list[int]) -> Iterator[int]:
    """Answer chunks in this process, one after another; rows done by each."""
    for k in chunks:
        yield answer_chunk(snapshot, rows, plan, folder, k)


def on_dask(
    scheduler: str, source: Path, plan: Plan, folder: Path, chunks: list[int], *, open_snapshot: Open
) -> Iterator[int]:
    """Answer chunks on the workers of a Dask cluster, in the order they finish; rows done by each.

    `open_snapshot` reads on each worker what its installation answers, and why versions were refused.

    Workers need gpucast of the same version, the same DATABASE_URL, and source and folder at the same place.
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
def _on_this_worker(source: Path, digest: str, open_snapshot: Open) -> tuple[Snapshot, Rows]:
    """What a worker's process keeps between chunks of one sweep."""
    rows = rows_of(source)
    if rows.digest != digest:
        raise BadInput(f"{source} on this worker is another file than the one that the sweep was planned with.")
    return open_snapshot(Settings.from_env())[0], rows


def _on_worker(k: int, *, source: Path, plan: Plan, folder: Path, open_snapshot: Open) -> int:
    """One chunk in a worker's process; BadInput if that serves other versions than planned."""
    snapshot, rows = _on_this_worker(source, plan.digest, open_snapshot)
    for gpu, version in plan.versions.items():
        if snapshot.engine.version_of(plan.predictor, gpu) != version:
            raise BadInput(
                f"A worker does not serve {plan.predictor} {version} for {gpu}: is its DATABASE_URL the same?"
            )
    return answer_chunk(snapshot, rows, plan, folder, k)
