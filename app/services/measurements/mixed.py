"""Tables whose rows are kernels, operators and models together, measured or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.errors import BadInput, FieldError
from app.services.measurements.operator_uploads import OPERATOR_COLUMNS, own_name
from app.services.operators.batch_files import is_words
from app.wire.measurements.row_columns import COLUMNS, MAX_REPORTED
from app.wire.measurements.upload import Objects, OperatorColumns, Upload, UploadPart
from app.wire.operators.operator_columns import Problems

Ints = NDArray[np.intp]

OUTCOME = "outcome"
_MEASURED = "measured"
# What measuring tools note beside a row for people to read: nothing predicts from it, so nothing stores it.
REMARKS = ("peak_memory_bytes", "throttle_reason", "temperature_c", "blocks_per_sm", "suite", "point")
_MOST_OUTCOMES = 100
_KNOWN = tuple(
    dict.fromkeys((OUTCOME, *OPERATOR_COLUMNS, *(name for name in COLUMNS if own_name(name) == name), *REMARKS))
)


def known_names(given: Sequence[str]) -> list[str]:
    """Names of known columns without the `workload.` before them; unknown and repeated ones are refused."""
    problems = Problems((), most=MAX_REPORTED)
    names, seen = list[str](), set[str]()
    for each in given[: len(_KNOWN) + MAX_REPORTED]:  # of more some are wrong by here, and that many are told
        name = own_name(each)
        if name not in _KNOWN:
            problems.add(each, f"unknown column; known are {', '.join(_KNOWN)}")
        elif name in seen:
            problems.add(each, "stands twice")
        names.append(name)
        seen.add(name)
    problems.refuse()
    return names


class Cells(NamedTuple):
    """How cells of a form of table are read, each with where its rows stood: as columns, or as objects."""

    operators: Callable[[pa.Table, Ints], OperatorColumns]
    objects: Callable[[pa.Table, Ints], Objects]


def split(table: pa.Table, cells: Cells, device: Mapping[str, Any] | None = None) -> Upload:
    """The rows of a table whose columns have known names, by what they are."""
    ignored = Counter(
        {name: len(table[name]) - table[name].null_count for name in REMARKS if name in table.schema.names}
    )
    table = table.drop_columns(list(ignored))
    table, position, skipped = _measured(table)
    return Upload(tuple(_by_kind(table, position, cells)), skipped, +ignored, device)


def _wrong(name: str, msg: str) -> BadInput:
    return BadInput(f"The column {name} cannot be read: {msg}.", errors=[FieldError((name,), msg)])


def _words(table: pa.Table, name: str) -> pa.ChunkedArray:
    cells = table[name]
    if not is_words(cells.type):
        raise _wrong(name, f"a column of {cells.type} where words are wanted")
    return cells.cast(pa.string())


def _measured(table: pa.Table) -> tuple[pa.Table, Ints, Counter[str]]:
    """The rows that were measured, where they stood, and why the others were not; without `outcome` all were."""
    position = np.arange(table.num_rows)
    if OUTCOME not in table.schema.names:
        return table, position, Counter()
    # A tool may say after a colon what failed, which is its user's to read.
    outcome = pc.split_pattern(_words(table, OUTCOME).fill_null(_MEASURED), ":", max_splits=1)
    outcome = pc.list_element(outcome, 0)
    table = table.drop_columns([OUTCOME])
    told = Counter({item["values"]: item["counts"] for item in pc.value_counts(outcome).to_pylist()})
    if told.keys() <= {_MEASURED}:
        return table, position, Counter()
    if len(told) > _MOST_OUTCOMES:
        raise _wrong(OUTCOME, f"{len(told):,} different words: at most {_MOST_OUTCOMES} are counted")
    del told[_MEASURED]
    measured = pc.equal(outcome, _MEASURED)
    skipped = Counter({f"not measured: {word[:100]}": count for word, count in told.items()})
    return table.filter(measured), position[measured.to_numpy()], skipped


def _by_kind(table: pa.Table, position: Ints, cells: Cells) -> Iterator[UploadPart]:
    """Operators in columns and other rows as objects."""
    operator = _operators(table)
    unsaid = table.drop_columns(["kind"]) if "kind" in table.schema.names else table
    if operator.any():
        yield cells.operators(*_own(unsaid, position, operator, OPERATOR_COLUMNS))
    if not operator.all():
        yield cells.objects(*_own(table, position, ~operator, COLUMNS))


def _own(table: pa.Table, position: Ints, chosen: NDArray[np.bool_], known: Collection[str]) -> tuple[pa.Table, Ints]:
    """The chosen rows, with the columns that say anything about them; those that such rows do not have are refused."""
    if not chosen.all():
        table, position = table.filter(pa.array(chosen)), position[chosen]
    table = table.select([name for name in table.column_names if table[name].null_count < len(table)])
    for name in table.column_names:
        if name not in known:
            row = int(position[np.argmax(table[name].is_valid().to_numpy())])
            told = FieldError((row, "workload", name), "no field of rows of this kind: leave it empty there")
            raise BadInput(f"Row {row} has a cell in column {name}, which is {told.msg}.", errors=[told])
    return table, position


def _operators(table: pa.Table) -> NDArray[np.bool_]:
    """Which rows are operators, bool [n]: those that say so, and those of no kind in a file with a column `op`."""
    has_op = "op" in table.schema.names
    if "kind" not in table.schema.names:
        return np.full(table.num_rows, has_op)
    kind = _words(table, "kind")
    operators = pc.is_in(kind, pa.array(["operator", "operators"]))
    if has_op:
        operators = pc.or_(operators, kind.is_null())
    found: NDArray[np.bool_] = operators.to_numpy()
    return found
