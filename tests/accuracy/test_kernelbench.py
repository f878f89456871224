"""KernelBench's programs in eager PyTorch, predicted from their graphs; three constants of hosts were set on them."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.config import CHECKOUT
from evaluation.operators.kernelbench import FOLDER, evaluate_kernelbench

SHARED = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))

pytestmark = [
    pytest.mark.skipif(not (SHARED / FOLDER).is_dir(), reason=f"no data in {SHARED / FOLDER}"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def cells() -> dict[tuple[str, str, str], list[Any]]:
    refused: list[str] = []
    rows = evaluate_kernelbench(SHARED, refused.append).body["rows"]
    assert not refused
    return {tuple(row[:3]): row[3:] for row in rows}


@pytest.mark.parametrize(
    ("programs", "level", "most"),
    [
        ("v0.1", "level1", 16.0),
        ("v0.1", "level2", 24.0),
        ("v0", "level1", 20.0),
        ("v0", "level2", 37.0),
        ("v0", "level3", 20.0),
    ],
)
def test_programs_are_known_by_their_graphs(cells: dict[Any, Any], programs: str, level: str, most: float) -> None:
    _, error, _, held = cells[programs, level, "all"]
    assert error < most
    assert held > 70.0


@pytest.mark.parametrize(("programs", "most"), [("v0", 17.0), ("v0.1", 15.0)])
def test_single_operators_of_an_h100(cells: dict[Any, Any], programs: str, most: float) -> None:
    assert cells[programs, "level1", "h100-sxm5-80gb"][1] < most
