"""Read Nsight Compute exports: `ncu --csv` with a metric per line (default pages) or a launch per line (`--page raw`).

FLOPs are instructions of the FP16, FP32 and FP64 pipes times active lanes, fused multiply-adds twice. Products on
tensor
cores are not counted this way: launches that used them, or that come from a matrix library without a counter that
excludes it, need a work file. Bytes are traffic to and from DRAM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from app.errors import BadInput
from app.formats.base import Part
from app.formats.profile_sheets import Cells, csv_files, find_table, read_extents, to_si
from app.formats.profiles import (
    Launch,
    ProfileImporter,
    ProfileOptions,
    Times,
    to_parts,
    unread_files,
)
from app.predictors.papers.pm2lat.kernel_names import parse

_EXECUTED = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
_PIPES = {"fp64": "d", "fp32": "f", "fp16": "h"}
_WORTH = {"add": 1.0, "mul": 1.0, "fma": 2.0}
# Metric names by figure, the most reliable first; later names are those of human-readable pages.
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_STATIC = ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block")
_DYNAMIC = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_CLOCK = ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second", "SM Frequency")
_DEVICE = "device__attribute_display_name"
_TENSOR = ("sm__inst_executed_pipe_tensor", "sm__ops_path_tensor", "sm__pipe_tensor")
_LIBRARIES = ("cublas", "cudnn", "cutlass", "cutlass attention", "flash", "triton", "moe")
Metrics = dict[str, float]


def read(path: Path, options: ProfileOptions) -> Iterator[Part]:
    """Yield one part per file. Raises BadInput if no file is an export."""
    files = csv_files(path)
    exports = {file: rows for file in files if (rows := _launches(file)) is not None}
    if not exports:
        raise BadInput(f"{path} has no export of `ncu --csv`.")
    for file, (launches, cut) in exports.items():
        yield from to_parts(file.name, launches, options, _unknown_work, cut)
    yield from unread_files([file for file in files if file not in exports], options)


def _launches(file: Path) -> tuple[dict[Launch, Times], int] | None:
    """Return the launches of an export, and the number of lines that are not rows; None if it is no export."""
    long = find_table(file, lambda names: {"ID", "Kernel Name", "Metric Name", "Metric Value"} <= set(names))
    wide = (
        None if long else find_table(file, lambda names: {"ID", "Kernel Name", "Block Size", "Grid Size"} <= set(names))
    )
    rows = long or wide
    if rows is None:
        return None
    launches: dict[Launch, Times] = {}
    for about, metrics in _by_launch(rows) if long else _wide(iter(rows)):
        shared = [_first_metric(metrics, names) for names in (_STATIC, _DYNAMIC)]
        counted = _counted(about, metrics)
        launch = Launch(
            about["Kernel Name"].strip(),
            about.get(_DEVICE) or None,
            _dims(about.get("Grid Size", "")),
            _dims(about.get("Block Size", "")),
            _first_metric(metrics, _REGISTERS),
            None if shared == [None, None] else round(sum(size or 0.0 for size in shared)),
            counted.get("flops"),
        )
        times = launches.setdefault(launch, Times(counted=counted, clock_hz=_first_metric(metrics, _CLOCK)))
        times.add(_first_metric(metrics, _DURATION))
    return launches, rows.cut


def _by_launch(rows: Iterable[Cells]) -> Iterator[tuple[Cells, Metrics]]:
    """Yield the launches of an export with a metric per line; lines of one launch are adjacent."""
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
        elif (value := to_si(cell, row.get("Metric Unit", ""))) is not None:
            metrics[name] = value
    if about:
        yield about, metrics


def _wide(rows: Iterator[Cells]) -> Iterator[tuple[Cells, Metrics]]:
    """Yield the launches of an export with a launch per line, whose first line has the units."""
    units = next(rows, {})
    for row in rows:
        figures = {name: to_si(cell, units.get(name, "")) for name, cell in row.items()}
        yield row, {name: value for name, value in figures.items() if value is not None}


def _first_metric(metrics: Metrics, names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _dims(cell: str) -> tuple[int, ...] | None:
    """Return a grid or block from (64, 64, 1) or 64x64x1."""
    return read_extents(cell.strip().strip("()").replace("x", ",").split(","))


def _counted(about: Cells, metrics: Metrics) -> dict[str, Any]:
    """Return counted fields of the workload: FLOPs with their most frequent format, bytes, and the launch size."""
    flops = {} if _on_tensor_cores(about["Kernel Name"], metrics) else _flops(metrics)
    ways = [metrics[name] for name in ("dram__bytes_read.sum", "dram__bytes_write.sum") if name in metrics]
    moved = metrics.get("dram__bytes.sum", sum(ways) if len(ways) == 2 else None)
    counted = {
        "flops": sum(flops.values()) if flops else None,
        "dtype": max(flops.items(), key=itemgetter(1))[0] if any(flops.values()) else None,
        "bytes": None if moved is None else round(moved),
        "blocks": _first_metric(metrics, ("launch__grid_size", "Grid Size")),
        "threads_per_block": _first_metric(metrics, ("launch__block_size", "Block Size")),
    }
    return {name: value for name, value in counted.items() if value is not None}


def _flops(metrics: Metrics) -> Mapping[str, float]:
    """Return FLOPs per format; none unless the instructions of all formats were counted."""
    flops = dict.fromkeys(_PIPES, 0.0)
    for dtype, letter in _PIPES.items():
        for kind, worth in _WORTH.items():
            count = metrics.get(_EXECUTED.format(letter + kind))
            if count is None:
                return {}
            flops[dtype] += worth * count
    return flops


def _on_tensor_cores(kernel: str, metrics: Metrics) -> bool:
    """Return whether a launch may have used tensor cores, whose FLOPs are not counted."""
    counts = [value for name, value in metrics.items() if name.startswith(_TENSOR)]
    return any(counts) if counts else parse(kernel).library in _LIBRARIES


def _unknown_work(launch: Launch, times: Times) -> str | None:
    missing = [name for name in ("flops", "bytes") if name not in times.counted]
    return f"{' and '.join(missing)} were not counted, and no work file has them" if missing else None


IMPORTERS = {"ncu": ProfileImporter("ncu", read)}
