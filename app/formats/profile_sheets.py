"""Read CSV as profilers print it: tables below other lines, figures with units, in any locale."""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from app.config import SEED_DATA
from app.errors import BadInput, NotFound

Cells = Mapping[str, str]
_UNITS: dict[str, float] = json.loads((SEED_DATA / "formats" / "profilers.json").read_text("utf-8"))["units"]
_DELIMITERS = ",;\t"
_ENCODINGS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # as PowerShell redirects
# Figures that are unambiguous in a locale with decimal commas, or with points: 9,000 is valid in both.
_ONLY_COMMA = re.compile(r"\d{1,3}(\.\d{3})+,\d+|0,\d+|\d+,(\d{1,2}|\d{4,})|\d{4,},\d+")
_ONLY_POINT = re.compile(r"\d{1,3}(,\d{3})+\.\d+|0\.\d+|\d+\.(\d{1,2}|\d{4,})|\d{4,}\.\d+|\d{1,3}(,\d{3}){2,}")
_LOOKED_AT, _ENOUGH = 20_000, 100  # limits on lines, and on distinct figures, used to detect the locale
_SPACES = re.compile(r"[\s'\u2019]")  # thousands separators
# Printed by nsys between two reports.
_NEXT = "Processing ["


def to_si(cell: str, unit: str = "") -> float | None:
    """Return a figure in SI units, also of units per block or thread; None if not a number or of unknown unit."""
    plain = unit.strip().lower()
    scale = _UNITS.get(plain, _UNITS.get(plain.partition("/")[0]))
    try:
        value = float(_SPACES.sub("", cell).replace(",", ""))
    except ValueError:
        return None
    return value * scale if scale is not None and math.isfinite(value) else None


class Sheet:
    """Rows of a table in a CSV file, by column name; `cut` counts lines between them with another number of columns."""

    def __init__(self, names: Sequence[str], rows: Iterator[list[str]], *, comma: bool) -> None:
        self.names, self.cut, self._rows, self._comma = names, 0, rows, comma

    def __iter__(self) -> Iterator[Cells]:
        for cells in self._rows:
            if cells and cells[0].startswith(_NEXT):
                return
            if len(cells) == len(self.names):
                yield dict(zip(self.names, map(_with_point, cells) if self._comma else cells, strict=True))
            else:
                self.cut += bool(cells)


def find_table(path: Path, known: Callable[[Sequence[str]], bool]) -> Sheet | None:
    """Return the table below the first line that `known` accepts as a header; None if there is none.

    Lines before the table are skipped.
    """
    for delimiter in _DELIMITERS:
        rows = _rows(path, delimiter)
        for cells in rows:
            if known(cells):
                return Sheet(cells, rows, comma=_has_decimal_commas(path, delimiter))
    return None


def _rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    with path.open("rb") as file:
        begin = file.read(2)
    encoding = next((name for mark, name in _ENCODINGS if begin == mark), "utf-8-sig")
    with path.open(encoding=encoding, errors="replace", newline="") as text:
        try:
            yield from csv.reader(text, delimiter=delimiter)
        except csv.Error as error:
            raise BadInput(f"{path.name} is not CSV: {error}.") from error


def _has_decimal_commas(path: Path, delimiter: str) -> bool:
    """Return whether figures are written as 1.234,5.

    True if more figures are unambiguous in that notation than in 1,234.5, since versions look like the latter.
    """
    commas, points = set[str](), set[str]()
    first = islice(_rows(path, delimiter), _LOOKED_AT)
    for cell in (cell for cells in first for cell in cells if cell[:1].isdigit()):
        plain = _SPACES.sub("", cell)
        for figures, pattern in ((commas, _ONLY_COMMA), (points, _ONLY_POINT)):
            if pattern.fullmatch(plain):
                figures.add(plain)
        if max(len(commas), len(points)) == _ENOUGH:
            break
    return len(commas) > len(points)


def _with_point(cell: str) -> str:
    """Return a figure with decimal commas in point notation; other cells unchanged."""
    digits = _SPACES.sub("", cell).removeprefix("-").replace(".", "").replace(",", "", 1)
    return cell.replace(".", "").replace(",", ".") if digits.isdecimal() else cell


def csv_files(path: Path) -> list[Path]:
    """Return the file, or the CSV files of a folder."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise NotFound(f"{path} has no .csv file.")
    return files


def read_extents(cells: Sequence[str]) -> tuple[int, ...] | None:
    """Return a grid or a block; None if a cell is not a positive integer."""
    if len(cells) == 3 and all(cell.strip().isdecimal() and int(cell) > 0 for cell in cells):
        return tuple(int(cell) for cell in cells)
    return None
