"""CSV as profilers print it: a table below other lines, figures with units and commas, files of a folder."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from app.errors import BadInput, NotFound

Cells = Mapping[str, str]
_UNITS = {
    **{"s": 1.0, "second": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "ns": 1e-9, "nsecond": 1e-9},
    **{"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9, "cycle/second": 1.0, "cycle/usecond": 1e6, "cycle/nsecond": 1e9},
    **{"b": 1.0, "byte": 1.0, "kb": 1e3, "kbyte": 1e3, "mb": 1e6, "mbyte": 1e6, "gb": 1e9, "gbyte": 1e9},
    **{"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tbyte": 1e12},
}


def figure(cell: str, unit: str = "") -> float | None:
    """A figure in SI units; None where there is none. Thousands may be apart by commas, units per block or thread."""
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    plain = unit.strip().lower()
    return value * _UNITS.get(plain, _UNITS.get(plain.partition("/")[0], 1.0))


def sheet(path: Path, known: Callable[[Sequence[str]], bool]) -> Iterator[Cells] | None:
    """Rows of a CSV file below the first line that is a header to `known`; None where no line is.

    What a profiler prints before its table is passed over.
    """
    rows = _rows(path)
    for cells in rows:
        if known(cells):
            return _below(cells, rows)
    return None


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        try:
            yield from csv.reader(file)
        except csv.Error as error:
            raise BadInput(f"{path.name} is not CSV: {error}.") from error


def _below(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[Cells]:
    for cells in rows:
        if len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))


def csv_files(path: Path) -> list[Path]:
    """The file, or the CSV files of a folder."""
    found = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not found:
        raise NotFound(f"{path} holds no .csv file.")
    return found


def extents(cells: Sequence[str]) -> tuple[int, ...] | None:
    """A grid or a block; None where a cell is not a whole number of at least 1."""
    if len(cells) == 3 and all(cell.strip().isdecimal() and int(cell) > 0 for cell in cells):
        return tuple(int(cell) for cell in cells)
    return None
