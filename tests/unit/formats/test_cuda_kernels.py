import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.errors import BadInput, Malformed, NotFound
from app.formats import FORMS
from app.formats.cuda_kernels import read
from app.services.measurements.importing import find_importer

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "cuda_kernels"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the paper's measurements are not on this machine")

HEADER = (
    "kernel,regs,shmem,block,grid_blocks,mean_ms,std_ms,N,rows,cols,iters,FLOPs,BYTES,working_set_bytes,"
    "mem_pattern,gpu_device_name,calibrated_mem_bandwidth_gbps,speedup_model"
)
SAXPY = "saxpy,12,0,256,1024,0.0041,0.0001,262144,,,0,524288,3145728,3145728,coalesced,NVIDIA TITAN V,609.90,"
HOT = "spin,7,0,256,1024,0.4865,0.1616,262144,0,0,50,0,104857600,4,atomics_hotspot,NVIDIA TITAN V,609.90,11.3"
TRANSPOSE = "flip,8,0,256,1024,0.0064,0.0001,,512,512,,0,2097152,2097152,transpose_naive,NVIDIA TITAN V,609.90,"


def folder(path: Path, *lines: str, header: str = HEADER) -> Path:
    (path / "runs_titanv_final.csv").write_text("\n".join((header, *lines)) + "\n")
    gpus = [{"device_name": "NVIDIA TITAN V", "sustained_compute_gflops": 10920.889, "sustained_bandwidth_gbps": 300}]
    (path / "gpu_metrics.json").write_text(json.dumps(gpus))
    return path


def add_clean(path: Path, **changed: list[Any]) -> None:
    columns: dict[str, list[Any]] = {
        "gpu": ["titanv", "titanv"],
        "csv_row": [0, 1],
        "dim_kind": ["1d", "1d"],
        "true_size": [131072, 262144],
        "grid_blocks_true": [512, 1024],
        "iters_effective": [0.0, 75.0],
        "regs_ptxas": [14, 12],
        "flops": [262144.0, 0.0],
        "dram_bytes": [1572864.0, 0.0],
        "working_set_bytes": [1572864.0, 0.0],
        "lane_ops": [393216.0, 19660800.0],
        "flag": ["", "launch_failed"],
        "clean": [True, False],
    }
    pq.write_table(pa.table(columns | changed), path / "cuda_kernels.parquet")


def test_a_csv_row_in_the_apis_form(tmp_path: Path) -> None:
    imported = read(folder(tmp_path, SAXPY))
    assert imported.where == ("runs_titanv_final.csv:2",)
    assert imported.rows[0] == {
        "gpu": "NVIDIA TITAN V",
        "software": "cuda",
        "source": "cross-gpu-kernels/csv",
        "latency_ms": 0.0041,
        "latency_std_ms": 0.0001,
        "workload": {
            "kind": "kernel",
            "name": "saxpy",
            "flops": 524288,
            "bytes": 3145728,
            "threads_per_block": 256,
            "blocks": 1024,
            "registers_per_thread": 12,
            "shared_memory_per_block": 0,
            "working_set_bytes": 3145728,
            "access_pattern": "coalesced",
            "dtype": "fp32",
            "size": {"n": 262144, "rows": 0, "cols": 0, "iterations": 0},
        },
    }


def test_atomics_and_strides_come_from_the_pattern_not_from_the_name(tmp_path: Path) -> None:
    hot, flip = (row["workload"] for row in read(folder(tmp_path, HOT, TRANSPOSE)).rows)
    assert (hot["atomic_operations"], hot["atomic_addresses"]) == (262144 * 50, 1)
    assert (flip["access_pattern"], flip["stride_bytes"]) == ("strided", 512 * 4)


def test_measured_figures_of_the_gpus(tmp_path: Path) -> None:
    figures = read(folder(tmp_path, SAXPY)).figures["NVIDIA TITAN V"]
    assert figures == {
        "sustained_compute_flops": pytest.approx(10920.889e9),
        "sustained_bandwidth_bytes_per_s": 300e9,
        "triad_bandwidth_bytes_per_s": pytest.approx(609.9e9),
    }


def test_clean_rows_are_preferred_and_others_are_named(tmp_path: Path) -> None:
    add_clean(folder(tmp_path, SAXPY, HOT))
    imported = read(tmp_path)
    workload = imported.rows[0]["workload"]
    assert (workload["size"]["n"], workload["blocks"], workload["registers_per_thread"]) == (131072, 512, 14)
    assert workload["lane_operations"] == 393216
    assert imported.rows[0]["source"] == "cross-gpu-kernels/clean"
    assert [(skip.where, "never launched" in skip.reason) for skip in imported.skipped] == [
        ("runs_titanv_final.csv:3", True)
    ]
    assert "cuda_kernels.parquet" in imported.notes[0]


@pytest.mark.parametrize(
    ("line", "loc", "message"),
    [
        (SAXPY.replace("0.0041", "fast"), ("runs_titanv_final.csv", 2, "mean_ms"), "'fast'"),
        (SAXPY.replace("0.0041", "nan"), ("runs_titanv_final.csv", 2, "mean_ms"), "'nan'"),
        (SAXPY + ",1", ("runs_titanv_final.csv", 2), "19 cells"),
        (SAXPY.replace("coalesced", "magic"), ("runs_titanv_final.csv", 2, "mem_pattern"), "'magic'"),
    ],
)
def test_errors_name_the_cell(tmp_path: Path, line: str, loc: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(folder(tmp_path, line))
    assert caught.value.errors[0].loc == loc
    assert message in caught.value.errors[0].msg


def test_unknown_and_missing_columns_are_named(tmp_path: Path) -> None:
    header = HEADER.replace("regs", "regs_per_thread")
    with pytest.raises(BadInput, match="regs_per_thread, regs"):
        read(folder(tmp_path, SAXPY, header=header))


def test_damaged_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="runs_"):
        read(tmp_path)
    folder(tmp_path, SAXPY)
    (tmp_path / "gpu_metrics.json").write_text("{}")
    with pytest.raises(Malformed, match="gpu_metrics"):
        read(tmp_path)
    folder(tmp_path, SAXPY, HOT)
    add_clean(tmp_path, csv_row=[0, 7])
    with pytest.raises(BadInput, match="row 7"):
        read(tmp_path)
    (tmp_path / "cuda_kernels.parquet").write_bytes(b"PAR1")
    with pytest.raises(Malformed, match="Parquet"):
        read(tmp_path)


@needs_data
def test_the_folder_of_the_paper_is_imported() -> None:
    imported = read(DATA)
    assert (len(imported.rows), len(imported.skipped)) == (200, 43)
    reasons = Counter(skip.reason.partition(":")[0] for skip in imported.skipped)
    # The data's README: 38 TITAN X rows with wrong sizes, four launches that never ran, one mixed row of TITAN X.
    assert sorted(reasons.values()) == [1, 4, 38]
    assert len(imported.figures) == 4


def test_every_importer_documents_its_files() -> None:
    assert all(find_importer(name).name == name for name in FORMS)
    assert all(summary for _, summary in FORMS.values())
