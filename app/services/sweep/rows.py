"""Where the rows of a sweep come from: a Parquet file of operators or of models, or a grid of their fields in JSON."""

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
from app.services.sweep.model_columns import of_models, require_known
from app.wire.decoding import decode_plain
from app.wire.operators.row_forms import COLUMN_NAMES

MOST_ROWS = 10**12


class Rows(Protocol):
    """Operators in columns, as POST /predict/batch takes them, or models; `digest` names their content."""

    count: int
    digest: str

    def table(self, first: int, stop: int) -> pa.Table:
        """Rows first ... stop - 1."""
        ...


class ParquetRows:
    """The rows of one file; only the row groups asked for are read."""

    def __init__(self, path: Path) -> None:
        """Open a file; BadInput if it is none."""
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
        """Rows first ... stop - 1."""
        groups = np.flatnonzero((self._ends[1:] > first) & (self._ends[:-1] < stop))
        before = int(self._ends[groups[0]])
        return self._file.read_row_groups(groups.tolist()).slice(first - before, stop - first)


class GridRows:
    """Every combination of the values of each field, the last field's changing fastest; none is kept in memory."""

    def __init__(self, path: Path) -> None:
        """Read {"op": "linear", "dtype": ["fp16", "bf16"], "m": [1, 2, 4], ...}; BadInput names what is wrong."""
        try:
            body = path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
        self._values = _grid(decode_plain(body))
        self.count = prod(len(values) for values in self._values.values())
        if not 0 < self.count <= MOST_ROWS:
            raise BadInput(f"The grid of {path} has {self.count:,} rows; from 1 to {MOST_ROWS:,} are taken.")
        self.digest = hashlib.sha256(body).hexdigest()

    def table(self, first: int, stop: int) -> pa.Table:
        """Rows first ... stop - 1."""
        index, columns = np.arange(first, stop), {}
        for name, values in reversed(list(self._values.items())):
            columns[name] = values.take(pa.array(index % len(values)))
            index //= len(values)
        return pa.table({name: columns[name] for name in self._values})


def _grid(given: Any) -> Mapping[str, pa.Array]:
    if not isinstance(given, dict) or not ("op" in given or of_models(given)):
        raise BadInput(
            "A grid is a JSON object of fields, each one value or a list of them, `op` or `name` among them."
        )
    if of_models(given):
        require_known(given)
    elif wrong := [name for name in given if name not in COLUMN_NAMES]:
        message = f"unknown field; known are {', '.join(COLUMN_NAMES)}"
        raise BadInput(f"{wrong[0]!r}: {message}", errors=[FieldError((name,), message) for name in wrong])
    return {name: _values(name, value) for name, value in given.items()}


def _values(name: str, value: Any) -> pa.Array:
    try:
        return pa.array(value if isinstance(value, list) else [value])
    except (pa.ArrowException, OverflowError) as error:
        message = f"must be one value, or a list of values of one type ({str(error)[:100]})"
        raise BadInput(f"{name}: {message}", errors=[FieldError((name,), message)]) from error


def rows_of(path: Path) -> Rows:
    """The rows of a file, a grid if its name ends in .json."""
    return GridRows(path) if path.suffix == ".json" else ParquetRows(path)
