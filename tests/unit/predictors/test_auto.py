"""`auto` on launches with a known time."""

from dataclasses import replace

import numpy as np
import pytest

from app.bands.groups import EXACT, NO_EVIDENCE, OTHER_GPU, OTHER_GPU_AND_SIZE, RELATED, SAME_GPU
from app.predictors.auto.kernels.bottlenecks import FLOOR_S
from app.predictors.auto.predictor import Auto
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from app.tables.predictions import COMPUTE, EXTRAPOLATED, INTERPOLATED, LAUNCH, MEASURED, MEMORY, Estimate
from tests.unit.kernels import TURING, VOLTA, evidence, index, kernels

pytestmark = pytest.mark.slow

GPUS = GpuTable.from_specs([TURING, VOLTA])
SHARE = 0.8  # of the launch floor that adds to the work
STREAM = {
    "flops": 1e8,
    "bytes": 1.2e9,
    "working_set_bytes": 1.2e9,
    "lane_operations": 3e8,
    "threads_per_block": 256,
    "blocks": 400_000,
    "registers_per_thread": 16,
    "shared_memory_per_block": 0,
    "n": 1e8,
}
# Twice 1e10 lane operations feed FLOPs: operands waiting on memory.
MATMUL = STREAM | {"flops": 2e10, "bytes": 5e7, "working_set_bytes": 5e7, "lane_operations": 2e10}


def ask(launch: dict[str, float], source: dict[str, float], gpu: int, latency_s: float, *, label: int = 0) -> Estimate:
    """The launch on VOLTA, from a source measured on `gpu`."""
    rows = evidence(kernels([source], label=[label]), [gpu], [latency_s], [0])
    return Auto().predict(kernels([launch]), GPUS, index(0), index(1), evidence=rows)


def test_a_streaming_kernel_scales_with_bandwidth() -> None:
    # 1.2 GB at 88 % of 600 GB/s take 2.27 ms on TURING; VOLTA has 900 GB/s.
    answer = ask(STREAM, STREAM, 0, 2.3e-3)
    work = (2.3e-3 - SHARE * FLOOR_S) * 600 / 900
    assert answer.latency_s[0] == pytest.approx(SHARE * FLOOR_S + work, rel=0.02)
    assert (answer.bound[0], answer.support[0], answer.group[0]) == (MEMORY, INTERPOLATED, OTHER_GPU)


def test_a_latency_bound_kernel_scales_with_resident_threads() -> None:
    # Same SMs and clock; VOLTA keeps 2,048 threads an SM resident, TURING 1,024.
    answer = ask(MATMUL, MATMUL, 0, 20e-3)
    assert answer.latency_s[0] == pytest.approx(10e-3, rel=0.2)
    assert answer.bound[0] == COMPUTE


def test_a_measurement_of_the_launch_itself_is_returned() -> None:
    answer = ask(MATMUL, MATMUL, 1, 7e-3)
    assert answer.latency_s[0] == pytest.approx(7e-3)
    assert (answer.support[0], answer.group[0]) == (MEASURED, EXACT)


def test_a_short_measurement_on_the_target_is_returned() -> None:
    tiny = STREAM | {"flops": 1e3, "bytes": 1e4, "working_set_bytes": 1e4, "lane_operations": 1e3, "blocks": 1}
    assert ask(tiny, tiny, 1, 8e-6).latency_s[0] == pytest.approx(8e-6, rel=0.05)


def test_launch_floors_are_not_transferred() -> None:
    # 1 MB on an unknown machine in 9 us: its launch took most of that, and says nothing of the target.
    small = STREAM | {"flops": 1e5, "bytes": 1e6, "working_set_bytes": 1e6, "lane_operations": 3e5, "blocks": 400}
    assert ask(small, small, 0, 9e-6).latency_s[0] < 7e-6


def test_another_size_on_the_same_gpu_scales_with_its_work() -> None:
    half = STREAM | {name: STREAM[name] / 2 for name in ("flops", "bytes", "working_set_bytes", "lane_operations", "n")}
    answer = ask(STREAM, half, 1, 0.8e-3)
    assert answer.latency_s[0] == pytest.approx(1.6e-3, rel=0.01)
    assert answer.group[0] == SAME_GPU


def test_threads_that_share_an_sm_with_few_others_wait_longer() -> None:
    # With 40 KiB of shared memory a block VOLTA keeps two blocks of 256 threads resident, not eight.
    lean, fat = (ask(MATMUL | {"shared_memory_per_block": s}, MATMUL, 0, 20e-3).latency_s[0] for s in (0, 40_960))
    assert fat > 2 * lean


def test_registers_of_a_thread_hold_instructions_that_do_not_wait() -> None:
    # With 96 registers a thread VOLTA keeps 512 threads resident instead of 2,048, each with three times as many.
    lean, fat = (ask(MATMUL | {"registers_per_thread": r}, MATMUL, 0, 20e-3).latency_s[0] for r in (32, 96))
    assert lean < fat < 2 * lean


def test_sizes_far_from_the_measured_ones_are_extrapolated() -> None:
    tenth = STREAM | {
        name: STREAM[name] / 10 for name in ("flops", "bytes", "working_set_bytes", "lane_operations", "n")
    }
    answer = ask(STREAM, tenth, 1, 0.16e-3)
    assert (answer.support[0], answer.group[0]) == (EXTRAPOLATED, OTHER_GPU_AND_SIZE)


@pytest.mark.parametrize(
    ("label", "changed", "group"),
    [(0, {"n": 7.0, "lane_operations": 1e8}, OTHER_GPU_AND_SIZE), (9, {}, RELATED)],
)
def test_the_group_is_that_of_the_evidence(label: int, changed: dict[str, float], group: int) -> None:
    assert ask(STREAM, STREAM | changed, 0, 1e-3, label=label).group[0] == group


def test_without_evidence_predictions_use_documented_costs() -> None:
    none = Evidence(Measurements(kernels([]), index(), np.empty(0)), index())
    answer = Auto().predict(kernels([STREAM]), GPUS, index(0), index(1), evidence=none)
    assert answer.latency_s[0] == pytest.approx(1.2e9 / (0.88 * 900e9), rel=0.3)
    assert (answer.support[0], answer.group[0]) == (EXTRAPOLATED, NO_EVIDENCE)


def test_a_tiny_kernel_is_launch_bound() -> None:
    tiny = STREAM | {"flops": 1e3, "bytes": 1e4, "working_set_bytes": 1e4, "lane_operations": 1e3, "blocks": 1}
    answer = ask(tiny, tiny, 0, 4e-6)
    assert answer.bound[0] == LAUNCH
    assert answer.latency_s[0] == pytest.approx(FLOOR_S, rel=0.1)


def test_agreeing_sources_identify_the_bottleneck() -> None:
    """A kernel whose time follows the SMs' issue rate, not the resident threads, shows it on two other GPUs."""
    third = GpuTable(("turing", "volta", "third"), np.column_stack([GPUS.values, GPUS.values[:, 0]]))
    third.values[[0], 2] *= 0.5  # sm_count
    same = kernels([MATMUL, MATMUL])
    both = evidence(same, [0, 2], [20e-3, 40e-3], [0, 0])
    answer = Auto().predict(kernels([MATMUL]), third, index(0), index(1), evidence=both)
    assert 9e-3 < answer.latency_s[0] < 21e-3


def trained(ops: OpTable, gpu: list[int], latency_s: list[float]) -> Auto:
    return Auto().fit(Measurements(ops, np.array(gpu), np.array(latency_s)), GPUS)


def test_training_learns_launch_floors_and_kernel_costs() -> None:
    tiny = STREAM | {"flops": 1e3, "bytes": 1e4, "working_set_bytes": 1e4, "lane_operations": 1e3}
    ops = kernels([tiny, tiny, tiny, MATMUL, MATMUL], label=[1, 1, 1, 2, 2])
    auto = trained(ops, [0, 0, 0, 0, 1], [9e-6, 9.1e-6, 9.2e-6, 20e-3, 10e-3])
    assert auto.floors_["turing"] == pytest.approx(9e-6)
    none = Evidence(Measurements(kernels([]), index(), np.empty(0)), index())
    known = auto.predict(kernels([MATMUL], label=[2]), GPUS, index(0), index(1), evidence=none)
    assert known.latency_s[0] == pytest.approx(10e-3, rel=0.5)
    assert known.group[0] == OTHER_GPU_AND_SIZE


def test_costs_learned_on_one_architecture_hold_there_only() -> None:
    other = replace(VOLTA, id="ampere", architecture="ampere")
    gpus = GpuTable.from_specs([TURING, VOLTA, other])
    rows = Measurements(kernels([MATMUL, MATMUL]), np.array([0, 1]), np.array([80e-3, 40e-3]))
    auto = Auto().fit(rows, gpus)
    none = Evidence(Measurements(kernels([]), index(), np.empty(0)), index())
    here, elsewhere = (auto.predict(kernels([MATMUL]), gpus, index(0), index(gpu), evidence=none) for gpu in (1, 2))
    assert here.latency_s[0] == pytest.approx(40e-3, rel=0.2)
    assert (here.group[0], elsewhere.group[0]) == (OTHER_GPU_AND_SIZE, NO_EVIDENCE)
    assert auto.default_floor_ == FLOOR_S
    again = Auto.from_state(auto.state())
    assert again.predict(kernels([MATMUL]), gpus, index(0), index(2), evidence=none).group[0] == NO_EVIDENCE


def test_a_kernel_that_only_launches_says_nothing_of_others() -> None:
    empty = STREAM | {"flops": 0, "bytes": 4, "working_set_bytes": 4, "lane_operations": 1, "blocks": 1}
    ops = kernels([MATMUL, MATMUL, empty, empty], label=[1, 1, 2, 2])
    without = trained(ops.take(index(0, 1)), [0, 1], [20e-3, 10e-3])
    with_it = trained(ops, [0, 1, 0, 1], [20e-3, 10e-3, 3e-6, 3e-6])
    assert with_it.prior_cost_ == pytest.approx(without.prior_cost_, rel=0.05)
