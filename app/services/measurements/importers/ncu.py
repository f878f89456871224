"""Nsight Compute: `ncu --csv`, a metric a line (the default pages) or a launch a line with its units (`--page raw`).

FLOPs are instructions of the FP16, FP32 and FP64 pipes by the lanes that ran them, fused multiply-adds twice. Products
on tensor cores are not counted so: launches that used them, or that a library of matrix products made and no counter
clears of it, are left to a file of work. Bytes are what went to and from DRAM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from app.errors import BadInput
from app.predictors.papers.pm2lat.kernel_names import parse
from app.services.measurements.importers.base import Part
from app.services.measurements.importers.profile_sheets import Cells, csv_files, extents, figure, sheet
from app.services.measurements.importers.profiles import Launch, ProfileImporter, Times, Told, parts, unread

_EXECUTED = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
_PIPES = {"fp64": "d", "fp32": "f", "fp16": "h"}
_WORTH = {"add": 1.0, "mul": 1.0, "fma": 2.0}
# Metrics by what they tell, the surest first; the second names are those of the pages for people.
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_STATIC = ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block")
_DYNAMIC = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_CLOCK = ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second", "SM Frequency")
_DEVICE = "device__attribute_display_name"
_TENSOR = ("sm__inst_executed_pipe_tensor", "sm__ops_path_tensor", "sm__pipe_tensor")
_LIBRARIES = ("cublas", "cudnn", "cutlass", "cutlass attention", "flash", "triton", "moe")
Metrics = dict[str, float]


def read(path: Path, told: Told) -> Iterator[Part]:
    """A part per file; BadInput where none is an export."""
    files = csv_files(path)
    exports = {file: found for file in files if (found := _launches(file)) is not None}
    if not exports:
        raise BadInput(f"{path} holds no export of `ncu --csv`.")
    for file, (launches, cut) in exports.items():
        yield from parts(file.name, launches, told, _lacks, cut)
    yield from unread([file for file in files if file not in exports], told)


def _launches(file: Path) -> tuple[dict[Launch, Times], int] | None:
    """The launches of an export, and its lines that are no rows."""
    long = sheet(file, lambda names: {"ID", "Kernel Name", "Metric Name", "Metric Value"} <= set(names))
    wide = None if long else sheet(file, lambda names: {"ID", "Kernel Name", "Block Size", "Grid Size"} <= set(names))
    rows = long or wide
    if rows is None:
        return None
    found: dict[Launch, Times] = {}
    for about, metrics in _by_launch(rows) if long else _wide(iter(rows)):
        shared = [_first(metrics, names) for names in (_STATIC, _DYNAMIC)]
        counted = _counted(about, metrics)
        launch = Launch(
            about["Kernel Name"].strip(),
            about.get(_DEVICE) or None,
            _dims(about.get("Grid Size", "")),
            _dims(about.get("Block Size", "")),
            _first(metrics, _REGISTERS),
            None if shared == [None, None] else round(sum(size or 0.0 for size in shared)),
            counted.get("flops"),
        )
        times = found.setdefault(launch, Times(counted=counted, clock_hz=_first(metrics, _CLOCK)))
        times.add(_first(metrics, _DURATION))
    return found, rows.cut


def _by_launch(rows: Iterable[Cells]) -> Iterator[tuple[Cells, Metrics]]:
    """Launches of an export of a metric a line: those of one launch stand together."""
    about: Cells = {}
    metrics: Metrics = {}
    for row in rows:
        if about and row["ID"] != about["ID"]:
            yield about, metrics
            about, metrics = {}, {}
        name, cell = row["Metric Name"], row["Metric Value"]
        about = about or dict(row)
        if name == _DEVICE:
            about = {**about, _DEVICE: cell}
        elif (value := figure(cell, row.get("Metric Unit", ""))) is not None:
            metrics[name] = value
    if about:
        yield about, metrics


def _wide(rows: Iterator[Cells]) -> Iterator[tuple[Cells, Metrics]]:
    """Launches of an export of a launch a line, whose first line has the units."""
    units = next(rows, {})
    for row in rows:
        figures = {name: figure(cell, units.get(name, "")) for name, cell in row.items()}
        yield row, {name: value for name, value in figures.items() if value is not None}


def _first(metrics: Metrics, names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _dims(cell: str) -> tuple[int, ...] | None:
    """A grid or block as (64, 64, 1) or 64x64x1."""
    return extents(cell.strip().strip("()").replace("x", ",").split(","))


def _counted(about: Cells, metrics: Metrics) -> dict[str, Any]:
    """Fields of the workload that were counted: FLOPs with the format of most of them, bytes, and the launch's size."""
    flops = {} if _on_tensor_cores(about["Kernel Name"], metrics) else _flops(metrics)
    ways = [metrics[name] for name in ("dram__bytes_read.sum", "dram__bytes_write.sum") if name in metrics]
    moved = metrics.get("dram__bytes.sum", sum(ways) if len(ways) == 2 else None)
    counted = {
        "flops": sum(flops.values()) if flops else None,
        "dtype": max(flops.items(), key=itemgetter(1))[0] if any(flops.values()) else None,
        "bytes": None if moved is None else round(moved),
        "blocks": _first(metrics, ("launch__grid_size", "Grid Size")),
        "threads_per_block": _first(metrics, ("launch__block_size", "Block Size")),
    }
    return {name: value for name, value in counted.items() if value is not None}


def _flops(metrics: Metrics) -> Mapping[str, float]:
    """FLOPs of each format; none unless the instructions of all were counted."""
    found = dict.fromkeys(_PIPES, 0.0)
    for dtype, letter in _PIPES.items():
        for kind, worth in _WORTH.items():
            count = metrics.get(_EXECUTED.format(letter + kind))
            if count is None:
                return {}
            found[dtype] += worth * count
    return found


def _on_tensor_cores(kernel: str, metrics: Metrics) -> bool:
    """Whether a launch may have computed where its FLOPs are not counted."""
    counts = [value for name, value in metrics.items() if name.startswith(_TENSOR)]
    return any(counts) if counts else parse(kernel).library in _LIBRARIES


def _lacks(launch: Launch, times: Times) -> str | None:
    missing = [name for name in ("flops", "bytes") if name not in times.counted]
    return f"{' and '.join(missing)} were not counted, and no file of work tells them" if missing else None


IMPORTER = ProfileImporter("ncu", read)
