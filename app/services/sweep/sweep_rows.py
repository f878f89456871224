"""Sources of a sweep's rows, operators or models: a Parquet file, or a JSON grid of their fields.

A row of models is a configuration, the workload of one model in POST /predict. Columns have the workload's field names,
nested ones with a dot: `name`, `batch`, `parallelism.tensor`, `config.num_hidden_layers`. A model has a `name`, with
`config.` columns overriding its sizes, or is described by such columns alone. An empty cell is an omitted field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError
from app.networks.builtin import find_config
from app.tables.arrays import Ints
from app.wire.decoding import convert, decode_plain
from app.wire.network_form import MODEL_EXAMPLE, ModelWorkload, ParallelismIn
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
        raise BadInput.at((name,), message) from error


def open_rows(path: Path) -> SweepRows:
    """Return the rows of a file; a name in .json is a grid."""
    return GridRows(path) if path.suffix == ".json" else ParquetRows(path)


CONFIG, _SPLIT = "config.", "parallelism."
_NO_COLUMNS = {"kind", "config", "parallelism", "dataset_size", "output_tokens", "failures", "lora", "quantization"}
_NO_COLUMNS |= {"recompute_modules"}
_OF_WORKLOAD = set(ModelWorkload.__struct_fields__) - _NO_COLUMNS
MODEL_COLUMNS = (*sorted(_OF_WORKLOAD), *(_SPLIT + name for name in ParallelismIn.__struct_fields__))


def is_model_table(columns: Collection[str]) -> bool:
    """Return whether a table has models; tables of operators have `op`."""
    return "op" not in columns and ("name" in columns or CONFIG + "model_type" in columns)


def check_columns(columns: Iterable[str]) -> None:
    """Raise BadInput that names columns unknown in tables of models."""
    wrong = [name for name in columns if name not in MODEL_COLUMNS and not name.startswith(CONFIG)]
    if wrong:
        message = f"unknown column; known are {', '.join(MODEL_COLUMNS)}, {CONFIG} and a field of the configuration"
        raise BadInput(f"{wrong[0]!r}: {message}", errors=[FieldError((name,), message) for name in wrong])


class Values(NamedTuple):
    """Distinct combinations of some columns, as field -> value, and the index of every row's, int [n]."""

    each: Sequence[Mapping[str, Any]]
    of: Ints


class Columns:
    """A table of configurations by column. Raises BadInput that names unknown columns."""

    def __init__(self, table: pa.Table) -> None:
        check_columns(table.column_names)
        self._rows = len(table)
        self._columns = {name: _encode(name, table[name]) for name in table.column_names}

    def combined(self, names: Sequence[str]) -> Values:
        """Return the distinct combinations of these columns; columns that the table lacks are ignored."""
        names = [name for name in names if name in self._columns]
        of, sizes = np.zeros(self._rows, dtype=np.intp), 1
        for name in names:
            values, code = self._columns[name]
            if sizes * len(values) > 2**62:
                _, of = np.unique(of, return_inverse=True)
                sizes = int(of.max()) + 1
            of, sizes = of * len(values) + code, sizes * len(values)
        _, first, of = np.unique(of, return_index=True, return_inverse=True)
        each = []
        for row in first.tolist():
            cells = ((name, self._columns[name][0][self._columns[name][1][row]]) for name in names)
            each.append({name: cell for name, cell in cells if cell is not None})
        return Values(each, of)

    def named(self, prefix: str) -> list[str]:
        """Return the columns whose names start with `prefix`."""
        return [name for name in self._columns if name.startswith(prefix)]

    @property
    def names(self) -> list[str]:
        """All column names."""
        return list(self._columns)


def _encode(name: str, column: pa.ChunkedArray) -> tuple[list[Any], Ints]:
    """Return the distinct values of a column, with None, and the index of every row's."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        coded = column.combine_chunks().dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        message = f"must hold one value in a cell, not {column.type}"
        raise BadInput.at((name,), message) from error
    values = [*coded.dictionary.to_pylist(), None]
    code = coded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return values, code.astype(np.intp)


def to_workload(fields: Mapping[str, Any]) -> ModelWorkload:
    """Return the workload of a row's cells. Raises BadInput that names a wrong cell."""
    form: dict[str, Any] = {"kind": "model", "parallelism": {}}
    own = {}
    for name, value in fields.items():
        if name.startswith(CONFIG):
            own[name.removeprefix(CONFIG)] = value
        elif name.startswith(_SPLIT):
            form["parallelism"][name.removeprefix(_SPLIT)] = value
        else:
            form[name] = value
    if own:
        name = form.pop("name", None)
        known = {} if name is None else find_config(str(name))
        if known is None:
            message = f"{str(name)[:100]!r} is not a built-in transformer, so config. columns cannot apply"
            raise BadInput(f"name: {message}", errors=[FieldError(("workload", "name"), message)])
        form["config"] = {**known, **own}
    return convert(form, ModelWorkload, example=MODEL_EXAMPLE["workload"], loc=("workload",))
