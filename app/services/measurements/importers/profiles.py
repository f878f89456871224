"""What importers of profilers' exports share: launches that are alike, and what their work was.

A profiler tells how long a kernel ran, and perhaps what it counted; what it computed is told by the user, in a file of
work: CSV with a column `kernel` (the symbol, `*` for any part of it), if need be `grid` (64x64x1), and either the
fields of a kernel (`flops`, `bytes`, ...) or those of an operator (`op`, `m`, ...) that one launch is.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, pstdev
from typing import Any, NamedTuple

from app.errors import BadInput, FieldError
from app.ops.kernel import SIZE_FIELDS
from app.services.measurements.importers.base import Part, PartsImporter
from app.services.measurements.importers.profile_sheets import Cells, sheet
from app.wire.measurements.upload import Objects

# Kernels that are listed one by one where nothing is known of their work.
_LISTED = 30
_LONGEST_NAME = 200
_UNTIMED = "has no time"


class Launch(NamedTuple):
    """Launches that are alike: the symbol of the kernel, how it was launched, and FLOPs as counted.

    None where the export does not say.
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
        """What it says of a kernel's workload."""
        told = {
            "blocks": None if self.grid is None else _product(self.grid),
            "threads_per_block": None if self.block is None else _product(self.block),
            "registers_per_thread": self.registers_per_thread,
            "shared_memory_per_block": self.shared_memory_per_block,
        }
        return {name: value for name, value in told.items() if value is not None}


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


@dataclass(slots=True)
class Times:
    """How long alike launches took, seconds each, and what else the export tells of them.

    `counted` are fields of a kernel's workload; `workload` is all of it where the export itself says what ran. `runs`
    counts launches where `seconds` are not one by one, `untimed` those that the export has no time of.
    """

    seconds: list[float] = field(default_factory=list)
    runs: int | None = None
    untimed: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] | None = None
    clock_hz: float | None = None

    def add(self, seconds: float | None) -> None:
        """A launch more."""
        if seconds is not None and seconds > 0.0:
            self.seconds.append(seconds)
        else:
            self.untimed += 1

    @property
    def launches(self) -> int:
        """How many were timed."""
        return self.runs or len(self.seconds)

    @property
    def total_s(self) -> float:
        """Time of all, seconds."""
        return sum(self.seconds) * self.launches / max(len(self.seconds), 1)


@dataclass(frozen=True, slots=True)
class Told:
    """What the user tells beside an export: the GPU in place of the export's, the software, and the file of work."""

    gpu: str | None = None
    software: str = "cuda"
    work: Path | None = None


@dataclass(frozen=True, slots=True)
class ProfileImporter:
    """A profiler's exports: as PartsImporter, where `read` also takes what the user tells."""

    name: str
    read: Callable[[Path, Told], Iterator[Part]]

    def told(self, told: Told) -> PartsImporter:
        """The importer for that."""
        return PartsImporter(self.name, lambda path: self.read(path, told))


class Work(NamedTuple):
    """A line of the file of work: which launches it is of, and the workload of one, in the API's form."""

    pattern: re.Pattern[str]
    grid: str | None
    workload: dict[str, Any]


def read_work(path: Path | None) -> list[Work]:
    """Lines of the file of work; BadInput where it has no column `kernel`, or a line neither `op` nor `flops`."""
    if path is None:
        return []
    rows = sheet(path, lambda names: "kernel" in names)
    if rows is None:
        raise BadInput(
            f"{path.name}: a file of work has a column `kernel`.", errors=[FieldError(("kernel",), "missing")]
        )
    return [_work(path.name, number, row) for number, row in enumerate(rows)]


def _work(name: str, number: int, row: Cells) -> Work:
    told = {key.strip(): _plain(cell.strip()) for key, cell in row.items() if cell.strip()}
    kernel, grid = str(told.pop("kernel", "")), told.pop("grid", None)
    if not kernel or not ("op" in told or "flops" in told or "bytes" in told):
        message = "tell the kernel, and either its operator (op, ...) or its flops and bytes"
        raise BadInput(f"{name} row {number}: {message}.", errors=[FieldError((number,), message)])
    if "op" not in told:
        size = {field: told.pop(field) for field in SIZE_FIELDS if field in told}
        told |= {"size": size} if size else {}
    pattern = re.compile(".*".join(map(re.escape, kernel.split("*"))), re.DOTALL)
    return Work(pattern, None if grid is None else str(grid), told)


def _plain(cell: str) -> Any:
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() else value


def parts(
    file: str, found: Mapping[Launch, Times], told: Told, lacks: Callable[[Launch, Times], str | None], cut: int
) -> Iterator[Part]:
    """Launches as measurements, and those that nothing tells the work of, by kernel with their share of the time.

    `lacks` says what the export does not tell of a launch, None where it tells all; `cut` lines of it are no rows.
    """
    work = read_work(told.work)
    rows, left = list[dict[str, Any]](), dict[tuple[str, str], list[Times]]()
    for launch, times in found.items():
        if times.untimed:
            left.setdefault((launch.kernel, _UNTIMED), []).append(Times(runs=times.untimed))
        if not times.seconds:
            continue
        given = times.workload or _given(launch, work)
        reason = None if given else lacks(launch, times)
        if reason is None:
            rows.append(_row(launch, times, told, given or {}))
        else:
            left.setdefault((launch.kernel, reason), []).append(times)
    total = sum(times.total_s for times in found.values()) or 1.0
    skipped = _listed(left, total) + Counter({f"{file}: lines that are no rows of the table, as in a cut file": cut})
    yield Part(file, Objects.of(rows), None, skipped)


def unread(files: Iterable[Path], told: Told) -> Iterator[Part]:
    """The files of a folder that nothing was read from, but the user's own."""
    for file in files:
        if told.work is None or file.resolve() != told.work.resolve():
            yield Part(file.name, Objects.of(()), None, Counter({f"{file.name}: no report that is read": 1}))


def _given(launch: Launch, work: Iterable[Work]) -> dict[str, Any] | None:
    """What the first line of the file of work that fits says."""
    grid = "x".join(map(str, launch.grid or ()))
    for line in work:
        if line.pattern.fullmatch(launch.kernel) and line.grid in (None, grid):
            return line.workload
    return None


def _listed(left: Mapping[tuple[str, str], Sequence[Times]], total_s: float) -> Counter[str]:
    """Kernels left out, the longest first; those beyond _LISTED together."""
    by_time = sorted(left.items(), key=lambda item: -sum(times.total_s for times in item[1]))
    listed = Counter[str]()
    for (kernel, reason), every in by_time[:_LISTED]:
        listed[f"{kernel}: {reason} ({_share(every, total_s)})"] = len(every)
    if rest := [times for _, every in by_time[_LISTED:] for times in every]:
        listed[f"other kernels ({_share(rest, total_s)})"] = len(rest)
    return listed


def _share(every: Sequence[Times], total_s: float) -> str:
    launches, seconds = sum(times.launches for times in every), sum(times.total_s for times in every)
    return f"{launches:,} launches, {seconds / total_s:.1%} of the GPU time"


def _row(launch: Launch, times: Times, told: Told, given: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement in the API's form: the median, for the first launches of a kernel are often slow."""
    if "op" in given:
        workload = {"kind": "operator", **given}
    else:
        workload = {"kind": "kernel", "name": short(launch.kernel), **launch.fields, **times.counted, **given}
        # Counted traffic holds what poor access wastes.
        workload.setdefault("access_pattern", "coalesced")
        workload.setdefault("dtype", "fp32")
        if "bytes" in workload:
            workload.setdefault("working_set_bytes", workload["bytes"])
    symbol = None if times.workload else launch.kernel[:2000]
    kernel = {"name": symbol, "grid": launch.grid, "block": launch.block}
    row = {
        "gpu": device(launch.device, told),
        "software": told.software,
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


def device(name: str | None, told: Told) -> str:
    """The GPU's name; BadInput where neither the export nor the user says it."""
    gpu = told.gpu or name
    if gpu is None:
        raise BadInput("The export does not name its GPU: say it with --gpu.", errors=[FieldError(("gpu",), "missing")])
    return gpu


def short(symbol: str) -> str:
    """A name within the API's length: without the arguments, the end of a longer one as a digest."""
    plain = _without_arguments(symbol.removeprefix("void ")) or symbol
    if len(plain) <= _LONGEST_NAME:
        return plain
    return f"{plain[: _LONGEST_NAME - 9]}~{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def _without_arguments(symbol: str) -> str:
    """Without the last parentheses, be there others in a template's parameters: f<(int)3>(float *) is f<(int)3>."""
    depth = 0
    for k in range(len(symbol) - 1, -1, -1) if symbol.endswith(")") else ():
        depth += (symbol[k] == ")") - (symbol[k] == "(")
        if depth == 0:
            return symbol[:k]
    return symbol
