"""The training data of a retraining: stored measurements that its predictor can read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection

from app.engine.measurement_tables import stored_kernels, stored_operators
from app.ops.network import NETWORK
from app.predictors import capabilities
from app.services.measurements.stored_networks import stored_networks
from app.services.models.whole_networks import predicts_networks_only
from app.store import gpus, measurements, operators
from app.store.measurements import training_set_hash
from app.tables.gpus import GpuTable
from app.tables.operator_runs import OperatorRuns
from app.training.candidate import TrainingData


def measured_gpus(connection: Connection, predictor: str) -> set[str]:
    """Return ids of GPUs with rows that the predictor can learn from."""
    gpu_ids: set[str] = set()
    if capabilities(predictor).learns_launches:
        gpu_ids |= {gpu for kind, gpu in measurements.counts(connection) if kind == "kernel"}
    if capabilities(predictor).learns_operators:
        gpu_ids |= set(operators.counts(connection, ops=_rows_of(predictor)))
    if predicts_networks_only(predictor):
        gpu_ids |= {gpu for kind, gpu in measurements.counts(connection) if kind == "model"}
    return gpu_ids


def _rows_of(predictor: str) -> tuple[str, ...] | None:
    """Return the operators whose rows it learns from; None: all of them."""
    return (NETWORK.name,) if predicts_networks_only(predictor) else None


def load_training_data(connection: Connection, predictor: str) -> tuple[TrainingData, str]:
    """Return all rows that the predictor can learn from, and a SHA-256 of their set."""
    table = GpuTable.from_specs(gpus.load_specs(connection))
    rows = measurements.load(connection, kind="kernel") if capabilities(predictor).learns_launches else []
    kernels, ids = stored_kernels(rows, table)
    if predicts_networks_only(predictor):
        runs = stored_networks(connection, table)
    else:
        learns = capabilities(predictor).learns_operators
        runs = stored_operators(connection, table, ops=_rows_of(predictor)) if learns else []
    data = TrainingData(table, kernels, ids, [run for run in runs if len(run)])
    return data, set_hash(data.operators, training_set_hash(rows))


def set_hash(runs: Sequence[OperatorRuns], kernels: str = training_set_hash([])) -> str:
    """Return a SHA-256 of the set of the rows of operators and of kernels, whose own SHA-256 is `kernels`."""
    if not runs:
        return kernels
    digest = hashlib.sha256(kernels.encode())
    for run in runs:
        digest.update(f"{run.op}/{run.dtype}".encode())
        digest.update(np.sort(run.key).tobytes())
    return digest.hexdigest()
