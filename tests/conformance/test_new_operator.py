"""Adding an operator takes its file and a line of OPS: everything else follows, in a copy of the tree."""

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
from tests.conformance import new_operator

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each part of the project makes of the new operator; uncompiled, as nothing is asked of many rows."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(CHECKOUT / "app", tree / "app", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("seed_data", "models_store", "migrations", "docs"):
        (tree / name).symlink_to(CHECKOUT / name)
    new_operator.add(tree / "app")
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(tree)}
    script = Path(new_operator.__file__)
    done = subprocess.run([sys.executable, script], cwd=tree, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    parsed: Found = json.loads(done.stdout)
    return parsed


def lines(prediction: Found) -> set[str]:
    return {line["group"] for line in prediction["breakdown"]}


def test_it_is_predicted_with_an_interval_and_a_line_of_its_own(found: Found) -> None:
    for prediction in found["predicted"]["predictions"]:
        low, high = prediction["interval_ms"]["low"], prediction["interval_ms"]["high"]
        assert 0 < low < prediction["latency_ms"] < high
        assert lines(prediction) == {"limiting"}


def test_shipped_artefacts_keep_their_intervals(found: Found) -> None:
    """Learned intervals of linear layers on an H100 are far narrower than the prior's."""
    h100 = found["compared"]["predictions"][1]
    assert h100["support"] == "interpolated"
    assert h100["interval_ms"]["high"] / h100["interval_ms"]["low"] < 1.4


def test_a_network_with_it_trains(found: Found) -> None:
    for prediction in found["trained_network"]["predictions"]:
        assert {"limiting", "linear", "elementwise"} <= lines(prediction)
        # Its backward is a `mul`, as that of the rectifier behind it.
        assert next(line for line in prediction["breakdown"] if line["group"] == "elementwise")["operators"] == 3
        # It and the last linear layer save their inputs, the rectifier its output: 64 x 4096 x 4 bytes each, and x.
        assert prediction["memory"]["breakdown"]["activations_bytes"] == 3 * 64 * 4096 * 4


def test_it_fuses(found: Found) -> None:
    assert found["fused"] == ["y", "z~u", "v"]


def test_it_is_documented(found: Found) -> None:
    fields, example, explained = found["documented"]
    assert fields == ["b", "count", "dtype", "edges", "h", "op", "phase", "run_state", "software"]
    assert example == {"op": "limit_rows", "b": "4096", "h": "4096", "dtype": "bf16"}
    assert explained


def test_it_is_measured_and_planned(found: Found) -> None:
    drawn, shape = found["measured"]
    assert drawn > 100
    assert shape == [3, 5]
    assert found["planned"] == [48, ["b", "h", "edges"]]
