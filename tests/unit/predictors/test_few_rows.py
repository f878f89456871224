"""Few-shot calibration: the correction of a GPU by few of its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.ops import OP_CODE
from app.predictors.auto.operators.learning.calibration import Rows, calibrate
from app.predictors.auto.operators.models.features import FEATURES, dim_rows, own_dims
from app.predictors.auto.operators.models.gaussian_process import (
    LEAF,
    OFFSET,
    Kernels,
    Places,
    View,
    transfer_covariance,
)
from app.predictors.auto.predictor import Auto
from app.predictors.physics.analytic_model import COMPUTE_S, DRAM_S, TERMS
from app.predictors.physics.physics_fit import NEUTRAL, fill_scaled
from app.predictors.trees.boosted import NO_TREES, Growth, boosted
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from tests.unit.kernels import TURING
from tests.unit.learned import (
    FIRST,
    GPUS,
    UNSEEN,
    terms_of,
    untrained,
)
from tests.unit.measured import measured, no_evidence
from tests.unit.operators import operators


def test_the_correction_passes_through_few_rows_and_fades() -> None:
    features = np.zeros((FEATURES, 40), dtype=np.float32)
    features[0] = np.linspace(0.0, 10.0, 40)
    curve = 0.3 * np.sin(features[0].astype(np.float64))
    terms = terms_of(features)
    rows = Rows(terms, np.log(1e-3) + curve, features, FIRST)
    found = calibrate(rows, NEUTRAL, Kernels.of(NO_TREES))
    asked = np.zeros((FEATURES, 3), dtype=np.float32)
    asked[0] = [2.1, 7.7, 500.0]
    physics = np.empty(3)
    fill_scaled(terms[:, :3].copy(), found.factors, physics)
    said = np.log(physics / 1e-3) + found.log_correction(asked)
    np.testing.assert_allclose(said[:2], 0.3 * np.sin([2.1, 7.7]), atol=0.05)
    assert found.log_correction(asked)[2] - found.mean == pytest.approx(0.0, abs=1e-6)


def test_few_rows_refit_the_physics_constant_that_explains_them() -> None:
    """Half of the rows wait for DRAM, which is twice as slow as thought; the others wait for compute, as thought."""
    features = np.zeros((FEATURES, 20), dtype=np.float32)
    features[0] = np.tile(np.arange(10.0), 2)
    terms = np.full((TERMS, 20), 1e-9)
    terms[COMPUTE_S, :10], terms[DRAM_S, 10:] = 1e-3, 1e-3
    target = np.log(1e-3) + np.repeat([0.0, np.log(2.0)], 10)
    found = calibrate(Rows(terms, target, features, FIRST), NEUTRAL, Kernels.of(NO_TREES))
    answer = np.empty(20)
    fill_scaled(terms, found.factors, answer)
    assert answer[10] / answer[0] == pytest.approx(2.0, rel=0.15)


def test_an_outlier_does_not_move_the_other_rows() -> None:
    features = np.zeros((FEATURES, 41), dtype=np.float32)
    features[0] = np.linspace(0.0, 4.0, 41)
    target = np.full(41, np.log(1e-3))
    target[20] += 3.0
    found = calibrate(Rows(terms_of(features), target, features, FIRST), NEUTRAL, Kernels.of(NO_TREES))
    physics = np.empty(41)
    fill_scaled(terms_of(features), found.factors, physics)
    said = np.log(physics / 1e-3) + found.log_correction(features)
    assert np.abs(np.delete(said, 20)).max() < 0.1


def test_collectives_of_other_device_counts_hardly_correct() -> None:
    """Bytes are near one another where they differ by e; devices are far where they differ by two."""
    places = Places.of(OP_CODE["all_reduce"])
    stretch = dict(zip(own_dims(OP_CODE["all_reduce"]), places.stretch, strict=False))
    assert stretch["message_bytes"] < 2.0 < np.log(2.0) * stretch["devices"]


def test_few_collectives_correct_all_that_are_bound_by_the_same_link() -> None:
    """Two rows per number of devices, where eight share what they have: 16 MB of these are known by 1 GB."""
    slots = GpuTable.from_specs([replace(TURING, link_bandwidth_bytes_per_s=31.5e9)])
    ends = [{"message_bytes": 2.0**size, "devices": n} for size in (9, 30) for n in (2, 4, 8)]

    def shared(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        sending = 2.0 * (ops.column("devices") == 8) * ops.column("message_bytes") / 20e9
        return untrained(ops, gpu, gpus) + sending

    told = Auto().with_measured([measured("all_reduce", ends, slots, (0,), shared)], slots)
    asked = operators("all_reduce", *({"message_bytes": 2.0**24, "devices": n} for n in (2, 8)))
    answer = told.predict(asked, slots, np.arange(2), np.zeros(2, dtype=int), evidence=no_evidence(asked))
    assert answer.latency_s == pytest.approx(shared(asked, slots, np.zeros(2, dtype=int)), rel=0.12)


@pytest.mark.parametrize("op", ["attention_prefill", "attention_decode", "attention_mla", "attention_module"])
def test_another_kv_dtype_is_as_far_as_a_twentyfold_context_length(op: str) -> None:
    """Formats are codes one apart; a context is as far where it is some 20 times as long."""
    places, rows = Places.of(OP_CODE[op]), dim_rows(OP_CODE[op])
    stretch = dict(zip(places.column.tolist(), places.stretch, strict=True))
    assert np.log(19.0) * stretch[rows["context_length"]] < stretch[rows["kv_dtype"]] < np.log(21.0)
    assert stretch[rows["head_dim"]] == 1.0


def test_a_batch_corrects_other_batches_of_the_same_products() -> None:
    """Every third size is twice as slow in any batch: told of batches of 64, batches of 1,024."""
    sizes = [{"m": m, "n": n, "k": k} for m in (64, 256, 1024) for n in (64, 256, 1024) for k in (64, 256, 1024)]

    def table(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        slow = np.log2(ops.column("m") * ops.column("n") ** 3 * ops.column("k") ** 2) % 3 == 1.0
        return untrained(ops, gpu, gpus) * np.where(slow, 2.0, 1.0)

    told = Auto().with_measured([measured("bmm", [{"b": 64, **size} for size in sizes], GPUS, (UNSEEN,), table)], GPUS)
    asked = operators("bmm", *({"b": 1024, **size} for size in sizes))
    gpu = np.full(len(asked), UNSEEN)
    answer = told.predict(asked, GPUS, np.arange(len(asked)), gpu, evidence=no_evidence(asked)).latency_s
    assert np.abs(answer / table(asked, GPUS, gpu) - 1.0).mean() < 0.15  # 0.27 where a batch is as far as other sizes


def test_rows_of_one_leaf_are_correlated() -> None:
    """What others' trees tell apart stays apart: a measured leaf says nothing of the one opposite."""
    features = np.zeros((FEATURES, 400), dtype=np.float32)
    features[0] = np.linspace(-1.0, 1.0, 400)
    trees = boosted(features, np.sign(features[0]).astype(np.float64), np.ones(400), Growth(20, features=1.0))
    kernels, view = Kernels.of(trees), View.of(features, FIRST, Kernels.of(trees))
    alike = (transfer_covariance(view, view, kernels) - OFFSET**2) / LEAF**2
    assert alike[150, 100] > 3.0 * alike[150, 250]


def test_rows_near_an_algorithm_switch_have_less_weight() -> None:
    features = np.zeros((FEATURES, 9), dtype=np.float32)
    features[0] = np.linspace(0.0, 2.0, 9)
    target = np.full(9, np.log(1e-3))
    target[4] += 0.5
    rows = Rows(terms_of(features), target, features, FIRST)
    least, most = (calibrate(rows._replace(chosen=chosen), NEUTRAL, Kernels.of(NO_TREES)) for chosen in (True, False))
    assert abs(least.mean) < 0.8 * abs(most.mean)


def test_a_correction_that_fails_on_rows_left_out_is_served_in_part() -> None:
    """Neighbours that contradict one another tell nothing of other rows; a common factor does."""
    features = np.zeros((FEATURES, 32), dtype=np.float32)
    features[0] = np.linspace(0.0, 8.0, 32)
    for off, least, most in ((np.tile([0.4, -0.4], 16), 0.0, 0.01), (np.full(32, 0.4), 0.35, 0.45)):
        rows = Rows(terms_of(features), np.log(1e-3) + off, features, FIRST, predicted=True)
        found = calibrate(rows, NEUTRAL, Kernels.of(NO_TREES))
        physics = np.empty(32)
        fill_scaled(rows.terms, found.factors, physics)
        assert least <= np.abs(found.log_correction(features) + np.log(physics / 1e-3)).mean() <= most
