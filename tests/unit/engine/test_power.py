"""A power model fitted to synthetic rows recovers the physics that made them."""

import numpy as np
import pytest
from msgspec import convert
from scipy.optimize import nnls

from app.engine.catalogue import load_seed_specs
from app.engine.power import (
    BOARD,
    ELSEWHERE,
    ESTIMATED,
    LEAST_ROWS,
    MEASURED,
    Load,
    PoweredRows,
    fit_power_model,
    powered_rows,
)
from app.predictors.roofline import peaks
from app.services.compare.request import device_load
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload

SPECS = {spec.id: spec for spec in load_seed_specs()}
GPUS = GpuTable.from_specs(list(SPECS.values()))
L4 = list(SPECS).index("nvidia-l4")  # 72 W
# Watts of an idle card, of its busy lanes, of its busy memory.
IDLE, LANES, MEMORY = 15.0, 40.0, 20.0


def load(flops: float, moved: float) -> Load:
    each = np.zeros(len(DTYPES))
    each[DTYPE_CODE["fp32"]] = flops
    return Load(each, moved)


def rows(count: int) -> PoweredRows:
    draw = np.random.default_rng(0)
    each = KERNEL_EXAMPLE | {"measured": []}
    compute, memory = draw.uniform(0, 1, (2, count))
    peak, bandwidth = float(peaks(GPUS)[DTYPE_CODE["fp32"], L4]), SPECS["nvidia-l4"].memory_bandwidth_bytes_per_s
    kernels = [
        convert(each | {"flops": c * peak * 1e-3 + 1, "bytes": m * bandwidth * 1e-3 + 1}, KernelWorkload)
        for c, m in zip(compute.tolist(), memory.tolist(), strict=True)
    ]
    watts = (IDLE + LANES * compute + MEMORY * memory) * np.exp(draw.normal(0, 0.05, count))
    gpu = np.full(count, L4)
    return powered_rows(kernel_table(kernels), GPUS, gpu, np.full(count, 1e-3), watts)


def test_known_coefficients_are_recovered() -> None:
    model = fit_power_model([rows(400)], GPUS)
    assert model.own["nvidia-l4"].coefficients == pytest.approx([IDLE, LANES, MEMORY], rel=0.1)
    spec = SPECS["nvidia-l4"]
    half = load(0.5 * float(peaks(GPUS)[DTYPE_CODE["fp32"], L4]), 0.25 * spec.memory_bandwidth_bytes_per_s)
    power = model.power(spec, half, 1.0, 0.8)
    assert power is not None and power.source == MEASURED
    assert power.middle == pytest.approx(IDLE + 0.5 * LANES + 0.25 * MEMORY, rel=0.03)
    # 5 % of log-normal noise, of which 80 % lie within 1.28 standard deviations.
    assert power.high / power.low == pytest.approx(np.exp(2 * 1.28 * 0.05), rel=0.03)


def test_coefficients_are_at_least_zero() -> None:
    measured = rows(400)
    falling = measured._replace(watts=measured.watts - 1.2 * MEMORY * measured.busy[:, 2])  # with the memory's use
    found = fit_power_model([falling], GPUS).own["nvidia-l4"].coefficients
    without, _ = nnls(falling.busy / falling.watts[:, None], np.ones(400))
    assert found[2] == 0.0
    assert found == pytest.approx(without)


def test_other_gpus_use_the_mean_share_of_board_power() -> None:
    model = fit_power_model([rows(400)], GPUS)
    h100 = SPECS["h100-sxm5-80gb"]  # 700 W
    power = model.power(h100, load(0.0, h100.memory_bandwidth_bytes_per_s), 1.0, 0.8)
    assert power is not None and power.source == ELSEWHERE
    assert power.middle == pytest.approx((IDLE + MEMORY) / 72.0 * 700.0, rel=0.05)
    assert 1.2 < power.middle / power.low < 1.9
    assert power.high <= 700.0
    narrow = model.power(h100, load(0.0, h100.memory_bandwidth_bytes_per_s), 1.0, 0.5)
    assert narrow is not None and power.low < narrow.low < narrow.high < power.high
    busy = model.power(h100, load(1e15, h100.memory_bandwidth_bytes_per_s), 1.0, 0.99)
    assert busy is not None and busy.high == 700.0  # the power limit


def test_too_few_rows_fit_nothing() -> None:
    model = fit_power_model([rows(LEAST_ROWS - 1)], GPUS)
    power = model.power(SPECS["nvidia-l4"], load(1e9, 1e6), 1e-3, 0.8)
    assert power is not None and power.source == ESTIMATED
    assert 0.4 * 72.0 < power.middle < 72.0
    streaming = model.power(SPECS["nvidia-l4"], load(0.0, 300e9), 1.0, 0.8)
    assert streaming is not None and streaming.middle == pytest.approx(0.8 * 72.0)


def test_a_workload_without_time_uses_the_board_power() -> None:
    power = fit_power_model([rows(100)], GPUS).power(SPECS["nvidia-l4"], load(1.0, 1.0), 0.0, 0.8)
    assert power is not None and power.source == BOARD


def test_the_load_of_a_kernel_follows_its_work() -> None:
    kernel = convert(KERNEL_EXAMPLE | {"measured": []}, KernelWorkload)
    found = device_load(kernel, None)
    assert found.flops.sum() == found.flops[DTYPE_CODE["fp32"]] == kernel.flops and found.bytes == kernel.bytes
