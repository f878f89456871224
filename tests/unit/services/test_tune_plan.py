"""A tuning cache of one GPU says what to run first on another."""

import numpy as np
import pytest

from app.engine.snapshot import Snapshot
from app.errors import BadInput
from app.formats.tuning_caches import TuningCache
from app.services.kernels.tune_plan import first_ones, tune_plan
from evaluation.study import shipped_snapshot

SIZES = [(x, y) for x in (16, 32, 64, 128) for y in (1, 2, 4)]
CONFIGURATIONS = [{"block_size_x": x, "block_size_y": y, "tile_size_x": 1} for x, y in SIZES]
SECONDS = np.array([1e-3 * (1.0 + 0.1 * ((k * 7) % 12)) for k in range(len(SIZES))])
CACHE = TuningCache("convolution", "NVIDIA A100-PCIE-40GB", (4096.0, 4096.0), CONFIGURATIONS, SECONDS, 2)
WORK = {"flops": 7.5e9, "bytes": 1.3e8}


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return shipped_snapshot()


def test_within_a_vendor_the_order_of_the_source_is_kept(snapshot: Snapshot) -> None:
    plan = tune_plan(snapshot, CACHE, ("a100-pcie-40gb", "rtx-4090"), WORK, 5)
    assert [row.source_ms for row in plan.configurations] == pytest.approx(np.sort(SECONDS)[:5] * 1e3)
    assert [row.rank for row in plan.configurations] == [1, 2, 3, 4, 5]
    assert all(row.interval_ms.low < row.latency_ms < row.interval_ms.high for row in plan.configurations)
    assert plan.gpu == "rtx-4090" and any("2 configurations failed" in note for note in plan.notes)


def test_work_that_is_not_given_is_assumed_and_noted(snapshot: Snapshot) -> None:
    plan = tune_plan(snapshot, CACHE, ("a100-pcie-40gb", "rtx-4090"), {}, 3)
    assert any("flops and bytes are not given" in note for note in plan.notes)


def test_what_ran_on_the_gpu_is_evidence_and_not_listed(snapshot: Snapshot) -> None:
    known = CACHE._replace(configurations=CONFIGURATIONS[:6], seconds=3.0 * SECONDS[:6])
    before = tune_plan(snapshot, CACHE, ("a100-pcie-40gb", "rtx-4090"), WORK, 12)
    after = tune_plan(snapshot, CACHE, ("a100-pcie-40gb", "rtx-4090"), WORK, 12, known)
    assert len(after.configurations) == 6
    assert not any(row.configuration in CONFIGURATIONS[:6] for row in after.configurations)
    ratios = [row.latency_ms / row.source_ms for row in after.configurations]
    assert np.median(ratios) == pytest.approx(3.0, rel=0.25)
    assert np.median([row.latency_ms / row.source_ms for row in before.configurations]) < 2.0
    with pytest.raises(BadInput, match="ran on the GPU already"):
        tune_plan(snapshot, CACHE, ("a100-pcie-40gb", "rtx-4090"), WORK, 3, CACHE)


def test_a_cache_without_the_problem_says_what_to_add(snapshot: Snapshot) -> None:
    with pytest.raises(BadInput, match="--problem"):
        tune_plan(snapshot, CACHE._replace(problem=()), ("a100-pcie-40gb", "rtx-4090"), WORK, 3)


def test_predicted_times_decide_between_vendors() -> None:
    source, predicted = np.array([1.0, 2.0, 3.0]), np.array([9.0, 7.0, 8.0])
    assert first_ones(source, predicted, keeps_order=True).tolist() == [0, 1, 2]
    assert first_ones(source, predicted, keeps_order=False).tolist() == [1, 2, 0]
