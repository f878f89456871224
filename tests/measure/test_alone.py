"""`gpucast measure` on a machine with a checkout and PyTorch, without the packages of the service."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.services.operators.predict_operators import read_operators
from app.wire.operator_forms import ROW_FORMS

pytest.importorskip("torch")

from measure import operators_suite
from measure.device import Device
from measure.operators_suite import table_of

pytestmark = pytest.mark.slow

# What docs/how-to/measure-a-gpu.md says such a machine needs.
NEEDED = ("torch", "numpy", "scipy", "numba", "pyarrow", "typer", "msgspec", "httpx", "psutil")
ONLY = """
import sys
from importlib.machinery import PathFinder
missing = set(sys.argv.pop(1).split(","))
class Found(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else super().find_spec(name, path, target)
sys.meta_path[:] = [Found if finder is PathFinder else finder for finder in sys.meta_path]
from app.cli import main
main()
"""


def modules_of(*packages: str) -> set[str]:
    """Modules of installed packages and of all that these need."""
    wanted, found = list(packages), set[str]()
    while wanted:
        name = wanted.pop().lower().replace("_", "-")
        if name not in found and is_installed(name):
            found.add(name)
            needs = [need for need in distribution(name).requires or [] if "extra ==" not in need]
            wanted += [re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs]
    every = packages_distributions().items()
    return {top for top, names in every if found & {name.lower().replace("_", "-") for name in names}}


def is_installed(package: str) -> bool:
    """Whether it is installed: some needs are other systems'."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def run_with_only(packages: Sequence[str], *words: str) -> subprocess.CompletedProcess[str]:
    missing = packages_distributions().keys() - modules_of(*packages) - {"app", "measure"}
    command = [sys.executable, "-c", ONLY, ",".join(missing), *words]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)


def test_every_suite_runs_with_the_documented_packages_only(tmp_path: Path) -> None:
    out = tmp_path / "device.parquet"
    said = run_with_only(NEEDED, "measure", "--minutes", "0.02", "--threads", "1", "--out", str(out))
    assert said.returncode == 0, said.stderr
    assert len(pq.read_table(out))
    document = (CHECKOUT / "docs" / "how-to" / "measure-a-gpu.md").read_text()
    assert f"pip install {' '.join(NEEDED)}" in document


@pytest.mark.parametrize("missing", ["torch", "numba", "typer"])
def test_missing_packages_are_named(tmp_path: Path, missing: str) -> None:
    kept = [name for name in NEEDED if name != missing]
    said = run_with_only(kept, "measure", "--minutes", "0", "--threads", "1", "--out", str(tmp_path / "x.parquet"))
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].endswith(f"needs {missing}: `make measure`, or pip install {missing}")


def test_rows_are_read_as_the_service_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("cuda", "a GPU", ("bf16", "fp32", "fp16", "fp8", "tf32", "fp64"), 1e11, 132, "pytorch-2", "cuda")
    monkeypatch.setattr(operators_suite, "DRAWS", 16)
    monkeypatch.setattr(operators_suite, "fits", lambda wanted, device: np.ones(len(wanted), dtype=np.bool_))
    rows = operators_suite.rows(gpu)
    forms = [{name: value for name, value in row.items() if name != "kind"} for row in rows]
    read = read_operators([msgspec.convert(form, ROW_FORMS[form["op"]]) for form in forms])
    ours, services = table_of(rows), read.table.take(read.row)
    np.testing.assert_array_equal(ours.dims, services.dims)
    np.testing.assert_array_equal([ours.kind, ours.dtype], [services.kind, services.dtype])
