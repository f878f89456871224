"""Auto-tuned kernels carried between GPUs, with the kernel and both GPUs left out of what is fitted."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.config import CHECKOUT
from evaluation.kernels.tuning import FOLDER, MEASURED, evaluate_kernel_tuning

SHARED = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))

pytestmark = [
    pytest.mark.skipif(not (SHARED / FOLDER).is_dir(), reason=f"no data in {SHARED / FOLDER}"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def tables() -> list[list[dict[str, Any]]]:
    blocks = [block for block in evaluate_kernel_tuning(SHARED).blocks if not isinstance(block, str)]
    return [[dict(zip(block.columns, row, strict=True)) for row in block.rows] for block in blocks]


@pytest.fixture(scope="module")
def rows(tables: list[list[dict[str, Any]]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["pair"], row["measured"]): row for row in tables[0]}


def test_products_by_hand_are_known_without_measurements(tables: list[list[dict[str, Any]]]) -> None:
    products = [row for row in tables[1] if row["kernel"] == "gemm"]
    assert len(products) == 3
    assert max(row["factor"] for row in products) < 2.0
    assert min(row["Spearman"] for row in products) > 0.4


@pytest.mark.parametrize(("measured", "most"), [(0, 14.0), (1, 9.0), (3, 8.0), (10, 8.0)])
def test_times_are_carried_between_gpus_of_nvidia(rows: dict[Any, Any], measured: int, most: float) -> None:
    assert rows["NVIDIA", measured]["auto"] < most


@pytest.mark.parametrize("kind", ["NVIDIA", "AMD and NVIDIA"])
def test_rows_measured_on_the_target_do_no_harm(rows: dict[Any, Any], kind: str) -> None:
    without = rows[kind, 0]
    for measured in MEASURED[1:]:
        assert rows[kind, measured]["auto"] < without["auto"]
        assert rows[kind, measured]["Spearman"] > without["Spearman"] - 0.05


def test_the_order_of_configurations_is_kept(rows: dict[Any, Any]) -> None:
    assert min(rows["NVIDIA", measured]["Spearman"] for measured in MEASURED) > 0.8


def test_most_plans_begin_with_the_best_configuration(rows: dict[Any, Any]) -> None:
    row = rows["NVIDIA", 0]
    assert row["best in top"] >= 0.85 * row["pairs"] and row["regret"] < 3.0


@pytest.mark.parametrize("way", ["to faster", "to slower"])
@pytest.mark.parametrize("measured", MEASURED)
def test_intervals_hold_in_both_directions(rows: dict[Any, Any], way: str, measured: int) -> None:
    assert 74.0 <= rows["NVIDIA", measured][way] <= 86.0
    # Of AMD's GPUs three kernels and spaces only.
    assert 70.0 <= rows["AMD and NVIDIA", measured][way] <= 90.0


def test_between_vendors_one_measured_ratio_beats_bandwidths(rows: dict[Any, Any]) -> None:
    row = rows["AMD and NVIDIA", 1]
    assert row["auto"] < min(45.0, row["scaled"], row["ratio"])
