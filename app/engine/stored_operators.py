"""Load stored operator measurements as training tables."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from app.engine.operator_blocks import to_runs
from app.store import stored_rows
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns


def stored_operators(
    connection: Connection,
    gpus: GpuTable,
    *,
    gpu_ids: Collection[str] | None = None,
    ops: Collection[str] | None = None,
) -> list[OperatorRuns]:
    """Return stored rows on GPUs of `gpus`, optionally only of `gpu_ids` and `ops`: one table per operator and dtype.

    Tables are in the order of OPS and DTYPES, their rows in the order of their keys. `rows.gpu` are rows of `gpus`.
    """
    return to_runs(stored_rows.load(connection, gpu_ids=gpu_ids, ops=ops), gpus)
