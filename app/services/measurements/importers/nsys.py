"""Nsight Systems: what `nsys stats --format csv` writes of a run.

cuda_gpu_trace     every launch with its grid, block, registers and shared memory
cuda_gpu_kern_sum  the same summed by kernel (or cuda_gpu_kern_gb_sum); left out where the folder has a trace
nvtx_kern_sum      kernels by the NVTX range around them: a range whose text is an operator in JSON,
                   {"op": "linear", "m": 4096, ...}, is that operator, which took the sum of its kernels

Nsight Systems counts no FLOPs and no bytes: launches become measurements where a file of work tells of them.
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
from app.services.measurements.importers.base import Part
from app.services.measurements.importers.profile_sheets import Cells, csv_files, extents, figure, sheet
from app.services.measurements.importers.profiles import Launch, ProfileImporter, Times, Told, parts, unread
from app.wire.measurements.upload import Objects

_UNIT = re.compile(r"(.*) \(([^)]+)\)$")
_INDEX = re.compile(r" \(\d+\)$")
_TRACE, _SUMS = "cuda_gpu_trace", "cuda_gpu_kern_sum"
_MEDIAN = "Med"
_AVERAGED = "this nsys printed no medians: times are averages, in which slow first launches count"
Found = dict[Launch, Times]


class _Report(NamedTuple):
    file: str
    name: str
    found: Found
    cut: int
    notes: tuple[str, ...]


def read(path: Path, told: Told) -> Iterator[Part]:
    """A part per report that is known, and what is none; BadInput where none is."""
    files = csv_files(path)
    reports = [report for file in files for report in _reports(file)]
    if not reports:
        raise BadInput(f"{path} holds no report that is read: {', '.join(_REPORTS)} of `nsys stats --format csv`.")
    traced = any(report.name == _TRACE for report in reports)
    for report in reports:
        if traced and report.name == _SUMS:
            again = Counter({"kernels summed: the trace has each launch of them": len(report.found)})
            yield Part(report.file, Objects.of(()), None, again)
        else:
            for part in parts(report.file, report.found, told, _lacks, report.cut):
                yield replace(part, notes=report.notes)
    named = {report.file for report in reports}
    yield from unread([file for file in files if file.name not in named], told)


def _reports(file: Path) -> Iterator[_Report]:
    """Those of a file: what nsys prints without --output are several."""
    for name, (columns, gather) in _REPORTS.items():
        if (rows := sheet(file, partial(_has, columns))) is not None:
            found = gather(rows)
            averaged = name == _SUMS and not _has({_MEDIAN}, rows.names)
            yield _Report(file.name, name, found, rows.cut, (f"{file.name}: {_AVERAGED}",) if averaged else ())


def _has(columns: Collection[str], names: Sequence[str]) -> bool:
    return set(columns) <= {_bare(name) for name in names}


def _bare(name: str) -> str:
    """A column's name without its unit."""
    found = _UNIT.match(name.strip())
    return found[1] if found else name.strip()


def _figure(row: Cells, column: str) -> float | None:
    """A figure in SI units, by the unit in its column's name."""
    for name, cell in row.items():
        if _bare(name) == column:
            unit = _UNIT.match(name.strip())
            return figure(cell, unit[2] if unit else "")
    return None


def _trace(rows: Iterable[Cells]) -> Found:
    """Launches of cuda_gpu_trace by what they have in common; copies have no grid."""
    found: Found = {}
    for row in rows:
        grid, block = (extents([row[f"{what}{axis}"] for axis in "XYZ"]) for what in ("Grd", "Blk"))
        shared = [_figure(row, name) for name in ("StcSMem", "DymSMem")]
        launch = Launch(
            row["Name"].strip(),
            _INDEX.sub("", row.get("Device", "").strip()) or None,
            grid,
            block,
            figure(row.get("Reg/Trd", "")),
            None if grid is None else round(sum(size or 0.0 for size in shared)),
        )
        found.setdefault(launch, Times()).add(_figure(row, "Duration"))
    return found


def _sums(rows: Iterable[Cells]) -> Found:
    """Kernels of cuda_gpu_kern_sum, or of cuda_gpu_kern_gb_sum, which keeps grids and blocks apart.

    Of an older nsys they have no median.
    """
    found: Found = {}
    for row in rows:
        grid, block = (extents(row.get(f"{what}XYZ", "").split()) for what in ("Grid", "Block"))
        runs, total = figure(row["Instances"]), _figure(row, "Total Time")
        times = found.setdefault(
            Launch(row["Name"].strip(), None, grid, block), Times(runs=int(runs) if runs else None)
        )
        average = total / runs if total and runs else None
        times.add(_figure(row, _MEDIAN) if runs and _has({_MEDIAN}, list(row)) else average)
    return found


def _ranges(rows: Iterable[Cells]) -> Found:
    """Ranges of nvtx_kern_sum, each with the sum of its kernels in one run of it; none of which one has no time."""
    found: Found = {}
    for row in rows:
        total, runs = _figure(row, "Total Time"), figure(row["NVTX Inst"])
        # A range of the default domain begins with a colon.
        text = row["NVTX Range"].strip().removeprefix(":")
        times = found.setdefault(Launch(text, None), Times(runs=int(runs) if runs else None, workload=_operator(text)))
        times.add(total / runs if total and runs else None)
    for times in found.values():
        times.seconds = [] if times.untimed else [sum(times.seconds)]
    return found


def _operator(text: str) -> dict[str, Any] | None:
    """The operator that a range's text is."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) and "op" in told else None


def _lacks(launch: Launch, times: Times) -> str:
    return "nothing tells its FLOPs and bytes, or its operator"


# By the name of the report: columns, without units, that tell it, and what reads it.
_REPORTS: dict[str, tuple[set[str], Callable[[Iterable[Cells]], Found]]] = {
    _TRACE: ({"Duration", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ", "Name"}, _trace),
    "nvtx_kern_sum": ({"NVTX Range", "NVTX Inst", "Total Time"}, _ranges),
    _SUMS: ({"Total Time", "Instances", "Name"}, _sums),
}

IMPORTER = ProfileImporter("nsys", read)
