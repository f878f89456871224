"""Sibling transfer: a GPU better in every figure is never predicted slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.ops import OP_CODE
from app.predictors.auto.operators.transfer import dram_scale
from app.predictors.auto.predictor import Auto
from app.predictors.physics.physics_fit import NEUTRAL
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import EXTRAPOLATED, INTERPOLATED
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import operators

ABOVE = replace(
    TURING,
    id="above",
    sm_count=TURING.sm_count + 4,
    boost_clock_hz=1.03 * TURING.boost_clock_hz,
    memory_bandwidth_bytes_per_s=1.4 * TURING.memory_bandwidth_bytes_per_s,
    l2_bandwidth_bytes_per_s=1.1 * TURING.l2_bandwidth_bytes_per_s,
    peak_flops={pipe: 1.09 * rate for pipe, rate in TURING.peak_flops.items()},
)
SLOT = replace(TURING, id="slot", board_power_w=70.0)
GPUS = GpuTable.from_specs([TURING, ABOVE, VOLTA])
SHAPES = random_shapes("mnk", 2000, seed=3, step=8)


def ask(predictor: Auto, ops: OpTable, gpu: int, gpus: GpuTable = GPUS) -> Any:
    return predictor.predict(ops, gpus, np.arange(len(ops)), np.full(len(ops), gpu), evidence=no_evidence(ops))


def by_turns(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    """Physics, off by what nothing but the very sizes tell."""
    sizes = np.array([ops.column(name) for name in "mnk"])
    physics = Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops)).latency_s
    return physics * np.exp(0.5 * np.sin(40.0 * np.log(sizes)).sum(axis=0))


def test_a_gpu_better_in_every_figure_is_never_slower() -> None:
    trained = Auto().fit_operators([measured("linear", SHAPES, GPUS, (0,), by_turns, dtype="fp16")], GPUS)
    ops = operators("linear", *SHAPES, *random_shapes("mnk", 1000, seed=4, step=8), dtype="fp16")
    ratio = ask(trained, ops, 1).latency_s / ask(trained, ops, 0).latency_s
    assert ratio.max() <= 1.0 + 1e-9
    assert ratio.min() >= 1.0 / 1.45  # no figure is more than 1.4 times as good


def test_a_sibling_is_predicted_without_its_donor_in_the_table() -> None:
    trained = Auto().fit_operators([measured("linear", SHAPES, GPUS, (0,), by_turns, dtype="fp16")], GPUS)
    alone, ops = GpuTable.from_specs([ABOVE]), operators("linear", *SHAPES[:50], dtype="fp16")
    found = ask(trained, ops, 0, alone)
    assert (found.support == INTERPOLATED).all()
    assert np.abs(np.log(found.latency_s / ask(trained, ops, 1).latency_s)).mean() < 0.5


@pytest.mark.parametrize("bandwidth_ratio", [0.7, 1.0, 1.43])
def test_only_streaming_time_scales_with_bandwidth(bandwidth_ratio: float) -> None:
    """Twice, four times as slow as streaming: of the seconds a half, three quarters are for something else."""
    row = OP_CODE["add"]  # streams at all of the bandwidth
    scale = [dram_scale(row, False, NEUTRAL, np.log(slower), bandwidth_ratio) for slower in (0.8, 1.0, 2.0, 4.0)]
    assert scale == pytest.approx([1.0, 1.0, 0.5 + 0.5 * bandwidth_ratio, 0.25 + 0.75 * bandwidth_ratio])
    assert dram_scale(OP_CODE["all_reduce"], False, NEUTRAL, np.log(4.0), bandwidth_ratio) == 1.0


def test_bandwidth_hardly_helps_kernels_that_use_little_of_it() -> None:
    """An H200 has 1.43 times an H100's bandwidth; experts in FP8 that got a sixth of that ran no 1.43 times quicker."""
    wide = replace(TURING, id="wide", memory_bandwidth_bytes_per_s=1.43 * TURING.memory_bandwidth_bytes_per_s)
    gpus = GpuTable.from_specs([TURING, wide])
    shapes = [{"m": 1.0 + k % 8, "n": 4096.0 + 128.0 * (k % 29), "k": 4096.0 + 64.0 * k} for k in range(500)]
    ops = operators("linear", *shapes, dtype="fp16")
    for slower, least, most in ((1.0, 0.69, 0.80), (6.0, 0.92, 1.0)):

        def law(ops: OpTable, gpus: GpuTable, gpu: Any, slower: float = slower) -> Any:
            found = Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops))
            return slower * found.latency_s

        trained = Auto().fit_operators([measured("linear", shapes, gpus, (0,), law, dtype="fp16")], gpus)
        ratio = ask(trained, ops, 1, gpus).latency_s / ask(trained, ops, 0, gpus).latency_s
        assert least < np.median(ratio) < most


def test_corrections_of_full_tensor_units_do_not_change_cut_ones() -> None:
    """An H100 runs large products at 0.8 of its physics, for want of power; an H20's units, a seventh as fast, do not.

    Nor do they run faster than they are where the full chip beats its physics, as it does in attention.
    """
    full = replace(TURING, compute_capability="7.5", peak_flops={"fp32": 12e12, "fp16_tensor": 107.6e12})
    cut = replace(full, id="cut", peak_flops={"fp32": 12e12, "fp16_tensor": 107.6e12 / 4})
    gpus = GpuTable.from_specs([full, cut])
    shapes = random_shapes("mnk", 500, low=2000, high=8192, step=8)
    ops = operators("linear", *shapes, dtype="fp16")
    flops = 2.0 * np.prod([ops.column(name) for name in "mnk"], axis=0)
    for slower in (0.9, 1.0, 1.4):

        def law(ops: OpTable, gpus: GpuTable, gpu: Any, slower: float = slower) -> Any:
            found = Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops))
            return slower * found.latency_s

        trained = Auto().fit_operators([measured("linear", shapes, gpus, (0,), law, dtype="fp16")], gpus)
        rate = flops / ask(trained, ops, 1, gpus).latency_s
        assert 0.80 < np.median(rate) / (107.6e12 / 4) < 0.93, slower


def test_corrections_of_slot_powered_cards_do_not_transfer_to_higher_power() -> None:
    gpus = GpuTable.from_specs([SLOT, replace(SLOT, id="slot too"), TURING])
    shapes = random_shapes("mnk", 900, high=8192)

    def throttled(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        found = Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops))
        return 2.0 * found.latency_s

    trained = Auto().fit_operators([measured("linear", shapes, gpus, (0,), throttled)], gpus)
    ops = operators("linear", {"m": 3000, "n": 3000, "k": 3000})
    of_slot, steady = (ask(trained, ops, gpu, gpus) for gpu in (1, 2))
    untrained = [ask(Auto(), ops, gpu, gpus).latency_s[0] for gpu in (1, 2)]
    assert of_slot.latency_s[0] == pytest.approx(2.0 * untrained[0], rel=0.1)
    assert of_slot.support[0] == INTERPOLATED
    assert steady.latency_s[0] == pytest.approx(untrained[1], rel=0.1)
    assert steady.support[0] == EXTRAPOLATED


def test_layer_norm_takes_as_long_as_on_a_donor_with_the_same_memory() -> None:
    """A V100 SXM2 was 1.2 times as slow as the PCIe card on short rows, of which other makes are quicker."""
    makes = [replace(TURING, id=name, architecture=name) for name in ("one", "two", "three")]
    twin = replace(makes[0], id="twin", boost_clock_hz=1.1 * TURING.boost_clock_hz)
    gpus = GpuTable.from_specs([*makes, twin])
    shapes = random_shapes("bh", 900, low=128, high=65536)

    def law(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        found = Auto().predict(ops, gpus, np.arange(len(gpu)), gpu, evidence=no_evidence(ops))
        odd = np.where(ops.column("h") < 1024, np.array([0.7, 1.3, 1.0])[gpu], np.array([1.2, 0.9, 1.4])[gpu])
        return odd * found.latency_s

    trained = Auto().fit_operators([measured("layer_norm", shapes, gpus, (0, 1, 2), law)], gpus)
    ops = operators("layer_norm", *shapes[:300])
    ratio = ask(trained, ops, 3, gpus).latency_s / ask(trained, ops, 0, gpus).latency_s
    assert 0.9 < ratio.min() <= ratio.max() < 1.02
