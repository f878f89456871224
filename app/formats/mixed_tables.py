"""Read tables that mix kernels, operators and models, measured or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.errors import BadInput, FieldError
from app.formats.operator_uploads import OPERATOR_COLUMNS, strip_prefix
from app.tables.arrays import Ints
from app.wire.measurements.row_columns import COLUMNS, MAX_REPORTED
from app.wire.measurements.upload import Objects, OperatorColumns, Upload, UploadPart
from app.wire.operators.batch_files import is_words
from app.wire.operators.operator_columns import Problems

OUTCOME = "outcome"
_MEASURED = "measured"
# Columns of measuring tools for human readers; not used in predictions, so not stored.
REMARKS = ("peak_memory_bytes", "throttle_reason", "temperature_c", "blocks_per_sm", "suite", "point")
_MOST_OUTCOMES = 100
_KNOWN = tuple(
    dict.fromkeys((OUTCOME, *OPERATOR_COLUMNS, *(name for name in COLUMNS if strip_prefix(name) == name), *REMARKS))
)


def check_column_names(given: Sequence[str]) -> list[str]:
    """Return column names without a leading `workload.`. Raises BadInput for unknown and repeated ones."""
    problems = Problems((), most=MAX_REPORTED)
    names, seen = list[str](), set[str]()
    for each in given[: len(_KNOWN) + MAX_REPORTED]:  # of more names some are surely wrong, and enough are reported
        name = strip_prefix(each)
        if name not in _KNOWN:
            problems.add(each, f"unknown column; known are {', '.join(_KNOWN)}")
        elif name in seen:
            problems.add(each, "appears twice")
        names.append(name)
        seen.add(name)
    problems.refuse()
    return names


class Cells(NamedTuple):
    """Readers of a table format, with the place of each row: operators as columns, others as objects."""

    operators: Callable[[pa.Table, Ints], OperatorColumns]
    objects: Callable[[pa.Table, Ints], Objects]


def split_by_kind(table: pa.Table, cells: Cells, device: Mapping[str, Any] | None = None) -> Upload:
    """Return the rows of a table with known columns, by kind."""
    ignored = Counter(
        {name: len(table[name]) - table[name].null_count for name in REMARKS if name in table.schema.names}
    )
    table = table.drop_columns(list(ignored))
    table, position, skipped = _drop_unmeasured(table)
    return Upload(tuple(_by_kind(table, position, cells)), skipped, +ignored, device)


def _wrong(name: str, msg: str) -> BadInput:
    return BadInput(f"The column {name} cannot be read: {msg}.", errors=[FieldError((name,), msg)])


def _text_cells(table: pa.Table, name: str) -> pa.ChunkedArray:
    cells = table[name]
    if not is_words(cells.type):
        raise _wrong(name, f"a column of {cells.type} where text is expected")
    return cells.cast(pa.string())


def _drop_unmeasured(table: pa.Table) -> tuple[pa.Table, Ints, Counter[str]]:
    """Return the measured rows, their places, and the reasons of the others; without `outcome` all are measured."""
    position = np.arange(table.num_rows)
    if OUTCOME not in table.schema.names:
        return table, position, Counter()
    # Tools may add details after a colon, for human readers.
    outcome = pc.split_pattern(_text_cells(table, OUTCOME).fill_null(_MEASURED), ":", max_splits=1)
    outcome = pc.list_element(outcome, 0)
    table = table.drop_columns([OUTCOME])
    outcomes = Counter({item["values"]: item["counts"] for item in pc.value_counts(outcome).to_pylist()})
    if outcomes.keys() <= {_MEASURED}:
        return table, position, Counter()
    if len(outcomes) > _MOST_OUTCOMES:
        raise _wrong(OUTCOME, f"{len(outcomes):,} different values: at most {_MOST_OUTCOMES} are counted")
    del outcomes[_MEASURED]
    measured = pc.equal(outcome, _MEASURED)
    skipped = Counter({f"not measured: {word[:100]}": count for word, count in outcomes.items()})
    return table.filter(measured), position[measured.to_numpy()], skipped


def _by_kind(table: pa.Table, position: Ints, cells: Cells) -> Iterator[UploadPart]:
    """Yield operators as columns and other rows as objects."""
    operator = _is_operator(table)
    without_kind = table.drop_columns(["kind"]) if "kind" in table.schema.names else table
    if operator.any():
        yield cells.operators(*_select_kind(without_kind, position, operator, OPERATOR_COLUMNS))
    if not operator.all():
        yield cells.objects(*_select_kind(table, position, ~operator, COLUMNS))


def _select_kind(
    table: pa.Table, position: Ints, chosen: NDArray[np.bool_], known: Collection[str]
) -> tuple[pa.Table, Ints]:
    """Return the chosen rows, with their non-empty columns. Raises BadInput for columns that such rows cannot have."""
    if not chosen.all():
        table, position = table.filter(pa.array(chosen)), position[chosen]
    table = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    for name in table.column_names:
        if name not in known:
            row = int(position[np.argmax(table[name].is_valid().to_numpy())])
            error = FieldError((row, "workload", name), "not a field of rows of this kind: leave it empty there")
            raise BadInput(f"Row {row} has a cell in column {name}, which is {error.msg}.", errors=[error])
    return table, position


def _is_operator(table: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are operators, bool [n]: by kind, or without a kind in a file with a column `op`."""
    has_op = "op" in table.schema.names
    if "kind" not in table.schema.names:
        return np.full(table.num_rows, has_op)
    kind = _text_cells(table, "kind")
    operators = pc.is_in(kind, pa.array(["operator", "operators"]))
    if has_op:
        operators = pc.or_(operators, kind.is_null())
    mask: NDArray[np.bool_] = operators.to_numpy()
    return mask
