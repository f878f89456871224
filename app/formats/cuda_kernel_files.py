"""Read the files of the cross-GPU kernels paper's authors, cell by cell, without interpreting columns."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError, Malformed

_MAX_ERRORS = 1000
_REQUIRED = (
    "kernel",
    "regs",
    "shmem",
    "block",
    "grid_blocks",
    "mean_ms",
    "std_ms",
    "N",
    "rows",
    "cols",
    "FLOPs",
    "BYTES",
    "working_set_bytes",
    "mem_pattern",
    "gpu_device_name",
)
_OPTIONAL = ("iters", "reps", "has_branch_divergence", "atomic_ops_count", "calibrated_mem_bandwidth_gbps")
# Known columns that are not needed: labels, data-sheet values and derived figures.
_UNUSED = (
    "size_kind",
    "shared_bytes",
    "arithmetic_intensity",
    "gpu_architecture",
    "gpu_compute_capability",
    "gpu_cc_major",
    "gpu_sms",
    "gpu_max_threads_per_sm",
    "gpu_max_blocks_per_sm",
    "gpu_regs_per_sm",
    "gpu_shared_mem_per_sm",
    "gpu_l2_bytes",
    "gpu_warp_size",
    "peak_theoretical_gflops",
    "peak_theoretical_bandwidth_gbps",
    "calibrated_compute_gflops",
    "achieved_bandwidth_gbps",
    "achieved_compute_gflops",
    "T1_model_ms",
    "speedup_model",
)
_TEXT = ("kernel", "mem_pattern", "gpu_device_name")
_FIGURES = {
    "sustained_compute_gflops": "sustained_compute_flops",
    "sustained_bandwidth_gbps": "sustained_bandwidth_bytes_per_s",
}
_CLEAN_COLUMNS = (
    "gpu",
    "csv_row",
    "dim_kind",
    "true_size",
    "grid_blocks_true",
    "iters_effective",
    "regs_ptxas",
    "flops",
    "dram_bytes",
    "working_set_bytes",
    "lane_ops",
    "flag",
    "clean",
)


def _header(file: str, names: Sequence[str]) -> None:
    known = {*_REQUIRED, *_OPTIONAL, *_UNUSED}
    errors = [FieldError((file, name), "unknown column") for name in names if name not in known]
    errors += [FieldError((file, name), "this column is missing") for name in _REQUIRED if name not in names]
    if errors:
        raise BadInput(
            f"{file}: columns {', '.join(str(e.loc[1]) for e in errors)} are unknown or missing.", errors=errors
        )


def _cell(name: str, text: str) -> Any:
    if name in _TEXT:
        return text
    value = float(text) if text else 0.0
    if not math.isfinite(value) or value < 0:
        raise ValueError(text)
    return int(value) if value.is_integer() else value


def read_runs(path: Path, patterns: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of one CSV: text for _TEXT, int or float otherwise, 0 for empty cells.

    `patterns` are the known values of the column `mem_pattern`; others raise BadInput.
    """
    try:
        return _read_lines(path, patterns)
    except (csv.Error, UnicodeDecodeError) as error:
        raise Malformed(f"{path.name} cannot be parsed as CSV: {error}") from error


def _read_lines(path: Path, patterns: Collection[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    errors: list[FieldError] = []
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.reader(handle, strict=True)
        names = next(reader, [])
        _header(path.name, names)
        used_columns = [(k, name) for k, name in enumerate(names) if name not in _UNUSED]
        for cells in reader:
            if len(cells) != len(names):
                msg = f"{len(cells)} cells where the header names {len(names)} columns"
                errors.append(FieldError((path.name, reader.line_num), msg))
                continue
            row = _read_line(path.name, reader.line_num, used_columns, cells, errors)
            if row["mem_pattern"] not in patterns:
                msg = f"unknown pattern {row['mem_pattern']!r}; known are {', '.join(patterns)}"
                errors.append(FieldError((path.name, reader.line_num, "mem_pattern"), msg))
            rows.append(row)
    if errors:
        raise BadInput(f"{path.name}: {len(errors)} cells are wrong.", errors=errors[:_MAX_ERRORS])
    return rows


def _read_line(
    file: str, line: int, used_columns: Sequence[tuple[int, str]], cells: Sequence[str], errors: list[FieldError]
) -> dict[str, Any]:
    row: dict[str, Any] = {"line": line}
    for k, name in used_columns:
        try:
            row[name] = _cell(name, cells[k].strip())
        except ValueError:
            errors.append(FieldError((file, line, name), f"{cells[k][:40]!r} is not a number of at least 0"))
    return row


def read_clean(path: Path) -> list[dict[str, Any]]:
    """Return the cleaned rows; `csv_row` is the line in its GPU's CSV, counted from 0."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} is not a Parquet file: {str(error)[:200]}") from error
    missing = [name for name in _CLEAN_COLUMNS if name not in table.column_names]
    if missing:
        raise BadInput(
            f"{path.name} is missing the columns {', '.join(missing)}.",
            errors=[FieldError((path.name, name), "this column is missing") for name in missing],
        )
    rows: list[dict[str, Any]] = table.select(list(_CLEAN_COLUMNS)).to_pylist()
    return rows


def read_figures(path: Path) -> dict[str, dict[str, float]]:
    """Return measured rates of every GPU by device name, FLOP/s and B/s."""
    try:
        gpus = json.loads(path.read_bytes())
        if not isinstance(gpus, list):
            raise TypeError("not a list")
        return {gpu["device_name"]: _rates(gpu) for gpu in gpus}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"{path.name} is not a list of GPUs with a device_name each: {error!r}") from error


def _rates(gpu: Mapping[str, Any]) -> dict[str, float]:
    rates = {field: float(gpu[name]) * 1e9 for name, field in _FIGURES.items() if name in gpu}
    if not all(math.isfinite(rate) and rate > 0 for rate in rates.values()):
        raise ValueError(f"{gpu['device_name']} has a rate that is not a positive number")
    return rates
