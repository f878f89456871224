"""Adding an operator takes its file and a line of OPS only, tested in a copy of the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.config import CHECKOUT

pytestmark = pytest.mark.slow

Found = dict[str, Any]
FILE = '''"""`limit_rows`: `b` rows of `h` clipped at `edges` values each; a group of its own."""

from __future__ import annotations

from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Ratio, Work
from app.ops.gradient import rowwise
from app.ops.figures import Prior
from app.ops.suite import PLAIN, ROWS, WIDTH, Log, Space, unary
from app.tables.ops import DTYPE_BYTES, OpTable


def work(table: OpTable) -> Work:
    """Each element once in, once out."""
    elements = table.column("b") * table.column("h")
    moved = 2.0 * elements * DTYPE_BYTES[table.dtype]
    return Work(table.column("edges") * elements, moved, moved)


LIMIT_ROWS = Op(
    "limit_rows",
    "limiting",
    (Dim("b", "rows"), Dim("h", "elements of a row"), Dim("edges", "values that clip a row", default=2.0), *COMMON),
    work,
    prior=Prior(1.0, 0.9, 25e-6, 2e-6, 0.6),
    handed="rows",
    traffic="streams",
    ratios=(Ratio(("b", "h")),),
    backward=rowwise("mul"),
    saves=("input",),
    fusible=True,
    suite=Space({"b": ROWS, "h": WIDTH, "edges": Log(1, 16)}, PLAIN, unary(lambda torch, x: torch.clamp(x, -1, 1))),
    usual={"b": (64, 65536), "h": (128, 16384)},
    example={"b": 4096, "h": 4096},
)
'''


def add(app: Path) -> None:
    """The file, and the line of OPS behind all others."""
    (app / "ops" / "limit_rows.py").write_text(FILE, "utf-8")
    listed = app / "ops" / "__init__.py"
    text = listed.read_text("utf-8").replace("\n)\nOP_CODE", "\n    LIMIT_ROWS,\n)\nOP_CODE")
    listed.write_text(
        text.replace("from app.ops.base", "from app.ops.limit_rows import LIMIT_ROWS\nfrom app.ops.base"), "utf-8"
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each part of the project makes of the new operator; uncompiled, as nothing is asked of many rows."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(CHECKOUT / "app", tree / "app", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("measure", "seed_data", "models_store", "migrations", "docs"):
        (tree / name).symlink_to(CHECKOUT / name)
    add(tree / "app")
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(tree)}
    script = Path(__file__).with_name("new_operator.py")
    done = subprocess.run([sys.executable, script], cwd=tree, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    parsed: Found = json.loads(done.stdout)
    return parsed


def lines(prediction: Found) -> set[str]:
    return {line["group"] for line in prediction["breakdown"]}


def test_a_new_operator_is_predicted_with_its_own_interval_group(found: Found) -> None:
    for prediction in found["predicted"]["predictions"]:
        low, high = prediction["interval_ms"]["low"], prediction["interval_ms"]["high"]
        assert 0 < low < prediction["latency_ms"] < high
        assert lines(prediction) == {"limiting"}


def test_shipped_artefacts_keep_their_intervals(found: Found) -> None:
    """Learned intervals of linear layers on an H100 are far narrower than the prior's."""
    h100 = found["compared"]["predictions"][1]
    assert h100["support"] == "interpolated"
    assert h100["interval_ms"]["high"] / h100["interval_ms"]["low"] < 1.4


def test_a_network_with_a_new_operator_trains(found: Found) -> None:
    for prediction in found["trained_network"]["predictions"]:
        assert {"limiting", "linear", "elementwise"} <= lines(prediction)
        # Its backward is a `mul`, as that of the rectifier behind it.
        assert next(line for line in prediction["breakdown"] if line["group"] == "elementwise")["operators"] == 3
        # It and the last linear layer save their inputs, the rectifier its output: 64 x 4096 x 4 bytes each, and x.
        assert prediction["memory"]["breakdown"]["activations_bytes"] == 3 * 64 * 4096 * 4


def test_a_new_operator_fuses(found: Found) -> None:
    assert found["fused"] == ["y", "z~u", "v"]


def test_a_new_operator_is_documented(found: Found) -> None:
    fields, example, explained = found["documented"]
    assert fields == ["b", "count", "dtype", "edges", "h", "op", "phase", "run_state", "software"]
    assert example == {"op": "limit_rows", "b": "4096", "h": "4096", "dtype": "bf16"}
    assert explained


def test_a_new_operator_is_measured_and_planned(found: Found) -> None:
    drawn, shape = found["measured"]
    assert drawn > 100
    assert shape == [3, 5]
    assert found["planned"] == [48, ["b", "h", "edges"]]
