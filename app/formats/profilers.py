"""Read exports of NVIDIA's profilers, Nsight Systems and Nsight Compute.

`nsys stats --format csv` counts no FLOPs and no bytes: launches become measurements if a work file describes them.
cuda_gpu_trace     every launch with its grid, block, registers and shared memory
cuda_gpu_kern_sum  sums per kernel (or cuda_gpu_kern_gb_sum); skipped if the folder has a trace
nvtx_kern_sum      kernels by enclosing NVTX range: a range whose text is an operator in JSON,
                   {"op": "linear", "m": 4096, ...}, is that operator, and its kernels' sum is its time

`ncu --csv` has a metric per line (default pages) or a launch per line (`--page raw`). FLOPs are instructions of the
FP16, FP32 and FP64 pipes times active lanes, fused multiply-adds twice. Products on tensor cores are not counted this
way: launches that used them, or that come from a matrix library without a counter that excludes it, need a work file.
Bytes are traffic to and from DRAM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from app.config import SEED_DATA
from app.formats.profile_sheets import Cells, find_table, read_extents, to_si
from app.formats.profiles import KernelLaunch, LaunchTimes, ProfileImporter, ProfileReport
from app.predictors.papers.pm2lat.kernel_names import parse

_UNIT = re.compile(r"(.*) \(([^)]+)\)$")
_INDEX = re.compile(r" \(\d+\)$")
_TRACE, _SUMS = "cuda_gpu_trace", "cuda_gpu_kern_sum"
_MEDIAN = "Med"
_AVERAGED = "this nsys version prints no medians: times are averages, which include slow first launches"
TimesByLaunch = dict[KernelLaunch, LaunchTimes]
_EXECUTED = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
_PIPES = {"fp64": "d", "fp32": "f", "fp16": "h"}
_WORTH = {"add": 1.0, "mul": 1.0, "fma": 2.0}
_NAMES: dict[str, list[str]] = json.loads((SEED_DATA / "formats" / "profilers.json").read_text("utf-8"))["metrics"]
_DEVICE = "device__attribute_display_name"
Metrics = dict[str, float]


def _nsys_reports(file: Path) -> Iterator[ProfileReport]:
    """Yield the reports of a file; without --output nsys prints several into one."""
    for name, (columns, gather) in _NSYS_REPORTS.items():
        if (rows := find_table(file, partial(_has, columns))) is not None:
            launches = gather(rows)
            averaged = name == _SUMS and not _has({_MEDIAN}, rows.names)
            notes = (f"{file.name}: {_AVERAGED}",) if averaged else ()
            yield ProfileReport(file.name, name, launches, rows.cut, _TRACE if name == _SUMS else "", notes)


def _has(columns: Collection[str], names: Sequence[str]) -> bool:
    return set(columns) <= {_bare(name) for name in names}


def _bare(name: str) -> str:
    """Return a column's name without its unit."""
    match = _UNIT.match(name.strip())
    return match[1] if match else name.strip()


def _figure(row: Cells, column: str) -> float | None:
    """Return a figure in SI units, with the unit in its column's name."""
    for name, cell in row.items():
        if _bare(name) == column:
            unit = _UNIT.match(name.strip())
            return to_si(cell, unit[2] if unit else "")
    return None


def _trace(rows: Iterable[Cells]) -> TimesByLaunch:
    """Return launches of cuda_gpu_trace, grouped by equal properties; copies have no grid."""
    launches: TimesByLaunch = {}
    for row in rows:
        grid, block = (read_extents([row[f"{what}{axis}"] for axis in "XYZ"]) for what in ("Grd", "Blk"))
        shared = [_figure(row, name) for name in ("StcSMem", "DymSMem")]
        launch = KernelLaunch(
            row["Name"].strip(),
            _INDEX.sub("", row.get("Device", "").strip()) or None,
            grid,
            block,
            to_si(row.get("Reg/Trd", "")),
            None if grid is None else round(sum(size or 0.0 for size in shared)),
        )
        launches.setdefault(launch, LaunchTimes()).add(_figure(row, "Duration"))
    return launches


def _sums(rows: Iterable[Cells]) -> TimesByLaunch:
    """Return kernels of cuda_gpu_kern_sum, or of cuda_gpu_kern_gb_sum, which separates grids and blocks.

    Older versions of nsys give no median.
    """
    launches: TimesByLaunch = {}
    for row in rows:
        grid, block = (read_extents(row.get(f"{what}XYZ", "").split()) for what in ("Grid", "Block"))
        runs, total = to_si(row["Instances"]), _figure(row, "Total Time")
        times = launches.setdefault(
            KernelLaunch(row["Name"].strip(), None, grid, block), LaunchTimes(runs=int(runs) if runs else None)
        )
        average = total / runs if total and runs else None
        times.add(_figure(row, _MEDIAN) if runs and _has({_MEDIAN}, list(row)) else average)
    return launches


def _ranges(rows: Iterable[Cells]) -> TimesByLaunch:
    """Return ranges of nvtx_kern_sum with the sum of their kernels per run; a range is untimed if any kernel is."""
    launches: TimesByLaunch = {}
    for row in rows:
        total, runs = _figure(row, "Total Time"), to_si(row["NVTX Inst"])
        # A range of the default domain begins with a colon.
        text = row["NVTX Range"].strip().removeprefix(":")
        times = launches.setdefault(
            KernelLaunch(text, None), LaunchTimes(runs=int(runs) if runs else None, workload=_operator(text))
        )
        times.add(total / runs if total and runs else None)
    for times in launches.values():
        times.seconds = [] if times.untimed else [sum(times.seconds)]
    return launches


def _operator(text: str) -> dict[str, Any] | None:
    """Return the operator in a range's text, or None."""
    try:
        operator = json.loads(text)
    except ValueError:
        return None
    return operator if isinstance(operator, dict) and "op" in operator else None


# ProfileReport name -> columns, without units, that identify it, and its reader.
_NSYS_REPORTS: dict[str, tuple[set[str], Callable[[Iterable[Cells]], TimesByLaunch]]] = {
    _TRACE: ({"Duration", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "Name"}, _trace),
    "nvtx_kern_sum": ({"NVTX Range", "NVTX Inst", "Total Time"}, _ranges),
    _SUMS: ({"Total Time", "Instances", "Name"}, _sums),
}


def ncu_reports(file: Path) -> Iterator[ProfileReport]:
    """Yield the launches of an export, if the file is one."""
    long = find_table(file, lambda names: {"ID", "Kernel Name", "Metric Name", "Metric Value"} <= set(names))
    wide = (
        None if long else find_table(file, lambda names: {"ID", "Kernel Name", "Block Size", "Grid Size"} <= set(names))
    )
    rows = long or wide
    if rows is None:
        return
    launches: TimesByLaunch = {}
    for about, metrics in _by_launch(rows) if long else _wide(iter(rows)):
        shared = [_first_metric(metrics, names) for names in (_NAMES["static"], _NAMES["dynamic"])]
        counted = _counted(about, metrics)
        launch = KernelLaunch(
            about["Kernel Name"].strip(),
            about.get(_DEVICE) or None,
            _dims(about.get("Grid Size", "")),
            _dims(about.get("Block Size", "")),
            _first_metric(metrics, _NAMES["registers"]),
            None if shared == [None, None] else round(sum(size or 0.0 for size in shared)),
            counted.get("flops"),
        )
        times = launches.setdefault(
            launch, LaunchTimes(counted=counted, clock_hz=_first_metric(metrics, _NAMES["clock"]))
        )
        times.add(_first_metric(metrics, _NAMES["duration"]))
    yield ProfileReport(file.name, "launches", launches, rows.cut)


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


def _first_metric(metrics: Metrics, names: Sequence[str]) -> float | None:
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
    counts = [value for name, value in metrics.items() if name.startswith(tuple(_NAMES["tensor"]))]
    return any(counts) if counts else parse(kernel).library in _NAMES["libraries"]


def _uncounted(launch: KernelLaunch, times: LaunchTimes) -> str | None:
    missing = [name for name in ("flops", "bytes") if name not in times.counted]
    return f"{' and '.join(missing)} were not counted, and no work file has them" if missing else None


IMPORTERS = {
    "nsys": ProfileImporter(
        "nsys",
        _nsys_reports,
        lambda launch, times: "neither its FLOPs and bytes nor its operator are known",
        f"none of the reports {', '.join(_NSYS_REPORTS)} of `nsys stats --format csv`",
    ),
    "ncu": ProfileImporter("ncu", ncu_reports, _uncounted, "no export of `ncu --csv`"),
}
