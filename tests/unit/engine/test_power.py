"""Power follows from the load and the board; measured rows of a GPU move it by a factor of their own."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import convert

from app.engine.catalogue import load_seed_specs
from app.engine.power import (
    BOARD,
    ESTIMATED,
    LEAST_ROWS,
    LEAST_S,
    MEASURED,
    Load,
    Power,
    PoweredRows,
    PowerModel,
    fit_power_model,
    is_steady,
    powered_rows,
)
from app.predictors.physics.clock_model import BUSY, bandwidths, compute_rates
from app.predictors.physics.power_model import SHARES
from app.services.compare.request import device_load
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KERNEL_EXAMPLE, KernelWorkload
from app.wire.operator_forms import OperatorsWorkload

SPECS = load_seed_specs()
CATALOG, GPUS = Catalog(SPECS), GpuTable.from_specs(SPECS)
NAMES = ("nvidia-l4", "a100-sxm4-80gb", "rtx-4090", "h100-sxm5-80gb", "h200")
BARE = KERNEL_EXAMPLE | {"measured": []}


def kernel(flops: float, moved: float, dtype: str = "fp16") -> KernelWorkload:
    return convert(BARE | {"flops": flops, "bytes": moved, "dtype": dtype}, KernelWorkload)


def drawn(name: str, load: Load, seconds: float, model: PowerModel | None = None) -> Power:
    found = (model or PowerModel()).power(CATALOG.resolve(name), load, seconds, 0.8)
    assert found is not None
    return found


def row_of(name: str) -> int:
    return GPUS.ids.index(CATALOG.resolve(name).id)


def product(name: str, dtype: str = "fp16") -> Power:
    """A second of full products, at the rate that the board's power allows."""
    rate = float(compute_rates(GPUS)[BUSY, DTYPE_CODE[dtype], row_of(name)])
    return drawn(name, device_load(kernel(rate, 1e9, dtype), None), 1.0)


def stream(name: str, share: float = 1.0) -> Power:
    """A second of a copy at a share of the bandwidth."""
    return drawn(name, device_load(kernel(0.0, share * float(bandwidths(GPUS)[row_of(name)])), None), 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_full_products_draw_near_the_board_power_and_copies_less(name: str) -> None:
    board = CATALOG.resolve(name).board_power_w
    assert board is not None
    full, copied = product(name), stream(name)
    assert full.source == ESTIMATED
    assert 0.9 * board < full.middle <= full.high <= board
    assert 0.6 * board < copied.middle < 0.95 * full.middle
    assert stream(name, 0.3).middle < copied.middle


def test_boards_rank_as_they_draw() -> None:
    watts = [product(name).middle for name in NAMES]
    assert watts == sorted(watts)


def test_a_cap_is_drawn_and_not_more() -> None:
    model = PowerModel(cap_w=400.0)
    load = device_load(kernel(4e14, 1e9), None)
    capped = drawn("h100-sxm5-80gb", load, 1.0, model)
    assert capped.middle == capped.high == 400.0 < drawn("h100-sxm5-80gb", load, 1.0).middle


def test_an_idle_device_draws_its_idle_share() -> None:
    workload = {"kind": "operators", "operators": [{"op": "linear", "m": 64, "n": 64, "k": 64, "dtype": "fp32"}]}
    load = device_load(convert(workload, OperatorsWorkload), None)
    assert drawn("h200", load, 1.0).middle == pytest.approx(SHARES.idle * 700.0, rel=0.05)


def rows(count: int, factor: float) -> PoweredRows:
    """Measured rows of an L4, a tenth of whose time streams, with log-normal noise."""
    draw = np.random.default_rng(0)
    moved = draw.uniform(0.1, 0.9, count) * GPUS.column("memory_bandwidth_bytes_per_s")[row_of("nvidia-l4")]
    table, gpu = kernel_table([kernel(1.0, each) for each in moved.tolist()]), np.full(count, row_of("nvidia-l4"))
    modelled = powered_rows(table, GPUS, gpu, np.ones(count), np.ones(count))
    return modelled._replace(watts=72.0 * factor * modelled.share * np.exp(draw.normal(0.0, 0.05, count)))


def test_measured_rows_move_their_gpu_alone() -> None:
    model = fit_power_model([rows(400, 0.8)], GPUS)
    load = device_load(kernel(0.0, 1e11), None)
    before, own = drawn("nvidia-l4", load, 1.0), drawn("nvidia-l4", load, 1.0, model)
    assert own.source == MEASURED
    assert own.middle == pytest.approx(0.8 * before.middle, rel=0.02)
    # 5 % of log-normal noise, of which 80 % lie within 1.28 standard deviations.
    assert own.high / own.low == pytest.approx(np.exp(2 * 1.28 * 0.05), rel=0.03)
    assert drawn("h100-sxm5-80gb", load, 1.0, model) == drawn("h100-sxm5-80gb", load, 1.0)


def test_too_few_rows_move_nothing() -> None:
    load = device_load(kernel(0.0, 1e11), None)
    assert drawn("nvidia-l4", load, 1.0, fit_power_model([rows(LEAST_ROWS - 1, 0.5)], GPUS)).source == ESTIMATED


def test_bursts_and_short_rows_are_no_power_of_the_work() -> None:
    """Their measured power has the pauses between them: our H100 drew 127 W in bursts of BF16 products."""
    table = kernel_table([kernel(1.0, 1e9)] * 3)
    seconds = np.array([1.0, 0.1 * LEAST_S, 0.1 * LEAST_S])
    assert is_steady(table, seconds, np.array([1.0, 5.0, np.nan])).tolist() == [True, False, True]


def test_a_workload_without_time_uses_the_board_power() -> None:
    assert drawn("nvidia-l4", device_load(kernel(1.0, 1.0), None), 0.0).source == BOARD


def test_without_a_board_power_none_is_known() -> None:
    spec = replace(CATALOG.resolve("nvidia-l4"), board_power_w=None)
    assert PowerModel().power(spec, device_load(kernel(1e12, 1e9), None), 1.0, 0.8) is None
