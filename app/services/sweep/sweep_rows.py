"""Sources of a sweep's rows: a Parquet file of operators or models, or a JSON grid of their fields."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError
from app.services.sweep.model_columns import check_columns, is_model_table
from app.wire.decoding import decode_plain
from app.wire.operator_forms import COLUMN_NAMES

MOST_ROWS = 10**12


class SweepRows(Protocol):
    """Operators in columns, as in POST /predict/batch, or models; `digest` identifies their content."""

    count: int
    digest: str

    def table(self, first: int, stop: int) -> pa.Table:
        """Return rows first ... stop - 1."""
        ...


class ParquetRows:
    """The rows of one file; only the needed row groups are read."""

    def __init__(self, path: Path) -> None:
        """Open a file. Raises BadInput if it is not Parquet."""
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{path} cannot be read as Parquet: {str(error)[:200]}") from error
        groups = [self._file.metadata.row_group(k).num_rows for k in range(self._file.metadata.num_row_groups)]
        self._ends = np.cumsum([0, *groups])
        self.count = int(self._ends[-1])
        with path.open("rb") as stream:
            self.digest = hashlib.file_digest(stream, "sha256").hexdigest()

    def table(self, first: int, stop: int) -> pa.Table:
        """Return rows first ... stop - 1."""
        groups = np.flatnonzero((self._ends[1:] > first) & (self._ends[:-1] < stop))
        before = int(self._ends[groups[0]])
        return self._file.read_row_groups(groups.tolist()).slice(first - before, stop - first)


class GridRows:
    """Every combination of the fields' values, generated on demand; the last field varies fastest."""

    def __init__(self, path: Path) -> None:
        """Read {"op": "linear", "dtype": ["fp16", "bf16"], "m": [1, 2, 4], ...}. Raises BadInput."""
        try:
            body = path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
        self._values = _grid(decode_plain(body))
        self.count = prod(len(values) for values in self._values.values())
        if not 0 < self.count <= MOST_ROWS:
            raise BadInput(f"The grid of {path} has {self.count:,} rows; from 1 to {MOST_ROWS:,} are accepted.")
        self.digest = hashlib.sha256(body).hexdigest()

    def table(self, first: int, stop: int) -> pa.Table:
        """Return rows first ... stop - 1."""
        index, columns = np.arange(first, stop), {}
        for name, values in reversed(list(self._values.items())):
            columns[name] = values.take(pa.array(index % len(values)))
            index //= len(values)
        return pa.table({name: columns[name] for name in self._values})


def _grid(fields: Any) -> Mapping[str, pa.Array]:
    if not isinstance(fields, dict) or not ("op" in fields or is_model_table(fields)):
        raise BadInput("A grid is a JSON object of fields, each a value or a list of values, including `op` or `name`.")
    if is_model_table(fields):
        check_columns(fields)
    elif wrong := [name for name in fields if name not in COLUMN_NAMES]:
        message = f"unknown field; known are {', '.join(COLUMN_NAMES)}"
        raise BadInput(f"{wrong[0]!r}: {message}", errors=[FieldError((name,), message) for name in wrong])
    return {name: _values(name, value) for name, value in fields.items()}


def _values(name: str, value: Any) -> pa.Array:
    try:
        return pa.array(value if isinstance(value, list) else [value])
    except (pa.ArrowException, OverflowError) as error:
        message = f"must be one value, or a list of values of one type ({str(error)[:100]})"
        raise BadInput(f"{name}: {message}", errors=[FieldError((name,), message)]) from error


def open_rows(path: Path) -> SweepRows:
    """Return the rows of a file; a name in .json is a grid."""
    return GridRows(path) if path.suffix == ".json" else ParquetRows(path)
