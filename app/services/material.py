"""What a retraining learns from: the stored measurements that its predictor knows how to read."""

from __future__ import annotations

from sqlalchemy import Connection

from app.predictors import learns_kernels
from app.store import measurements


def measured_gpus(connection: Connection, predictor: str) -> set[str]:
    """Ids of the GPUs with rows that the predictor can learn from."""
    kinds = {"kernel"} if learns_kernels(predictor) else set()
    return {gpu for kind, gpu in measurements.counts(connection) if kind in kinds}
