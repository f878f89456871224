"""Read measurements in the format of the cross-GPU kernels paper's authors: runs_*_final.csv and gpu_metrics.json.

If the folder has `cuda_kernels.parquet`, its cleaned rows are used instead: the same rows with true sizes, one byte
count for all GPUs, and each GPU's own registers and lane operations. Nothing is derived from a kernel's name.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from app.config import SEED_DATA
from app.errors import BadInput, FieldError, Malformed, NotFound
from app.formats.base import Imported, Importer, Row, SkippedRow

GPU_FILE, CLEAN_FILE, RUNS = "gpu_metrics.json", "cuda_kernels.parquet", "runs_*_final.csv"
SOFTWARE = "cuda"
SOURCE_CLEAN, SOURCE_CSV = "cross-gpu-kernels/clean", "cross-gpu-kernels/csv"
_ELEMENT_BYTES = 4
_MAX_ERRORS = 1000


class AccessPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class CleanRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns of the cleaned rows, the authors' columns that they replace, and why flagged rows are left out."""

    columns: tuple[str, ...]
    replaced: dict[str, str]
    flags: dict[str, str]


class Meanings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns of the CSV files; `unused` ones are labels, data-sheet values and derived figures.

    rates     measured rate of gpu_metrics.json, G/s -> field of a GPU's specification
    patterns  value of `mem_pattern` -> its meaning
    """

    text: tuple[str, ...]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    unused: tuple[str, ...]
    rates: dict[str, str]
    clean: CleanRows
    patterns: dict[str, AccessPattern]


_MEANINGS = msgspec.json.decode((SEED_DATA / "formats" / "cuda_kernels.json").read_bytes(), type=Meanings)


def _header(file: str, names: Sequence[str]) -> None:
    known = {*_MEANINGS.required, *_MEANINGS.optional, *_MEANINGS.unused}
    errors = [FieldError((file, name), "unknown column") for name in names if name not in known]
    errors += [FieldError((file, name), "this column is missing") for name in _MEANINGS.required if name not in names]
    if errors:
        raise BadInput(
            f"{file}: columns {', '.join(str(e.loc[1]) for e in errors)} are unknown or missing.", errors=errors
        )


def _cell(name: str, text: str) -> Any:
    if name in _MEANINGS.text:
        return text
    value = float(text) if text else 0.0
    if not math.isfinite(value) or value < 0:
        raise ValueError(text)
    return int(value) if value.is_integer() else value


def _read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the rows of one CSV: text, or int or float, 0 for empty cells. Raises BadInput for unknown patterns."""
    try:
        return _read_lines(path)
    except (csv.Error, UnicodeDecodeError) as error:
        raise Malformed(f"{path.name} cannot be parsed as CSV: {error}") from error


def _read_lines(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    errors: list[FieldError] = []
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.reader(handle, strict=True)
        names = next(reader, [])
        _header(path.name, names)
        used_columns = [(k, name) for k, name in enumerate(names) if name not in _MEANINGS.unused]
        for cells in reader:
            if len(cells) != len(names):
                msg = f"{len(cells)} cells where the header names {len(names)} columns"
                errors.append(FieldError((path.name, reader.line_num), msg))
                continue
            row = _read_line(path.name, reader.line_num, used_columns, cells, errors)
            if row["mem_pattern"] not in _MEANINGS.patterns:
                msg = f"unknown pattern {row['mem_pattern']!r}; known are {', '.join(_MEANINGS.patterns)}"
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


def _read_clean(path: Path) -> list[dict[str, Any]]:
    """Return the cleaned rows; `csv_row` is the line in its GPU's CSV, counted from 0."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} is not a Parquet file: {str(error)[:200]}") from error
    missing = [name for name in _MEANINGS.clean.columns if name not in table.column_names]
    if missing:
        raise BadInput(
            f"{path.name} is missing the columns {', '.join(missing)}.",
            errors=[FieldError((path.name, name), "this column is missing") for name in missing],
        )
    rows: list[dict[str, Any]] = table.select(list(_MEANINGS.clean.columns)).to_pylist()
    return rows


def _read_figures(path: Path) -> dict[str, dict[str, float]]:
    """Return measured rates of every GPU by device name, FLOP/s and B/s."""
    try:
        gpus = json.loads(path.read_bytes())
        if not isinstance(gpus, list):
            raise TypeError("not a list")
        return {gpu["device_name"]: _rates(gpu) for gpu in gpus}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"{path.name} is not a list of GPUs with a device_name each: {error!r}") from error


def _rates(gpu: Mapping[str, Any]) -> dict[str, float]:
    rates = {field: float(gpu[name]) * 1e9 for name, field in _MEANINGS.rates.items() if name in gpu}
    if not all(math.isfinite(rate) and rate > 0 for rate in rates.values()):
        raise ValueError(f"{gpu['device_name']} has a rate that is not a positive number")
    return rates


def _workload(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel workload in the API's form, without figures that do not apply."""
    pattern = _MEANINGS.patterns[run["mem_pattern"]]
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
    replaced = {name: clean[column] for name, column in _MEANINGS.clean.replaced.items()}
    kept = {name: value for name, value in run.items() if name != "atomic_ops_count"}
    return {**kept, **replaced, "N": size, "rows": edge, "cols": edge}


def _figures(folder: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return measured figures per GPU: sustained rates from the JSON, triad bandwidth from the CSVs."""
    path = folder / GPU_FILE
    figures = _read_figures(path) if path.exists() else {}
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
) -> tuple[list[Row], list[str], list[SkippedRow]]:
    rows: list[Row] = []
    where: list[str] = []
    skipped: list[SkippedRow] = []
    for clean in _read_clean(path):
        file = f"runs_{clean['gpu']}_final.csv"
        if not 0 <= clean["csv_row"] < len(runs.get(file, ())):
            raise BadInput(f"{path.name} points to row {clean['csv_row']} of {file}, which is not there.")
        run = runs[file][clean["csv_row"]]
        place = f"{file}:{run['line']}"
        if clean["clean"]:
            rows.append(_measurement(_cleaned(run, clean), SOURCE_CLEAN))
            where.append(place)
        else:
            skipped.append(SkippedRow(place, _MEANINGS.clean.flags.get(clean["flag"], clean["flag"])))
    return rows, where, skipped


def read(folder: Path) -> Imported:
    """Return the measurements of a folder. Raises BadInput that names unknown columns and patterns."""
    files = sorted(folder.glob(RUNS))
    if not files:
        raise NotFound(f"No {RUNS} in {folder}.")
    runs = {path.name: _read_runs(path) for path in files}
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
