"""Read measurements in the format of the cross-GPU kernels paper's authors: runs_*_final.csv and gpu_metrics.json.

If the folder has `cuda_kernels.parquet`, its cleaned rows are used instead: the same rows with true sizes, one byte
count
for all GPUs, and each GPU's own registers and lane operations. Nothing is derived from a kernel's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from app.errors import BadInput, NotFound
from app.formats.base import Imported, Importer, Row, Skipped
from app.formats.cuda_kernel_files import read_clean, read_figures, read_runs

GPU_FILE, CLEAN_FILE, RUNS = "gpu_metrics.json", "cuda_kernels.parquet", "runs_*_final.csv"
SOFTWARE = "cuda"
SOURCE_CLEAN, SOURCE_CSV = "cross-gpu-kernels/clean", "cross-gpu-kernels/csv"
_ELEMENT_BYTES = 4

_FLAGS = {
    "launch_failed": "never launched: its time is that of a refused launch",
    "size_label_wrong": "ran at the default size, not at the labelled one: repeats another row",
    "mixed_iters": "mean of runs with different iteration counts",
}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Meaning of a value of the column `mem_pattern`.

    `atomic_addresses` is the number of addresses that share the atomics, 0 without atomics; `repeats` is whether every
    element issues one atomic per iteration instead of one in total.
    """

    access: str
    stride_elements: int = 0
    divergence: float = 0.0
    atomic_addresses: int = 0
    repeats: bool = False
    bank_conflict_ways: int = 0


_STREAM, _STRIDE_8, _GATHER = _Pattern("coalesced"), _Pattern("strided", stride_elements=8), _Pattern("random")
_BINS = _Pattern("coalesced", atomic_addresses=256)
_PATTERNS = {
    "coalesced": _STREAM,
    "shared_reduction": _STREAM,
    "stencil_3x3": _STREAM,
    "stencil_7x7": _STREAM,
    "transpose_tiled": _STREAM,
    "mm_tiled": _STREAM,
    "matmul_tiled": _STREAM,
    "mm_naive": _Pattern("broadcast"),
    "matmul_naive": _Pattern("broadcast"),
    "transpose_naive": _Pattern("strided"),
    "stride_8": _STRIDE_8,
    "strided_8": _STRIDE_8,
    "random_gather": _GATHER,
    "random_gather_scatter": _GATHER,
    "divergent": _Pattern("coalesced", divergence=1.0),
    "atomics_256bins": _BINS,
    "atomics_global_256": _BINS,
    "atomics_hotspot": _Pattern("broadcast", atomic_addresses=1, repeats=True),
    "smem_bank_conflict": _Pattern("coalesced", bank_conflict_ways=32),
}


def _workload(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel workload in the API's form, without figures that do not apply."""
    pattern = _PATTERNS[run["mem_pattern"]]
    iterations = run.get("iters", 0)
    atomics = 0
    if pattern.atomic_addresses:
        each = max(iterations, 1) if pattern.repeats else 1
        atomics = run.get("atomic_ops_count", 0) or run["N"] * each
    stride = pattern.stride_elements or (run["cols"] if pattern.access == "strided" else 0)
    optional = {
        "stride_bytes": stride * _ELEMENT_BYTES,
        "atomic_operations": atomics,
        "atomic_addresses": pattern.atomic_addresses,
        "branch_divergence": max(pattern.divergence, run.get("has_branch_divergence", 0)),
        "bank_conflict_ways": pattern.bank_conflict_ways,
        "lane_operations": run.get("lane_ops", 0),
    }
    return {
        "kind": "kernel",
        "name": run["kernel"],
        "flops": run["FLOPs"],
        "bytes": run["BYTES"],
        "threads_per_block": run["block"],
        "blocks": run["grid_blocks"],
        "registers_per_thread": run["regs"],
        "shared_memory_per_block": run["shmem"],
        "working_set_bytes": run["working_set_bytes"],
        "access_pattern": pattern.access,
        "dtype": "fp32",
        "size": {"n": run["N"], "rows": run["rows"], "cols": run["cols"], "iterations": iterations},
    } | {name: value for name, value in optional.items() if value}


def _measurement(run: Mapping[str, Any], source: str) -> Row:
    row: Row = {
        "gpu": run["gpu_device_name"],
        "software": SOFTWARE,
        "source": source,
        "latency_ms": run["mean_ms"],
        "latency_std_ms": run["std_ms"],
        "workload": _workload(run),
    }
    return row | ({"runs": run["reps"]} if run.get("reps") else {})


def _cleaned(run: Mapping[str, Any], clean: Mapping[str, Any]) -> dict[str, Any]:
    """Return an authors' row with the figures of its cleaned row."""
    flat = clean["dim_kind"] == "1d"
    size, edge = (clean["true_size"], 0) if flat else (0, clean["true_size"])
    return {name: value for name, value in run.items() if name != "atomic_ops_count"} | {
        "N": size,
        "rows": edge,
        "cols": edge,
        "iters": clean["iters_effective"],
        "regs": clean["regs_ptxas"],
        "grid_blocks": clean["grid_blocks_true"],
        "FLOPs": clean["flops"],
        "BYTES": clean["dram_bytes"],
        "working_set_bytes": clean["working_set_bytes"],
        "lane_ops": clean["lane_ops"],
    }


def _figures(folder: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return measured figures per GPU: sustained rates from the JSON, triad bandwidth from the CSVs."""
    path = folder / GPU_FILE
    figures = read_figures(path) if path.exists() else {}
    triad: dict[str, list[float]] = {}
    for rows in runs.values():
        for run in rows:
            if run.get("calibrated_mem_bandwidth_gbps"):
                triad.setdefault(run["gpu_device_name"], []).append(run["calibrated_mem_bandwidth_gbps"])
    for gpu, values in triad.items():
        figures.setdefault(gpu, {})["triad_bandwidth_bytes_per_s"] = median(values) * 1e9
    return figures


def _take_clean(
    path: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[list[Row], list[str], list[Skipped]]:
    rows: list[Row] = []
    where: list[str] = []
    skipped: list[Skipped] = []
    for clean in read_clean(path):
        file = f"runs_{clean['gpu']}_final.csv"
        if not 0 <= clean["csv_row"] < len(runs.get(file, ())):
            raise BadInput(f"{path.name} points to row {clean['csv_row']} of {file}, which is not there.")
        run = runs[file][clean["csv_row"]]
        place = f"{file}:{run['line']}"
        if clean["clean"]:
            rows.append(_measurement(_cleaned(run, clean), SOURCE_CLEAN))
            where.append(place)
        else:
            skipped.append(Skipped(place, _FLAGS.get(clean["flag"], clean["flag"])))
    return rows, where, skipped


def read(folder: Path) -> Imported:
    """Return the measurements of a folder. Raises BadInput that names unknown columns and patterns."""
    files = sorted(folder.glob(RUNS))
    if not files:
        raise NotFound(f"No {RUNS} in {folder}.")
    runs = {path.name: read_runs(path, _PATTERNS) for path in files}
    figures = _figures(folder, runs)
    clean = folder / CLEAN_FILE
    if clean.exists():
        rows, where, skipped = _take_clean(clean, runs)
        note = f"{CLEAN_FILE} found: its clean rows replace the CSVs' labels, byte counts and registers."
        return Imported(tuple(rows), tuple(where), figures, tuple(skipped), (note,))
    every = [(f"{file}:{run['line']}", run) for file, rows_of in runs.items() for run in rows_of]
    note = f"no {CLEAN_FILE}: the CSVs' rows are taken as they are, wrong size labels included."
    return Imported(
        tuple(_measurement(run, SOURCE_CSV) for _, run in every),
        tuple(place for place, _ in every),
        figures,
        (),
        (note,),
    )


IMPORTERS = {"cuda-kernels": Importer("cuda-kernels", read)}
