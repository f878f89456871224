"""Untrained operators on the rows their constants were set by: a guard against regressions, not a held-out test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.errors import BadInput, NotFound
from app.ops import OP_CODE, OPS
from app.services.evaluate_operators import evaluate_untrained
from app.services.operator_files import NEUSIGHT_FILE, read_operators

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    if not (DATA / NEUSIGHT_FILE).is_file():
        pytest.skip(f"no data in {DATA}")
    return [dict(cell) for cell in evaluate_untrained(DATA)]


def test_prior_intervals_cover_about_what_they_promise(cells: list[dict[str, Any]]) -> None:
    rows: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for cell in cells:
        if cell["gpu"] == "all":
            rows[OPS[OP_CODE[cell["op"]]].group].append((cell["coverage_80"], cell["n"]))
    assert len(rows) == 9
    for group, parts in rows.items():
        covered = sum(share * n for share, n in parts) / sum(n for _, n in parts)
        assert 74.0 <= covered <= 90.0, group


def test_physics_beats_the_roofline_everywhere(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        if cell["gpu"] == "all":
            assert cell["mape"] < cell["roofline_mape"], cell


def test_command_prints_and_writes_every_cell(tmp_path: Path) -> None:
    rows = {
        "op": ["linear", "relu", "addu", "conv"],
        "gpu": ["Tesla P4", "Tesla T4", "NVIDIA L4", "Tesla P4"],
        "latency_ms": [1.0, 0.05, 0.05, 2.0],
        **{name: [512.0, None, None, None] for name in ("m", "n", "k")},
        "b": [None, 64.0, 64.0, 8.0],
        "h": [None, 1024.0, 1024.0, None],
        **{name: [None, None, None, 64.0] for name in ("in_channels", "out_channels", "input_size")},
        **{name: [None, None, None, 1.0] for name in ("kernel_size", "stride", "padding")},
    }
    (tmp_path / "neusight").mkdir()
    pq.write_table(pa.table(rows), tmp_path / NEUSIGHT_FILE)
    command = [sys.executable, "-m", "app.cli", "evaluate", "operators-untrained", "--data", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "cells.json")], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("operator          dtype")
    written = json.loads((tmp_path / "cells.json").read_text())["cells"]
    assert [(cell["op"], cell["gpu"], cell["n"]) for cell in written if cell["gpu"] != "all"] == [
        ("linear", "tesla-p4", 1),
        ("conv2d", "tesla-p4", 1),
        ("add_scalar", "nvidia-l4", 1),
        ("relu", "tesla-t4", 1),
    ]


def test_files_that_are_not_the_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="Pass --data the folder"):
        next(read_operators(tmp_path))
    (tmp_path / "neusight").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / NEUSIGHT_FILE)
    with pytest.raises(BadInput, match="not in the form expected"):
        next(read_operators(tmp_path))
