"""Columns of a measurement row in CSV and Parquet: their names, cell types, and assembly into JSON rows.

A column is a field of the row (`gpu`, `software`, `latency_ms`, `source`, ...) or of its workload (`kind`, `name`,
`flops`, ...; a leading `workload.` is allowed). Fields of the workload's size are `n`, `rows`, `cols`, `iterations`,
also written `size.n` and so on; the launched function is `kernel.name`, `kernel.grid`, `kernel.block` (grids and blocks
as `64x64x1`); phases are `phases_ms.<phase>`; loads on served models have `load.concurrency`, `serving.ttft_ms` and so
on. An empty cell or a null is an absent field; without a column `kind` every row is a kernel. Rows count from 0, as in
JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from app.errors import BadInput, FieldError, Malformed
from app.ops.kernel import GIVEN, SIZE_FIELDS
from app.wire.decoding import decode_plain
from app.wire.measurements.measurement_form import Phase

Row = dict[str, Any]
Path = tuple[str, ...]

# Most errors that one answer lists.
MAX_REPORTED = 1000

NUMBER, TEXT = "number", "text"
DIMS, FLAG, OBJECT = "dims", "flag", "object"
_ROW_FIELDS = {
    "gpu": TEXT,
    "software": TEXT,
    "source": TEXT,
    "measured_at": TEXT,
    "latency_ms": NUMBER,
    "latency_std_ms": NUMBER,
    "runs": NUMBER,
    "clock_hz": NUMBER,
    "power_w": NUMBER,
    "kernel.name": TEXT,
    "kernel.grid": DIMS,
    "kernel.block": DIMS,
    "serving.ttft_ms": NUMBER,
    "serving.tpot_ms": NUMBER,
}
_WORKLOAD = {
    **dict.fromkeys(GIVEN, NUMBER),
    **dict.fromkeys(("kind", "name", "access_pattern", "dtype"), TEXT),
    # Of models.
    **dict.fromkeys(("mode", "memory_format", "attention", "optimizer"), TEXT),
    **dict.fromkeys(("batch", "sequence", "image_size", "image_width", "frames", "gradient_accumulation"), NUMBER),
    **dict.fromkeys(("compiled", "fused", "recompute"), FLAG),
    **dict.fromkeys(("config", "parallelism"), OBJECT),
    # Of loads on served models.
    "kv_dtype": TEXT,
    **dict.fromkeys(("load.concurrency", "load.rate_per_s", "load.burst"), NUMBER),
    **dict.fromkeys(("input_tokens", "output_tokens", "length_spread", "prefix_hit"), NUMBER),
    **dict.fromkeys(("max_batched_tokens", "max_sequences", "memory_share"), NUMBER),
    **dict.fromkeys(("prefill_wait_steps", "prefill_wait_tokens"), NUMBER),
    **dict.fromkeys(("speculative", "prefill_pool"), OBJECT),
}


@dataclass(frozen=True, slots=True)
class Column:
    """Path of a column's cells in a row, and their type: number, text, dims, flag, or an object in JSON."""

    path: Path
    holds: str


def _columns() -> dict[str, Column]:
    """Return every accepted column by name."""
    known = {name: Column(tuple(name.split(".")), holds) for name, holds in _ROW_FIELDS.items()}
    for phase in get_args(Phase):
        known[f"phases_ms.{phase}"] = Column(("phases_ms", phase), NUMBER)
    for name, holds in _WORKLOAD.items():
        size = name in SIZE_FIELDS
        column = Column(("workload", "size", name) if size else ("workload", *name.split(".")), holds)
        full = f"size.{name}" if size else name
        known |= {name: column, full: column, f"workload.{full}": column}
    return known


COLUMNS = _columns()


def cell_errors(errors: Sequence[FieldError], what: str) -> BadInput:
    """Return the error for wrong cells of a CSV, Parquet file or list, with up to MAX_REPORTED of them."""
    shown = f" The first {MAX_REPORTED} are listed." if len(errors) > MAX_REPORTED else ""
    count = "1 cell is" if len(errors) == 1 else f"{len(errors)} cells are"
    return BadInput(f"{count} wrong in this {what}; nothing was stored.{shown}", errors=errors[:MAX_REPORTED])


def header(names: Sequence[str], what: str, known: Mapping[str, Column] = COLUMNS) -> list[Column]:
    """Return the columns of a header. Raises BadInput that names unknown and repeated columns."""
    errors, columns, taken = [], [], dict[Path, str]()
    for name in names[: len(known) + MAX_REPORTED]:  # of more names some are surely wrong, and enough are reported
        column = known.get(name)
        if column is None:
            errors.append(FieldError((name,), f"unknown column; known are {', '.join(sorted(known))}"))
        elif column.path in taken:
            errors.append(FieldError((name,), f"the same field as column {taken[column.path]!r}"))
        else:
            taken[column.path] = name
            columns.append(column)
    if errors:
        unread = ", ".join(str(error.loc[0]) for error in errors[:20])
        raise BadInput(f"The {what} has columns that cannot be read: {unread}.", errors=errors[:MAX_REPORTED])
    return columns


def _number(cell: str) -> float | int:
    # "1_000" is valid Python and a mistake in data.
    if "_" in cell:
        raise ValueError(cell)
    value = float(cell)
    return int(value) if value.is_integer() else value


def _dims(cell: str) -> list[int]:
    return [int(part) for part in cell.replace(",", "x").split("x")]


def _flag(cell: str) -> bool:
    if cell.lower() not in ("true", "false"):
        raise ValueError(cell)
    return cell.lower() == "true"


def _object(cell: str) -> dict[str, Any]:
    try:
        found = decode_plain(cell.encode())
    except Malformed as error:
        raise ValueError(cell) from error
    if not isinstance(found, dict):
        raise ValueError(cell)
    return found


# Parser of each cell type from text, and its description.
READ: dict[str, tuple[Callable[[str], Any], str]] = {
    NUMBER: (_number, "a number"),
    TEXT: (str, "text"),
    DIMS: (_dims, "one to three whole numbers as 64x64x1"),
    FLAG: (_flag, "true or false"),
    OBJECT: (_object, "an object in JSON"),
}


def _put(row: Row, path: Path, value: Any) -> None:
    for name in path[:-1]:
        row = row.setdefault(name, {})
    row[path[-1]] = value


def assemble(columns: Sequence[Column], cells: Iterable[Any]) -> Row:
    """Return one row from its cells. Missing (None) cells add no field."""
    row: Row = {}
    for column, value in zip(columns, cells, strict=True):
        if value is not None:
            _put(row, column.path, value)
    return row


def measurement(columns: Sequence[Column], cells: Iterable[Any]) -> Row:
    """Return one measurement from its cells; its kind defaults to kernel."""
    return default_kind(assemble(columns, cells))


def default_kind(row: Row) -> Row:
    """Set the workload's kind to kernel if it has none, and return the row."""
    row.setdefault("workload", {}).setdefault("kind", "kernel")
    return row
