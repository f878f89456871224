"""Shared by importers of profiler exports: group equal launches, and add their work.

A profiler reports how long a kernel ran, and perhaps counters. The user describes its work in a work file: CSV with a
column `kernel` (the symbol, `*` matches any part), optionally `grid` (64x64x1), and either the fields of a kernel
(`flops`, `bytes`, ...) or those of an operator (`op`, `m`, ...) that one launch computes.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median, pstdev
from typing import Any, NamedTuple

from app.errors import BadInput, FieldError
from app.formats.base import Part, PartsImporter
from app.formats.profile_sheets import Cells, csv_files, find_table
from app.ops.kernel import SIZE_FIELDS
from app.wire.measurement_form import Objects

# Kernels without known work that are listed individually.
_LISTED = 30
_LONGEST_NAME = 200
_UNTIMED = "has no time"


class KernelLaunch(NamedTuple):
    """Equal launches: the kernel's symbol, launch configuration, and counted FLOPs.

    None where the export has no value.
    """

    kernel: str
    device: str | None
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers_per_thread: float | None = None
    shared_memory_per_block: float | None = None
    flops: float | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a kernel's workload."""
        fields = {
            "blocks": None if self.grid is None else prod(self.grid),
            "threads_per_block": None if self.block is None else prod(self.block),
            "registers_per_thread": self.registers_per_thread,
            "shared_memory_per_block": self.shared_memory_per_block,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(slots=True)
class LaunchTimes:
    """Times of equal launches, seconds each, and other figures of the export.

    `counted` are fields of a kernel's workload; `workload` is all of it if the export identifies it. `runs` counts
    launches if `seconds` are not per launch; `untimed` counts launches without a time.
    """

    seconds: list[float] = field(default_factory=list)
    runs: int | None = None
    untimed: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] | None = None
    clock_hz: float | None = None

    def add(self, seconds: float | None) -> None:
        """Add one launch."""
        if seconds is not None and seconds > 0.0:
            self.seconds.append(seconds)
        else:
            self.untimed += 1

    @property
    def launches(self) -> int:
        """Number of timed launches."""
        return self.runs or len(self.seconds)

    @property
    def total_s(self) -> float:
        """Time of all launches, seconds."""
        return sum(self.seconds) * self.launches / max(len(self.seconds), 1)


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of an import: the GPU instead of the export's, the software, and the work file."""

    gpu: str | None = None
    software: str = "cuda"
    work: Path | None = None


class ProfileReport(NamedTuple):
    """Launches of a report in a file.

    cut     number of lines that are not rows
    within  name of a report that has each of these launches; empty: none has
    """

    file: str
    name: str
    launches: Mapping[KernelLaunch, LaunchTimes]
    cut: int
    within: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileImporter:
    """Importer of a profiler's exports: like PartsImporter, with options.

    reports       returns the known reports of a file
    unknown_work  returns what an export lacks of a launch, or None
    absent        what a folder without known reports lacks
    """

    name: str
    reports: Callable[[Path], Iterable[ProfileReport]]
    unknown_work: Callable[[KernelLaunch, LaunchTimes], str | None]
    absent: str

    def with_options(self, options: ProfileOptions) -> PartsImporter:
        """Return the importer with these options."""
        return PartsImporter(self.name, lambda path: self._read(path, options))

    def _read(self, path: Path, options: ProfileOptions) -> Iterator[Part]:
        """Yield a part per known report and per unread file. Raises BadInput if there is no known report."""
        files = csv_files(path)
        reports = [report for file in files for report in self.reports(file)]
        if not reports:
            raise BadInput(f"{path} has {self.absent}.")
        names = {report.name for report in reports}
        for report in reports:
            if report.within in names:
                duplicates = Counter({"kernel sums: the trace has each of their launches": len(report.launches)})
                yield Part(report.file, Objects.of(()), None, duplicates)
            else:
                yield _part(report, options, self.unknown_work)
        read = {report.file for report in reports}
        for file in files:
            if file.name not in read and (options.work is None or file.resolve() != options.work.resolve()):
                yield Part(file.name, Objects.of(()), None, Counter({f"{file.name}: no known report": 1}))


class DescribedWork(NamedTuple):
    """A line of the work file: the launches it matches, and the workload of one launch in the API's form."""

    pattern: re.Pattern[str]
    grid: str | None
    workload: dict[str, Any]


def _read_work(path: Path | None) -> list[DescribedWork]:
    """Return the lines of the work file. Raises BadInput without a column `kernel`, or a line without work."""
    if path is None:
        return []
    rows = find_table(path, lambda names: "kernel" in names)
    if rows is None:
        raise BadInput(
            f"{path.name}: a work file needs a column `kernel`.", errors=[FieldError(("kernel",), "missing")]
        )
    return [_work(path.name, number, row) for number, row in enumerate(rows)]


def _work(name: str, number: int, row: Cells) -> DescribedWork:
    fields = {key.strip(): _plain(cell.strip()) for key, cell in row.items() if cell.strip()}
    kernel, grid = str(fields.pop("kernel", "")), fields.pop("grid", None)
    if not kernel or not ("op" in fields or "flops" in fields or "bytes" in fields):
        message = "give the kernel, and either its operator (op, ...) or its flops and bytes"
        raise BadInput(f"{name} row {number}: {message}.", errors=[FieldError((number,), message)])
    if "op" not in fields:
        size = {name: fields.pop(name) for name in SIZE_FIELDS if name in fields}
        fields |= {"size": size} if size else {}
    pattern = re.compile(".*".join(map(re.escape, kernel.split("*"))), re.DOTALL)
    return DescribedWork(pattern, None if grid is None else str(grid), fields)


def _plain(cell: str) -> Any:
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() else value


def _part(
    report: ProfileReport, options: ProfileOptions, unknown_work: Callable[[KernelLaunch, LaunchTimes], str | None]
) -> Part:
    """Return launches as measurements, and those of unknown work as skipped, with their share of the time."""
    work = _read_work(options.work)
    rows, left = list[dict[str, Any]](), dict[tuple[str, str], list[LaunchTimes]]()
    for launch, times in report.launches.items():
        if times.untimed:
            left.setdefault((launch.kernel, _UNTIMED), []).append(LaunchTimes(runs=times.untimed))
        if not times.seconds:
            continue
        described = times.workload or _described_work(launch, work)
        reason = None if described else unknown_work(launch, times)
        if reason is None:
            rows.append(_row(launch, times, options, described or {}))
        else:
            left.setdefault((launch.kernel, reason), []).append(times)
    total = sum(times.total_s for times in report.launches.values()) or 1.0
    skipped = _listed(left, total) + Counter(
        {f"{report.file}: lines that are not rows of the table, as in a truncated file": report.cut}
    )
    return Part(report.file, Objects.of(rows), None, skipped, notes=report.notes)


def _described_work(launch: KernelLaunch, work: Iterable[DescribedWork]) -> dict[str, Any] | None:
    """Return the workload of the first matching line of the work file, or None."""
    grid = "x".join(map(str, launch.grid or ()))
    for line in work:
        if line.pattern.fullmatch(launch.kernel) and line.grid in (None, grid):
            return line.workload
    return None


def _listed(left: Mapping[tuple[str, str], Sequence[LaunchTimes]], total_s: float) -> Counter[str]:
    """Return the skipped kernels, longest first; those after the first _LISTED in one entry."""
    by_time = sorted(left.items(), key=lambda item: -sum(times.total_s for times in item[1]))
    listed = Counter[str]()
    for (kernel, reason), every in by_time[:_LISTED]:
        listed[f"{kernel}: {reason} ({_share(every, total_s)})"] = len(every)
    if rest := [times for _, every in by_time[_LISTED:] for times in every]:
        listed[f"other kernels ({_share(rest, total_s)})"] = len(rest)
    return listed


def _share(every: Sequence[LaunchTimes], total_s: float) -> str:
    launches, seconds = sum(times.launches for times in every), sum(times.total_s for times in every)
    return f"{launches:,} launches, {seconds / total_s:.1%} of the GPU time"


def _row(
    launch: KernelLaunch, times: LaunchTimes, options: ProfileOptions, described: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a measurement in the API's form, with the median time, because first launches are often slow."""
    if "op" in described:
        workload = {"kind": "operator", **described}
    else:
        workload = {"kind": "kernel", "name": short_name(launch.kernel), **launch.fields, **times.counted, **described}
        # Measured traffic already includes the cost of poor access patterns.
        workload.setdefault("access_pattern", "coalesced")
        workload.setdefault("dtype", "fp32")
        if "bytes" in workload:
            workload.setdefault("working_set_bytes", workload["bytes"])
    symbol = None if times.workload else launch.kernel[:2000]
    kernel = {"name": symbol, "grid": launch.grid, "block": launch.block}
    row = {
        "gpu": gpu_name(launch.device, options),
        "software": options.software,
        "source": "profiler",
        "workload": workload,
        "latency_ms": median(times.seconds) * 1e3,
        "runs": times.launches,
        "kernel": {name: list(value) if isinstance(value, tuple) else value for name, value in kernel.items() if value}
        or None,
        "clock_hz": times.clock_hz,
    }
    if len(times.seconds) > 1:
        row["latency_std_ms"] = pstdev(times.seconds) * 1e3
    return {name: value for name, value in row.items() if value is not None}


def gpu_name(name: str | None, options: ProfileOptions) -> str:
    """Return the GPU's name. Raises BadInput if neither the export nor the user names it."""
    gpu = options.gpu or name
    if gpu is None:
        raise BadInput(
            "The export does not name its GPU: give it with --gpu.", errors=[FieldError(("gpu",), "missing")]
        )
    return gpu


def short_name(symbol: str) -> str:
    """Return a kernel name within the API's length: without arguments, and with a digest if too long."""
    plain = _without_arguments(symbol.removeprefix("void ")) or symbol
    if len(plain) <= _LONGEST_NAME:
        return plain
    return f"{plain[: _LONGEST_NAME - 9]}~{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def _without_arguments(symbol: str) -> str:
    """Return the symbol without its last parentheses: f<(int)3>(float *) becomes f<(int)3>."""
    depth = 0
    for k in range(len(symbol) - 1, -1, -1) if symbol.endswith(")") else ():
        depth += (symbol[k] == ")") - (symbol[k] == "(")
        if depth == 0:
            return symbol[:k]
    return symbol
