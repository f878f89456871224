"""Read Nsight Systems reports, as written by `nsys stats --format csv`.

cuda_gpu_trace     every launch with its grid, block, registers and shared memory
cuda_gpu_kern_sum  sums per kernel (or cuda_gpu_kern_gb_sum); skipped if the folder has a trace
nvtx_kern_sum      kernels by enclosing NVTX range: a range whose text is an operator in JSON,
                   {"op": "linear", "m": 4096, ...}, is that operator, and its kernels' sum is its time

Nsight Systems counts no FLOPs and no bytes: launches become measurements if a work file describes them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from app.wire.measurements.upload import Objects

_UNIT = re.compile(r"(.*) \(([^)]+)\)$")
_INDEX = re.compile(r" \(\d+\)$")
_TRACE, _SUMS = "cuda_gpu_trace", "cuda_gpu_kern_sum"
_MEDIAN = "Med"
_AVERAGED = "this nsys version prints no medians: times are averages, which include slow first launches"
LaunchTimes = dict[Launch, Times]


class _Report(NamedTuple):
    file: str
    name: str
    found: LaunchTimes
    cut: int
    notes: tuple[str, ...]


def read(path: Path, options: ProfileOptions) -> Iterator[Part]:
    """Yield one part per known report, and the unread files. Raises BadInput if there is no known report."""
    files = csv_files(path)
    reports = [report for file in files for report in _reports(file)]
    if not reports:
        raise BadInput(f"{path} has none of the reports {', '.join(_REPORTS)} of `nsys stats --format csv`.")
    traced = any(report.name == _TRACE for report in reports)
    for report in reports:
        if traced and report.name == _SUMS:
            duplicates = Counter({"kernel sums: the trace has each of their launches": len(report.found)})
            yield Part(report.file, Objects.of(()), None, duplicates)
        else:
            for part in to_parts(report.file, report.found, options, _unknown_work, report.cut):
                yield replace(part, notes=report.notes)
    named = {report.file for report in reports}
    yield from unread_files([file for file in files if file.name not in named], options)


def _reports(file: Path) -> Iterator[_Report]:
    """Yield the reports of a file; without --output nsys prints several into one."""
    for name, (columns, gather) in _REPORTS.items():
        if (rows := find_table(file, partial(_has, columns))) is not None:
            launches = gather(rows)
            averaged = name == _SUMS and not _has({_MEDIAN}, rows.names)
            yield _Report(file.name, name, launches, rows.cut, (f"{file.name}: {_AVERAGED}",) if averaged else ())


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


def _trace(rows: Iterable[Cells]) -> LaunchTimes:
    """Return launches of cuda_gpu_trace, grouped by equal properties; copies have no grid."""
    launches: LaunchTimes = {}
    for row in rows:
        grid, block = (read_extents([row[f"{what}{axis}"] for axis in "XYZ"]) for what in ("Grd", "Blk"))
        shared = [_figure(row, name) for name in ("StcSMem", "DymSMem")]
        launch = Launch(
            row["Name"].strip(),
            _INDEX.sub("", row.get("Device", "").strip()) or None,
            grid,
            block,
            to_si(row.get("Reg/Trd", "")),
            None if grid is None else round(sum(size or 0.0 for size in shared)),
        )
        launches.setdefault(launch, Times()).add(_figure(row, "Duration"))
    return launches


def _sums(rows: Iterable[Cells]) -> LaunchTimes:
    """Return kernels of cuda_gpu_kern_sum, or of cuda_gpu_kern_gb_sum, which separates grids and blocks.

    Older versions of nsys give no median.
    """
    launches: LaunchTimes = {}
    for row in rows:
        grid, block = (read_extents(row.get(f"{what}XYZ", "").split()) for what in ("Grid", "Block"))
        runs, total = to_si(row["Instances"]), _figure(row, "Total Time")
        times = launches.setdefault(
            Launch(row["Name"].strip(), None, grid, block), Times(runs=int(runs) if runs else None)
        )
        average = total / runs if total and runs else None
        times.add(_figure(row, _MEDIAN) if runs and _has({_MEDIAN}, list(row)) else average)
    return launches


def _ranges(rows: Iterable[Cells]) -> LaunchTimes:
    """Return ranges of nvtx_kern_sum with the sum of their kernels per run; a range is untimed if any kernel is."""
    launches: LaunchTimes = {}
    for row in rows:
        total, runs = _figure(row, "Total Time"), to_si(row["NVTX Inst"])
        # A range of the default domain begins with a colon.
        text = row["NVTX Range"].strip().removeprefix(":")
        times = launches.setdefault(
            Launch(text, None), Times(runs=int(runs) if runs else None, workload=_operator(text))
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


def _unknown_work(launch: Launch, times: Times) -> str:
    return "neither its FLOPs and bytes nor its operator are known"


# Report name -> columns, without units, that identify it, and its reader.
_REPORTS: dict[str, tuple[set[str], Callable[[Iterable[Cells]], LaunchTimes]]] = {
    _TRACE: ({"Duration", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "Name"}, _trace),
    "nvtx_kern_sum": ({"NVTX Range", "NVTX Inst", "Total Time"}, _ranges),
    _SUMS: ({"Total Time", "Instances", "Name"}, _sums),
}

IMPORTERS = {"nsys": ProfileImporter("nsys", read)}
