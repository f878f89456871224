"""Distillation: trees of a GPU fitted to the predictions of a larger ensemble between the measured shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from app.predictors.auto.operators.learning import distillation as between
from app.predictors.auto.operators.learning.distillation import (
    LAYER,
    LEAST_ROWS,
    MOST_ROWS,
    MOST_UNMEASURED,
    OF_LAYERS,
    SIZES,
    distilled,
    ensemble,
    unmeasured,
)
from app.predictors.auto.operators.learning.fitting import fitted
from app.predictors.auto.operators.models.features import FEATURES
from app.predictors.auto.operators.models.training_samples import samples
from app.predictors.auto.predictor import Auto
from app.predictors.trees.boosted import Growth, Trees, boosted
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE, OpTable
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence
from tests.unit.operators import operators

GPUS = GpuTable.from_specs([TURING, replace(VOLTA, architecture="volta")])
SIZES_OF_PAIRS = (64, 128, 256, 512, 768, 1024, 2048, 4096)
MISSING = {(64, 1024), (768, 768), (4096, 128)}


def grid(ms: Any, pairs: Any) -> Measurements:
    """Every m with every pair of n and k on the second GPU."""
    ops = operators("linear", *({"m": m, "n": n, "k": k} for m, (n, k) in product(ms, pairs)), dtype="bf16")
    return Measurements(ops, np.ones(len(ops), dtype=np.intp), np.ones(len(ops)))


def pairs_of(rows: Measurements) -> set[tuple[float, float]]:
    return set(zip(rows.ops.column("n").tolist(), rows.ops.column("k").tolist(), strict=True))


def test_missing_pairs_of_a_grid_are_inputs_at_every_m() -> None:
    ms = np.arange(1, LEAST_ROWS // 61 + 2)
    rows = grid(ms, sorted(set(product(SIZES_OF_PAIRS, SIZES_OF_PAIRS)) - MISSING))
    found = unmeasured(rows)
    assert pairs_of(found) == MISSING and len(found) == 3 * len(ms)
    assert set(found.ops.column("m").tolist()) == set(ms.tolist())
    assert (found.gpu == 1).all() and (found.ops.dtype == rows.ops.dtype[0]).all()
    assert not len(unmeasured(rows.take(np.arange(LEAST_ROWS - 1))))


def test_sizes_measured_in_one_pair_have_unmeasured_pairs() -> None:
    ms = np.arange(1, LEAST_ROWS // 100 + 1)
    rows = grid(ms, [(8 * k, 16 * k) for k in range(1, 101)])
    found = unmeasured(rows)
    assert len(found) == MOST_UNMEASURED * len(rows)
    assert not pairs_of(found) & pairs_of(rows)


def test_noisy_dtypes_have_no_distillation_inputs() -> None:
    rows = grid(np.arange(1, LEAST_ROWS // 8 + 2), [(8 * k, 16 * k) for k in range(1, 9)])
    fp8 = replace(rows.ops, dtype=np.full(len(rows), DTYPE_CODE["fp8"]))
    assert len(unmeasured(rows)) and not len(unmeasured(replace(rows, ops=fp8)))


def test_other_operators_have_no_distillation_inputs() -> None:
    softmax = operators("softmax", {"b": 8, "h": 64})
    row = Measurements(softmax, np.zeros(1, dtype=np.intp), np.ones(1))
    assert not len(unmeasured(row.take(np.zeros(LEAST_ROWS, dtype=np.intp))))
    assert not len(unmeasured(row.take(np.empty(0, dtype=np.intp))))


def test_attention_layers_between_measured_ones_are_inputs() -> None:
    layers = [{"heads": 8 * kv, "kv_heads": kv, "head_dim": width} for kv, width in ((1, 64), (2, 128), (8, 256))]
    layers.append({"heads": 12, "kv_heads": 4, "head_dim": 64, "window": 128})
    ran = [{"batch": batch, "context_length": keys} for batch, keys in product((1, 4, 64), (128, 512, 4096))]
    ops = operators("attention_decode", *(layer | asked for layer, asked in product(layers, ran)), dtype="bf16")
    rows = Measurements(ops, np.ones(len(ops), dtype=np.intp), np.ones(len(ops)))
    found = unmeasured(rows).ops

    def tuples(table: OpTable, names: tuple[str, ...]) -> set[tuple[float, ...]]:
        return set(zip(*(table.column(name).tolist() for name in names), strict=True))

    assert len(found) == OF_LAYERS * len(rows)
    assert not tuples(found, LAYER) & tuples(ops, LAYER)
    assert all(tuples(found, (name,)) <= tuples(ops, (name,)) for name in LAYER)
    assert tuples(found, ("batch", "context_length")) <= tuples(ops, ("batch", "context_length"))
    assert (found.column("heads") % found.column("kv_heads") == 0.0).all()
    assert not len(unmeasured(rows.take(np.arange(9))))  # of one layer alone
    assert not len(unmeasured(rows.take(np.arange(MOST_ROWS + 1) % len(rows))))


def test_layers_without_kv_heads_have_one_per_head() -> None:
    layers = [{"heads": heads, "head_dim": width} for heads, width in ((8, 64), (32, 128), (16, 256))]
    ops = operators("attention_prefill", *(layer | {"batch": 1, "context_length": 512} for layer in layers))
    found = unmeasured(Measurements(ops, np.ones(len(ops), dtype=np.intp), np.ones(len(ops)))).ops
    assert len(found) == len(ops) and not np.isnan(found.column("kv_heads")).any()
    assert (found.column("heads") % found.column("kv_heads") == 0.0).all()


def test_distilled_trees_follow_rows_and_ensemble() -> None:
    rng = np.random.default_rng(0)
    features = np.zeros((8, 3000), dtype=np.float32)
    features[SIZES] = rng.integers(0, 16, (3, 3000))
    m, n, k = features[SIZES].astype(np.float64)
    target = 0.02 * (m + n) + 0.1 * np.sin(n / 2.0) * np.cos(k / 3.0) + rng.normal(0.0, 0.05, 3000)
    held = (np.abs(n - k) == 3.0) | (n + k == 15.0)
    rows, blank = (np.ascontiguousarray(features[:, part]) for part in (~held, held))
    growth = Growth(300, features=0.7)
    grown = boosted(rows, target[~held], np.ones(rows.shape[1]), growth)
    mean = ensemble(rows, target[~held], grown, blank)
    again = distilled(rows, target[~held], grown, growth, blank)

    def off(trees: Trees, asked: Any, answer: Any) -> float:
        return float(np.abs(trees.sum(asked) - answer).mean())

    assert off(again, blank, mean) < 0.95 * off(grown, blank, mean)
    assert off(again, rows, target[~held]) < 1.1 * off(grown, rows, target[~held])
    assert len(again.feature) == len(grown.feature)


def test_only_shapes_unmeasured_on_the_same_gpu_are_distillation_inputs() -> None:
    pairs = sorted(set(product(SIZES_OF_PAIRS, SIZES_OF_PAIRS)) - MISSING)
    found = samples(grid((1, 16, 256, 512, 4096), pairs), GPUS)
    blank = samples(grid((1, 16, 256, 512, 4096), sorted(MISSING)), GPUS).features
    other, own = (np.full(blank.shape[1], gpu) for gpu in (0, 1))
    alone = fitted(found)
    np.testing.assert_array_equal(fitted(replace(found, blank=(blank, other))).trees.value, alone.trees.value)
    again = fitted(replace(found, blank=(blank, own)))
    assert len(again.trees.value) == len(alone.trees.value) and (again.trees.value != alone.trees.value).any()
    assert found.blank[0].shape == (FEATURES, 0)


def test_auto_distils_products_on_unmeasured_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [
        {"m": m, "n": n, "k": k}
        for m in (1, 16, 256, 512, 1024, 2048, 4096)
        for n, k in sorted(set(product(SIZES_OF_PAIRS, SIZES_OF_PAIRS)) - MISSING)
    ]

    def time(ops: Any, gpus: GpuTable, gpu: Any) -> Any:
        physics = Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops)).latency_s
        return physics * np.where(ops.column("k") > 600, 1.5, 1.1)

    runs, asked = measured("linear", shapes, GPUS, (1,), time, dtype="bf16"), grid((300,), sorted(MISSING))

    def answers() -> Any:
        taught = Auto().fit_operators([runs], GPUS)
        return taught.predict(asked.ops, GPUS, np.arange(3), asked.gpu, evidence=no_evidence(asked.ops)).latency_s

    before = answers()
    monkeypatch.setattr(between, "LEAST_ROWS", 400)
    after = answers()
    assert (before != after).any()
    np.testing.assert_allclose(after, time(asked.ops, GPUS, asked.gpu), rtol=0.15)
