"""The device suite, shortened, on this machine's CPU: its rows, its figures, and predictions with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")

from app.predictors.auto.predictor import Auto
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from measure import device_suite
from measure.device import Device
from measure.device_suite import figures, summary
from measure.operators_suite import table_of
from measure.runner import Runner
from tests.unit.kernels import TURING, index, kernels
from tests.unit.operator_runs import runs_of

pytestmark = pytest.mark.slow

HERE = Device("cpu", "this one", ("fp32", "fp64"), 1e9, 1, "pytorch-2", "pytorch-2")
SHORT = device_suite.Sizes(side=256, shallow=512, arrays=(1 << 18, 1 << 20, 1 << 22), cached=1, busy_s=0.05, rest_s=0.0)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_suite, "CPU", SHORT)
        points = device_suite.points(HERE)
    runner = Runner(HERE, most_spread=np.inf)
    return [runner.run(point) for point in points]


def test_everything_of_a_cpu_is_measured(rows: list[dict[str, Any]]) -> None:
    assert {row["outcome"] for row in rows} == {"measured"}
    products = [(row["dtype"], row["run_state"]) for row in rows if row["op"] == "linear"]
    square = [(dtype, state) for state in ("burst", "sustained") for dtype in ("fp32", "fp64")]
    assert products == [*square, ("fp32", "sustained")]
    assert {"add", "copy", "memory"} <= {row["op"] for row in rows}


def test_measured_figures_are_plausible(rows: list[dict[str, Any]]) -> None:
    found = figures(rows)
    assert set(found) == {"triad_bandwidth_bytes_per_s", "sustained_bandwidth_bytes_per_s", "sustained_compute_flops"}
    assert all(1e7 < value < 1e14 for value in found.values())
    lines = list(summary(rows, {}))
    assert [line.split()[0] for line in lines] == ["memory", "caches", *["fp32", "fp64"] * 2, "fp32", "launch"]


def test_the_summary_of_a_product_reports_throttling(rows: list[dict[str, Any]]) -> None:
    product = next(row for row in rows if row["op"] == "linear")
    sensed = {"clock_hz": 1.2e9, "power_w": 299.0, "throttle_reason": "power cap"}
    (_, events) = summary([product | sensed], {"graph_events_s": 2.07e-6})
    assert "2.07 us" in events
    (line,) = summary([product | sensed], {"boost_clock_hz": 1.9e9, "power_limit_w": 300.0})
    assert line.endswith("1,200 of 1,900 MHz, 299 of 300 W, held back by power cap")


def test_a_failed_row_gives_no_figure(rows: list[dict[str, Any]]) -> None:
    assert figures([row | {"outcome": "failed: why"} for row in rows]) == {}


def test_the_smallest_kernel_sets_the_launch_overhead() -> None:
    stores = [{"outcome": "measured", "name": "one_store", "kind": "kernel", "latency_ms": ms} for ms in (9e-3, 8e-3)]
    known = replace(TURING, **figures(stores))  # type: ignore[arg-type]
    launch = {"flops": 256, "bytes": 2048, "threads_per_block": 256, "blocks": 1, "registers_per_thread": 16}
    table = kernels([launch])
    nothing = Evidence(Measurements(table.take(index()), index(), np.empty(0)), index())
    gpus = GpuTable.from_specs([TURING, known])
    usual, slow = Auto().predict(table.take(index(0, 0)), gpus, index(0, 1), index(0, 1), evidence=nothing).latency_s
    assert usual < 5e-6
    assert 8e-6 <= slow < 9e-6


def test_a_gpu_that_runs_slower_than_its_datasheet_is_predicted_slower() -> None:
    """Of a GPU without any other data, what the suite says of a format moves other operators in it too."""
    gpus, nothing = GpuTable.from_specs([TURING]), Evidence(Measurements(table_of([]), index(), np.empty(0)), index())
    suite = [product(8192, 8192), product(16384, 40)]
    asked = table_of([product(4096, 2048), product(6000, 1000)])

    def seconds(predictor: Auto, table: OpTable) -> NDArray[np.float64]:
        rows = np.arange(len(table))
        return predictor.predict(table, gpus, rows, 0 * rows, evidence=nothing).latency_s

    before = seconds(Auto(), asked)
    slow = 2.0 * seconds(Auto(), table_of(suite))
    told = Auto().with_measured([runs_of("linear", "fp16", table_of(suite), gpu=[0, 0], latency_s=slow)], gpus)
    assert (seconds(told, asked) > 1.25 * before).all()


def product(side: int, depth: int) -> dict[str, Any]:
    return {"op": "linear", "dtype": "fp16", "m": side, "n": side, "k": depth, "run_state": "sustained"}
