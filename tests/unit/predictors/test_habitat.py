"""Habitat's wave scaling, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.predictors.papers.habitat import MOST_ROWS, Habitat, memory_share, scaled
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import operators

FAST = replace(
    TURING,
    id="fast",
    sm_count=2 * TURING.sm_count,
    memory_bandwidth_bytes_per_s=2 * TURING.memory_bandwidth_bytes_per_s,
    peak_flops={"fp32": 2 * TURING.peak_flops["fp32"]},
)
GPUS = GpuTable.from_specs([TURING, FAST, VOLTA])


def stream(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    return 8.0 * ops.column("b") * ops.column("h") / gpus.column("memory_bandwidth_bytes_per_s")[gpu]


def product(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    return ops.column("m") * ops.column("n") * ops.column("k") / gpus.column("peak_fp32_flops")[gpu]


def test_memory_share_of_equation_2() -> None:
    np.testing.assert_allclose(
        memory_share(np.array([0.0, 5.0, 10.0, 40.0]), np.full(4, 10.0)), [1.0, 0.75, 0.5, 0.125]
    )


def test_wave_scaling_by_hand() -> None:
    # SMs, Hz, bytes/s, bytes, threads per SM: half the bandwidth, and a quarter of SMs x clock x threads.
    origin, destination = np.array([[10], [1e9], [1e11], [1e9], [1024]]), np.array([[20], [2e9], [2e11], [1e9], [1024]])
    for share, ratio in ((1.0, 0.5), (0.0, 0.25), (0.5, np.sqrt(0.125))):
        assert scaled(origin, destination, np.array([share]))[0] == pytest.approx(ratio)


def test_kernel_alike_operators_use_the_nearest_operator_of_another_gpu() -> None:
    shapes = random_shapes("bh", 40)
    learned = Habitat().fit_operators([measured("relu", shapes, GPUS, (0,), stream)], GPUS)
    ops = operators("relu", *shapes[:5])
    ask = np.arange(5), np.ones(5, dtype=np.intp)
    found = learned.predict(ops, GPUS, *ask, evidence=no_evidence(ops)).latency_s
    # Twice the SMs and the bandwidth: half the time, whatever bounds it.
    np.testing.assert_allclose(found, stream(ops, GPUS, np.zeros(5, dtype=np.intp)) / 2, rtol=1e-5)
    own = learned.predict(ops, GPUS, ask[0], ask[0] * 0, evidence=no_evidence(ops)).latency_s
    assert np.isnan(own).all(), "a GPU's own rows are no origin"


def test_evidence_of_the_same_operator_is_preferred() -> None:
    shapes = random_shapes("bh", 40)
    learned = Habitat().fit_operators([measured("relu", shapes, GPUS, (0,), stream)], GPUS)
    ops = operators("relu", *shapes[:2])
    rows = Measurements(ops, np.array([0, 0]), np.array([4e-4, 8e-4]))
    answer = learned.predict(ops, GPUS, np.arange(2), np.ones(2, dtype=np.intp), evidence=Evidence(rows, np.arange(2)))
    np.testing.assert_allclose(answer.latency_s, [2e-4, 4e-4])


def test_samples_are_bounded_and_collectives_left_out() -> None:
    run = measured("relu", random_shapes("bh", MOST_ROWS[0] + 100), GPUS, (0, 2), stream)
    sent = measured(
        "all_reduce", [{"message_bytes": 2.0**k, "devices": 2} for k in range(10, 30)], GPUS, (0,),
        lambda ops, gpus, gpu: ops.column("message_bytes") / 1e11,
    )  # fmt: skip
    state = Habitat().fit_operators([run, sent], GPUS).state()
    assert list(state) == ["relu fp32"]
    assert len(state["relu fp32"]["log_latency"]) == 2 * MOST_ROWS[0]


def test_kernel_varying_operators_use_a_network() -> None:
    run = measured("linear", random_shapes("mnk", 400), GPUS, (0, 1, 2), product)
    learned = Habitat().fit_operators([run], GPUS)
    ops = operators("linear", *random_shapes("mnk", 50, low=64, high=2048, seed=1))
    on = np.arange(50) % 3
    found = learned.predict(ops, GPUS, np.arange(50), on, evidence=no_evidence(ops)).latency_s
    assert np.mean(np.abs(found / product(ops, GPUS, on) - 1)) < 0.1


def test_gpu_figures_are_clamped_to_the_training_range() -> None:
    beyond = replace(FAST, id="beyond", memory_bytes=100 * FAST.memory_bytes, peak_flops={"fp32": 1e16})
    specs = [replace(TURING, id="like"), TURING, FAST, beyond]
    gpus, shapes = GpuTable.from_specs(specs), random_shapes("mnk", 200)
    ops, i = operators("linear", *shapes[:5]), np.arange(5)

    def answers(learned_from: tuple[int, ...], gpu: int) -> Any:
        learned = Habitat().fit_operators([measured("linear", shapes, gpus, learned_from, product)], gpus)
        return learned.predict(ops, gpus, i, i * 0 + gpu, evidence=no_evidence(ops)).latency_s

    np.testing.assert_array_equal(answers((0, 1, 2), 2), answers((0, 1, 2), 3))
    assert np.isnan(answers((1, 2), 3)).all(), "two GPUs tell nothing of a third"
