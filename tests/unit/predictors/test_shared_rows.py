"""Rows that the shared model of all GPUs is fitted to."""

from __future__ import annotations

import numpy as np

from app.engine.catalogue import load_seed_specs
from app.predictors.auto.operators.learning.fitting import drawn
from app.predictors.auto.operators.models.features import SHAPE_FEATURES
from app.predictors.auto.operators.models.training_samples import Samples, samples
from app.tables.arrays import Floats
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from tests.unit.operators import operators

GPUS = GpuTable.from_specs(load_seed_specs())
TOKENS = 2.0 ** np.arange(12)


def experts(gpu: str, tokens: Floats, stack: float) -> Samples:
    layer = {"hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8, "stack": stack}
    table = operators("moe", *({**layer, "tokens": n} for n in tokens), dtype="bf16")
    on = np.full(len(tokens), GPUS.ids.index(gpu))
    return samples(Measurements(table, on, np.full(len(tokens), 1e-3)), GPUS)


def test_of_few_configurations_the_same_rows_of_all_gpus_are_drawn() -> None:
    here, there = experts("l40s", TOKENS, 0.0), experts("b200", np.random.default_rng(1).permutation(TOKENS), 2.0)
    first, other = (part.of(drawn(part, np.arange(len(TOKENS)))[:5]) for part in (here, there))
    assert np.array_equal(first.features[:SHAPE_FEATURES], other.features[:SHAPE_FEATURES])
    assert len(np.unique(first.features[:SHAPE_FEATURES], axis=1).T) == 5


def test_of_many_configurations_any_rows_are_drawn() -> None:
    sizes = [{"m": n, "n": 64, "k": 64} for n in TOKENS]
    parts = []
    for rows in (sizes, sizes[::-1]):
        table = operators("linear", *rows, dtype="bf16")
        parts.append(samples(Measurements(table, np.zeros(len(table), dtype=np.intp), np.full(len(table), 1e-3)), GPUS))
    first, other = (part.features[:SHAPE_FEATURES, drawn(part, np.arange(len(TOKENS)))[:5]] for part in parts)
    assert not np.array_equal(first, other)
