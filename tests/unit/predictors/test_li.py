"""Li et al.'s lines by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.bands.groups import S_SEEN_OUTSIDE, S_UNSEEN, operator_codes
from app.predictors.papers.li import Li, fit_line, rate_on_bandwidth
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from tests.unit.kernels import TURING
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import operators

BANDWIDTHS = (3e11, 9e11, 6e11)
SPECS = [
    replace(TURING, id=f"gpu{k}", memory_bandwidth_bytes_per_s=value, fp32_lanes_per_sm=64 + k)
    for k, value in enumerate(BANDWIDTHS)
]
GPUS = GpuTable.from_specs(SPECS)


def lines(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    # Rates 4 and 10 TFLOP/s on 300 and 900 GB/s: 1e12 + 10 x bandwidth.
    flops = 2.0 * ops.column("m") * ops.column("n") * ops.column("k")
    return np.where(gpu == 0, 10e-6, 30e-6) + flops / np.where(gpu == 0, 4e12, 10e12)


def test_a_line_is_recovered() -> None:
    flops = np.geomspace(1e6, 1e12, 30)
    overhead_s, slope = fit_line(flops, 5e-6 + flops / 3e12)
    assert overhead_s == pytest.approx(5e-6, rel=1e-6)
    assert slope == pytest.approx(1 / 3e12, rel=1e-6)


def test_rate_follows_bandwidth() -> None:
    slope, constant = rate_on_bandwidth(np.array([3e11, 9e11]), np.array([4e12, 10e12]))
    assert (slope, constant) == (pytest.approx(10.0), pytest.approx(1e12))
    assert np.isnan(rate_on_bandwidth(np.array([3e11]), np.array([4e12]))[0])


def test_seen_and_unseen_gpus_by_hand() -> None:
    learned = Li().fit_operators([measured("linear", random_shapes("mnk", 50), GPUS, (0, 1), lines)], GPUS)
    ops = operators("linear", {"m": 1000, "n": 1000, "k": 500}, {"m": 2**18, "n": 2**14, "k": 2**13})
    i, j = np.array([0, 0, 1, 0]), np.array([0, 1, 0, 2])
    answer = learned.predict(ops, GPUS, i, j, evidence=no_evidence(ops))
    # 1 GFLOP; the third GPU's rate is 1e12 + 10 x 6e11 = 7e12, its overhead the median of 10 and 30 us.
    np.testing.assert_allclose(
        answer.latency_s[[0, 1, 3]], [10e-6 + 1e9 / 4e12, 30e-6 + 1e9 / 10e12, 20e-6 + 1e9 / 7e12]
    )
    assert answer.group[2] == operator_codes(ops.kind[:1], ops.dtype[:1], S_SEEN_OUTSIDE)[0]
    assert answer.group[3] == operator_codes(ops.kind[:1], ops.dtype[:1], S_UNSEEN)[0]


def test_one_gpu_gives_no_bandwidth_line() -> None:
    learned = Li().fit_operators([measured("linear", random_shapes("mnk", 50), GPUS, (0,), lines)], GPUS)
    ops = operators("linear", {"m": 100, "n": 100, "k": 100})
    answer = learned.predict(ops, GPUS, np.array([0]), np.array([2]), evidence=no_evidence(ops))
    assert np.isnan(answer.latency_s).all()


def test_a_newer_line_replaces_only_that_of_its_gpu() -> None:
    both = Li().fit_operators([measured("linear", random_shapes("mnk", 50), GPUS, (0, 1), lines)], GPUS)
    newer = both.fit_operators(
        [measured("linear", random_shapes("mnk", 50), GPUS, (0,), lambda ops, gpus, gpu: 2 * lines(ops, gpus, gpu))],
        GPUS,
    )
    ops = operators("linear", {"m": 1000, "n": 1000, "k": 500})
    ask = np.zeros(2, dtype=np.intp), np.array([0, 1])
    before, after = (one.predict(ops, GPUS, *ask, evidence=no_evidence(ops)).latency_s for one in (both, newer))
    np.testing.assert_allclose(after, before * [2.0, 1.0])
