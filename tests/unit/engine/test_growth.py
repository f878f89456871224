"""Shipped artefacts in a tree with more operators, groups and dtypes than they were trained with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.bands.conformal import Intervals
from app.bands.groups import CODES, NAMES
from app.config import CHECKOUT, SHIPPED_MODELS
from app.engine.shipped import shipped_versions

COVERAGES = (0.5, 0.8, 0.99)
# Of every shipped predictor, the offsets of every group by its name, and the group's code.
OFFSETS = """
import json
import sys
from pathlib import Path

from app.engine.shipped import shipped_versions
from app.bands.conformal import Intervals
from app.bands.groups import NAMES

found = {}
for name, shipped in shipped_versions(Path(sys.argv[1])).items():
    intervals = Intervals.from_state(shipped.payload()["intervals"])
    offsets = [intervals.log_offsets(float(coverage)).tolist() for coverage in sys.argv[2:]]
    found[name] = {group: [side[code] for pair in offsets for side in pair] for code, group in enumerate(NAMES)}
print(json.dumps([found, NAMES]))
"""
OPERATOR = '''"""An operator and a line of the breakdown that this version does not have."""

from app.ops.base import COMMON, Dim, Op
from app.ops.figures import Work


def work(table):
    elements = table.column("b") * table.column("h")
    return Work(elements, 8.0 * elements, 8.0 * elements)


SCAN_OPS = (Op("scan", "scan", (Dim("b", "rows"), Dim("h", "length of each"), *COMMON), work),)
'''


def inserted(path: Path, anchor: str, text: str) -> None:
    """Put `text` behind the only `anchor`."""
    source = path.read_text()
    assert source.count(anchor) == 1, f"{path.name} has {source.count(anchor)} times {anchor!r}"
    path.write_text(source.replace(anchor, anchor + text))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with one more dtype among the others, and one more operator, of a line of its own."""
    root = tmp_path_factory.mktemp("grown")
    shutil.copytree(CHECKOUT / "app", root / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "seed_data").symlink_to(CHECKOUT / "seed_data")
    tables, predictors, ops = (root / "app" / folder for folder in ("tables", "predictors", "ops"))
    inserted(tables / "ops.py", '"int8", "nvfp4"', ', "mxfp3"')
    inserted(tables / "ops.py", '"int8": (1.0, 1.0, 2.0),', '\n    "mxfp3": (1.0, 1.0, 2.0),')
    inserted(predictors / "roofline.py", '"nvfp4": ("fp4_tensor",),', '\n    "mxfp3": ("fp8_tensor",),')
    (ops / "scan.py").write_text(OPERATOR)
    inserted(ops / "__init__.py", "from app.ops.recurrent import RECURRENT_OPS", "\nfrom app.ops.scan import SCAN_OPS")
    inserted(ops / "__init__.py", "\n    kernel.OP,", "\n    *SCAN_OPS,")
    return root


def test_shipped_intervals_do_not_change(grown: Path) -> None:
    command = [sys.executable, "-c", OFFSETS, str(SHIPPED_MODELS), *map(str, COVERAGES)]
    output = subprocess.run(
        command, cwd=grown, env={**os.environ, "PYTHONPATH": str(grown)}, capture_output=True, text=True, check=True
    ).stdout
    found, names = json.loads(output)
    assert {"scan/fp32/seen", "linear/mxfp3/seen"} <= {*names} - {*NAMES}
    assert names.index("linear/bf16/seen") != CODES["linear/bf16/seen"]
    assert found.keys() == shipped_versions(SHIPPED_MODELS).keys()
    for name, shipped in shipped_versions(SHIPPED_MODELS).items():
        intervals = Intervals.from_state(shipped.payload()["intervals"])
        offsets = [intervals.log_offsets(coverage).tolist() for coverage in COVERAGES]
        for code, group in enumerate(NAMES):
            assert found[name][group] == [side[code] for pair in offsets for side in pair], (name, group)
