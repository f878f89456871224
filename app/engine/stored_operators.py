"""Stored measurements of operators as tables that predictors learn from."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection

from app.engine.operator_blocks import runs_of
from app.store import operators
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns


def stored_operators(
    connection: Connection,
    gpus: GpuTable,
    *,
    gpu_ids: Collection[str] | None = None,
    ops: Collection[str] | None = None,
) -> list[OperatorRuns]:
    """Stored rows on GPUs of `gpus`, of `gpu_ids` and `ops` where given: one table per operator and dtype.

    Tables come in the order of OPS and DTYPES, their rows in the order of their keys; `rows.gpu` are rows of `gpus`.
    """
    return runs_of(operators.load(connection, gpu_ids=gpu_ids, ops=ops), gpus)
